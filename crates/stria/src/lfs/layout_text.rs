//! Layouts as text: the formats of `lfs getstripe`, column for column.

use std::fmt::Write;

use layout::{Layout, LayoutSpec, PlainLayout, StripeCount};
use types::{Fid, InodeNumber, OstIndex, limits};

/// Magic number of a plain layout in Lustre's binary format, shown by `-v`.
const LOV_MAGIC_V1: u32 = 0x0BD1_0BD0;

/// How to print.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// OST indices in hexadecimal.
    pub hexadecimal: bool,
    /// With magic and FID.
    pub verbose: bool,
    /// Objects only.
    pub quiet: bool,
    /// YAML.
    pub yaml: bool,
}

impl Style {
    fn index(self, ost: OstIndex) -> String {
        if self.hexadecimal && ost.0 != 0 { format!("{:#x}", ost.0) } else { ost.0.to_string() }
    }
}

/// A file's plain layout: header lines, then its objects.
pub fn file(inode: InodeNumber, layout: &Layout, plain: &PlainLayout, style: Style) -> String {
    let mut text = String::new();
    if !style.quiet || style.yaml {
        header(&mut text, inode, layout, plain, style);
    }
    if style.yaml {
        objects_yaml(&mut text, inode, plain, style)
    } else {
        objects(&mut text, inode, plain, style)
    }
    text
}

fn header(text: &mut String, inode: InodeNumber, layout: &Layout, plain: &PlainLayout, style: Style) {
    let fid = Fid::from(inode);
    if style.verbose {
        text.push_str(&format!("lmm_magic:         0x{LOV_MAGIC_V1:08X}\n"));
        text.push_str(&format!("lmm_seq:           {:#x}\n", fid.sequence));
        text.push_str(&format!("lmm_object_id:     {:#x}\n", fid.object));
        text.push_str(&format!("lmm_fid:           {fid}\n"));
    }
    text.push_str(&format!("lmm_stripe_count:  {}\n", plain.osts.len()));
    text.push_str(&format!("lmm_stripe_size:   {}\n", plain.stripe_bytes));
    text.push_str("lmm_pattern:       raid0\n");
    text.push_str(&format!("lmm_layout_gen:    {}\n", layout.shown_generation()));
    text.push_str(&format!("lmm_stripe_offset: {}\n", style.index(plain.osts[0])));
}

/// One line per object. The object of slot `n` of inode `i` is object `n` of group `i`.
fn objects(text: &mut String, inode: InodeNumber, plain: &PlainLayout, style: Style) {
    text.push_str("\tobdidx\t\t objid\t\t objid\t\t group\n");
    for (slot, ost) in plain.osts.iter().enumerate() {
        let hexadecimal = if slot == 0 { "0".to_owned() } else { format!("{slot:#x}") };
        writeln!(text, "\t{:>6}\t{slot:>14}\t{hexadecimal:>13}\t{:>#14x}", style.index(*ost), inode.0)
            .expect("writing to a string");
    }
    text.push('\n');
}

fn objects_yaml(text: &mut String, inode: InodeNumber, plain: &PlainLayout, style: Style) {
    text.push_str("lmm_objects:\n");
    for (slot, ost) in plain.osts.iter().enumerate() {
        writeln!(text, "      - l_ost_idx: {}\n        l_fid:     {:#x}:{slot:#x}:0x0", style.index(*ost), inode.0)
            .expect("writing to a string");
    }
}

/// A directory's default layout as people see it: its own, or what applies, or (raw) zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryDefault {
    /// -1: all; 0: not set.
    pub stripe_count: i64,
    /// Bytes.
    pub stripe_size: u64,
    /// `raid0` if the directory itself has a default, else `0`.
    pub pattern: &'static str,
    /// -1: chosen.
    pub stripe_offset: i64,
}

impl DirectoryDefault {
    /// From what the server says; `raw` shows only what is set on the directory itself.
    pub fn new(own: Option<&LayoutSpec>, effective: Option<&LayoutSpec>, raw: bool) -> Self {
        let shown = match if raw { own } else { own.or(effective) } {
            Some(LayoutSpec::Plain(stripes)) => Some(stripes),
            _ => None,
        };
        let count = match shown.map(|spec| spec.stripe_count) {
            None | Some(StripeCount::Default) => i64::from(!raw),
            Some(StripeCount::Exactly(count) | StripeCount::Overstriped(count)) => i64::from(count),
            Some(StripeCount::All) => -1,
            Some(StripeCount::PerOst(count)) => -i64::from(count),
        };
        let default_bytes = if raw { 0 } else { limits::STRIPE_BYTES_DEFAULT };
        Self {
            stripe_count: count,
            stripe_size: shown.and_then(|spec| spec.stripe_bytes).unwrap_or(default_bytes),
            pattern: if own.is_some() { "raid0" } else { "0" },
            stripe_offset: shown.and_then(|spec| spec.first_ost).map_or(-1, |ost| i64::from(ost.0)),
        }
    }

    /// As text, on one line, or as YAML.
    pub fn text(&self, yaml: bool) -> String {
        let separator = if yaml { '\n' } else { ' ' };
        format!(
            "stripe_count:  {}{separator}stripe_size:   {}{separator}pattern:       {}{separator}stripe_offset: {}\n",
            self.stripe_count, self.stripe_size, self.pattern, self.stripe_offset,
        )
    }
}

#[cfg(test)]
mod tests {
    use layout::StripeSpec;
    use types::MdtIndex;

    use super::*;

    fn layout() -> (InodeNumber, Layout) {
        let osts = vec![OstIndex(3), OstIndex(0)];
        let plain = PlainLayout { stripe_bytes: 2097152, osts };
        (InodeNumber::new(MdtIndex(0), 0x203), Layout::plain(Layout::FIRST_GENERATION, plain, StripeSpec::default()))
    }

    #[test]
    fn a_file_is_shown_in_lustres_columns() {
        let (inode, layout) = layout();
        let expected = "\
lmm_magic:         0x0BD10BD0
lmm_seq:           0x200000400
lmm_object_id:     0x203
lmm_fid:           [0x200000400:0x203:0x0]
lmm_stripe_count:  2
lmm_stripe_size:   2097152
lmm_pattern:       raid0
lmm_layout_gen:    0
lmm_stripe_offset: 0x3
\tobdidx\t\t objid\t\t objid\t\t group
\t   0x3\t             0\t            0\t         0x203
\t     0\t             1\t          0x1\t         0x203

";
        let style = Style { verbose: true, hexadecimal: true, ..Style::default() };
        assert_eq!(file(inode, &layout, layout.as_plain().unwrap(), style), expected);
    }

    #[test]
    fn yaml_names_the_objects() {
        let (inode, layout) = layout();
        let text = file(inode, &layout, layout.as_plain().unwrap(), Style { yaml: true, ..Style::default() });
        assert!(text.ends_with("lmm_objects:\n      - l_ost_idx: 3\n        l_fid:     0x203:0x0:0x0\n      - l_ost_idx: 0\n        l_fid:     0x203:0x1:0x0\n"), "{text}");
    }

    /// The lines captured for `getstripe -d` of a directory without and with a default, and raw.
    #[test]
    fn directory_defaults_are_shown_on_one_line() {
        let own = LayoutSpec::Plain(StripeSpec { stripe_count: StripeCount::Exactly(2), ..StripeSpec::default() });
        for (own, raw, expected) in [
            (None, false, "stripe_count:  1 stripe_size:   4194304 pattern:       0 stripe_offset: -1\n"),
            (Some(&own), false, "stripe_count:  2 stripe_size:   4194304 pattern:       raid0 stripe_offset: -1\n"),
            (None, true, "stripe_count:  0 stripe_size:   0 pattern:       0 stripe_offset: -1\n"),
        ] {
            assert_eq!(DirectoryDefault::new(own, None, raw).text(false), expected);
        }
        let yaml = DirectoryDefault::new(Some(&own), None, false).text(true);
        assert_eq!(yaml, "stripe_count:  2\nstripe_size:   4194304\npattern:       raid0\nstripe_offset: -1\n");
    }
}
