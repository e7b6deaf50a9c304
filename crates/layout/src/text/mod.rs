//! Layouts as text: the formats of `lfs getstripe`, column for column, of files and of directories'
//! defaults.
//!
//! The output is made from [`Row`]s, one per component, so that files, defaults and a single
//! filtered component are printed by the same functions. [`yaml::parse`] reads what [`composite`]
//! and [`plain`] write as YAML.
//!
//! Downside: YAML is written and read line by line, for these fields only; comments and other
//! styles of YAML are refused.

mod row;
pub mod yaml;

use std::fmt::Write;

use types::{Fid, InodeNumber, OstIndex, limits::STRIPE_BYTES_DEFAULT};

pub use row::{Pattern, Row, rows, rows_of_default, verbose_bytes};

use crate::{
    layout::{Form, Layout},
    limits::END_OF_FILE,
    lov::{COMPOSITE_MAGIC, V1_MAGIC, V3_MAGIC},
    spec::{LayoutSpec, StripeCount, StripeSpec},
};

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

/// A file's layout in full.
pub fn file(inode: InodeNumber, layout: &Layout, style: Style) -> String {
    let rows = rows(layout);
    match (layout.form, rows.as_slice()) {
        (Form::Plain, [row]) => plain(inode, layout.shown_generation(), row, style),
        _ => {
            let all = Composite {
                inode: Some(inode),
                generation: layout.shown_generation(),
                entry_count: rows.len(),
                bytes: verbose_bytes(&rows),
                rows: &rows,
            };
            composite(&all, style)
        }
    }
}

/// A plain layout: header lines, then its objects.
pub fn plain(inode: InodeNumber, generation: u64, row: &Row, style: Style) -> String {
    let mut text = String::new();
    if !style.quiet || style.yaml {
        stripes(&mut text, "", inode, row, generation, style);
    }
    if style.yaml {
        text.push_str("lmm_objects:\n");
        objects_yaml(&mut text, "      ", inode, row, style);
    } else {
        object_table(&mut text, inode, row, style);
    }
    text
}

/// One line per object. The object of slot `n` named by inode `i` is object `n` of group `i`.
fn object_table(text: &mut String, inode: InodeNumber, row: &Row, style: Style) {
    let group = row.named_by.unwrap_or(inode);
    text.push_str("\tobdidx\t\t objid\t\t objid\t\t group\n");
    for (slot, ost) in &row.objects {
        let hexadecimal = if *slot == 0 { "0".to_owned() } else { format!("{slot:#x}") };
        writeln!(text, "\t{:>6}\t{slot:>14}\t{hexadecimal:>13}\t{:>#14x}", style.index(*ost), group.0)
            .expect("writing to a string");
    }
    text.push('\n');
}

fn objects_yaml(text: &mut String, indent: &str, inode: InodeNumber, row: &Row, style: Style) {
    for (slot, ost) in &row.objects {
        let (index, group) = (style.index(*ost), row.named_by.unwrap_or(inode).0);
        writeln!(text, "{indent}- l_ost_idx: {index}\n{indent}  l_fid:     {group:#x}:{slot:#x}:0x0")
            .expect("writing to a string");
    }
}

/// The stripes of one component, or of a plain layout.
fn stripes(text: &mut String, indent: &str, inode: InodeNumber, row: &Row, generation: u64, style: Style) {
    let mut line = |label: &str, value: &dyn std::fmt::Display| {
        writeln!(text, "{indent}{label}{value}").expect("writing to a string");
    };
    if style.verbose {
        let fid = Fid::from(inode);
        let magic = if row.pool.is_some() { V3_MAGIC } else { V1_MAGIC };
        line("lmm_magic:         ", &format_args!("0x{magic:08X}"));
        line("lmm_seq:           ", &format_args!("{:#x}", fid.sequence));
        line("lmm_object_id:     ", &format_args!("{:#x}", fid.object));
        line("lmm_fid:           ", &fid);
    }
    line("lmm_stripe_count:  ", &row.stripe_count);
    let size = if row.extension { "lmm_extension_size: " } else { "lmm_stripe_size:   " };
    line(size, &row.stripe_bytes);
    line("lmm_pattern:       ", &row.pattern.name());
    line("lmm_layout_gen:    ", &generation);
    match (row.pattern, row.first_ost()) {
        (Pattern::Mdt, _) => line("lmm_mdt_index:     ", &inode.mdt().0),
        (_, Some(first)) => line("lmm_stripe_offset: ", &style.index(first)),
        (_, None) => line("lmm_stripe_offset: ", &-1),
    }
    if let Some(pool) = &row.pool {
        line("lmm_pool:          ", pool);
    }
}

/// A layout of components, or some of them.
#[derive(Clone, Copy, Debug)]
pub struct Composite<'a> {
    /// The file; `None`: a directory's default.
    pub inode: Option<InodeNumber>,
    /// Generation of the layout.
    pub generation: u64,
    /// Components in all.
    pub entry_count: usize,
    /// Size of all of it in Lustre's binary form (`lcm_size`).
    pub bytes: u32,
    /// Those to show.
    pub rows: &'a [Row],
}

/// Components.
pub fn composite(shown: &Composite<'_>, style: Style) -> String {
    let mut text = String::new();
    let verbose = style.verbose && shown.inode.is_some();
    let dashes = style.yaml || verbose;
    if !style.quiet || style.yaml {
        composite_header(&mut text, shown, verbose, dashes);
    }
    for row in shown.rows {
        if style.quiet && !style.yaml {
            shown.inode.iter().for_each(|inode| objects(&mut text, *inode, row, style));
            continue;
        }
        component(&mut text, row, verbose, dashes, style.yaml);
        match shown.inode {
            Some(inode) => {
                stripes(&mut text, "      ", inode, row, 0, style);
                objects(&mut text, inode, row, style);
            }
            None if style.yaml => default_stripes(&mut text, row, "\n      "),
            None => default_stripes(&mut text, row, "       "),
        }
        if !style.yaml {
            text.push('\n');
        }
    }
    text
}

fn composite_header(text: &mut String, shown: &Composite<'_>, verbose: bool, dashes: bool) {
    let indent = if dashes && !verbose { "" } else { "  " };
    if verbose {
        writeln!(text, "composite_header:\n  lcm_magic:         0x{COMPOSITE_MAGIC:08X}").expect("writing to a string");
        writeln!(text, "  lcm_size:          {}\n  lcm_flags:         0", shown.bytes).expect("writing to a string");
    }
    writeln!(text, "{indent}lcm_layout_gen:    {}", shown.generation).expect("writing to a string");
    writeln!(text, "{indent}lcm_mirror_count:  1").expect("writing to a string");
    writeln!(text, "{indent}lcm_entry_count:   {}", shown.entry_count).expect("writing to a string");
    if dashes {
        text.push_str("components:\n");
    }
}

/// What a component is, without its stripes. A copy made of the YAML form leaves to the file system
/// what it decided here, as copies of the binary form do: a flag of StriaFS's own says so.
fn component(text: &mut String, row: &Row, verbose: bool, dashes: bool, yaml: bool) {
    let mut line = |indent: &str, label: &str, value: &dyn std::fmt::Display| {
        writeln!(text, "{indent}{label}{value}").expect("writing to a string");
    };
    let first = if dashes { "  - " } else { "    " };
    match row.id {
        Some(id) => {
            line(first, "lcme_id:             ", &id.0);
            line("    ", "lcme_mirror_id:      ", &0);
        }
        None => {
            line(first, "lcme_id:             ", &"N/A");
            line("    ", "lcme_mirror_id:      ", &"N/A");
        }
    }
    let decided = if yaml && row.automatic && row.instantiated { ",automatic" } else { "" };
    line("    ", "lcme_flags:          ", &format_args!("{}{decided}", row.flags()));
    line("    ", "lcme_extent.e_start: ", &row.extent.start);
    line("    ", "lcme_extent.e_end:   ", &end(row.extent.end));
    if verbose {
        line("    ", "lcme_offset:         ", &row.offset_bytes);
        line("    ", "lcme_size:           ", &row.size_bytes);
    }
    if dashes {
        line("    ", "sub_layout:", &"");
    }
}

/// End of a component.
pub fn end(end: u64) -> String {
    if end == END_OF_FILE { "EOF".to_owned() } else { end.to_string() }
}

fn objects(text: &mut String, inode: InodeNumber, row: &Row, style: Style) {
    if row.objects.is_empty() {
        return;
    }
    text.push_str("      lmm_objects:\n");
    if style.yaml {
        objects_yaml(text, "      ", inode, row, style);
        return;
    }
    let group = row.named_by.unwrap_or(inode);
    for (stripe, (slot, ost)) in row.objects.iter().enumerate() {
        let index = style.index(*ost);
        writeln!(text, "      -{stripe:>4}: {{ l_ost_idx: {index:>3}, l_fid: [{:#x}:{slot:#x}:0x0] }}", group.0)
            .expect("writing to a string");
    }
}

fn default_stripes(text: &mut String, row: &Row, separator: &str) {
    let offset = row.first_ost().map_or(-1, |ost| i64::from(ost.0));
    let size = if row.extension { "extension_size: " } else { "stripe_size:   " };
    write!(text, "      stripe_count:  {}{separator}{size}{}", row.stripe_count, row.stripe_bytes)
        .expect("writing to a string");
    write!(text, "{separator}pattern:       {}{separator}stripe_offset: {offset}", row.pattern.name())
        .expect("writing to a string");
    if let Some(pool) = &row.pool {
        write!(text, "{separator}pool:          {pool}").expect("writing to a string");
    }
    text.push('\n');
}

/// A directory's own default as YAML.
pub fn default_yaml(own: &LayoutSpec) -> String {
    match own {
        LayoutSpec::Composite(components) => {
            let rows = rows_of_default(components);
            let shown = Composite { inode: None, generation: 0, entry_count: rows.len(), bytes: 0, rows: &rows };
            composite(&shown, Style { yaml: true, ..Style::default() })
        }
        own => DirectoryDefault::new(Some(own), None, true).text(true),
    }
}

/// A directory's default layout of plain stripes as people see it: its own, or what applies, or
/// (raw) zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryDefault {
    /// -1: all; 0: not set.
    pub stripe_count: i64,
    /// Bytes.
    pub stripe_size: u64,
    /// `raid0` if the directory itself has a default, `automatic` if layouts grow with the file,
    /// else `0`.
    pub pattern: &'static str,
    /// -1: chosen.
    pub stripe_offset: i64,
    /// Pool.
    pub pool: Option<String>,
}

impl DirectoryDefault {
    /// From what the server says; `raw` shows only what is set on the directory itself.
    pub fn new(own: Option<&LayoutSpec>, effective: Option<&LayoutSpec>, raw: bool) -> Self {
        let shown = match if raw { own } else { own.or(effective) } {
            Some(LayoutSpec::Automatic) => return Self::automatic(),
            Some(LayoutSpec::Plain(stripes)) => Some(stripes),
            _ => None,
        };
        let count = match shown.map(|spec| spec.stripe_count) {
            Some(StripeCount::Default) if shown.is_some_and(|spec| !spec.osts.is_empty()) => {
                shown.map_or(0, |spec| spec.osts.len() as i64)
            }
            None | Some(StripeCount::Default) => i64::from(!raw),
            Some(count) => row::count_shown(count),
        };
        let first = shown.and_then(|spec| spec.osts.first().copied().or(spec.first_ost));
        Self {
            stripe_count: count,
            stripe_size: shown.and_then(|spec| spec.stripe_bytes).unwrap_or(if raw { 0 } else { STRIPE_BYTES_DEFAULT }),
            pattern: match (own, shown.is_some_and(StripeSpec::is_overstriped)) {
                (Some(_), true) => "raid0,overstriped",
                (Some(_), false) => "raid0",
                (None, _) => "0",
            },
            stripe_offset: first.map_or(-1, |ost| i64::from(ost.0)),
            pool: shown.and_then(|spec| spec.pool.clone()),
        }
    }

    fn automatic() -> Self {
        Self { stripe_count: 0, stripe_size: 0, pattern: "automatic", stripe_offset: -1, pool: None }
    }

    /// As text, on one line, or as YAML.
    pub fn text(&self, yaml: bool) -> String {
        let separator = if yaml { '\n' } else { ' ' };
        let pool = self.pool.as_ref().map_or(String::new(), |pool| format!("{separator}pool:          {pool}"));
        format!(
            "stripe_count:  {}{separator}stripe_size:   {}{separator}pattern:       {}{separator}stripe_offset: {}{pool}\n",
            self.stripe_count, self.stripe_size, self.pattern, self.stripe_offset,
        )
    }
}

#[cfg(test)]
mod tests;
