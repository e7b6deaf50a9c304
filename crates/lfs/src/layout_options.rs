//! The options that describe a layout (`lfs setstripe`, `lfs migrate`), and how they become a
//! request. Pure.
//!
//! Options are processed in order: `-E` starts a component, the options after it apply to this
//! component, and the next component inherits count, size and pool. Options before the first `-E`
//! apply to the first component. `-E 0` does not start a component, as in Lustre.

use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeCount, StripeSpec, spec};
use types::{OstIndex, limits};

use super::{
    channel::strerror,
    options::{OptionSpec, Parsed, Takes, option},
    outcome::{Failure, USAGE},
    size,
};

/// The options.
pub const LAYOUT_OPTIONS: &[OptionSpec] = &[
    option('c', &["stripe-count"], Takes::Value),
    option('S', &["stripe-size"], Takes::Value),
    option('i', &["stripe-index"], Takes::Value),
    option('p', &["pool"], Takes::Value),
    option('L', &["layout"], Takes::Value),
    option('C', &["overstripe-count"], Takes::Value),
    option('o', &["ost", "ost-list"], Takes::Value),
    option('E', &["component-end", "comp-end"], Takes::Value),
    option('z', &["extension-size", "ext-size"], Takes::Value),
];

/// The part of the help that is about them.
pub const LAYOUT_HELP: &str =
    "  -c, --stripe-count COUNT  stripes, 1-2000; 0: the default; -1: one on every OST. A count above the
                            number of usable OSTs means all of them
  -C, --overstripe-count N  stripes, several on one OST if there are fewer OSTs; -1 to -32: that many
                            on every OST
  -S, --stripe-size SIZE    bytes per stripe: a multiple of 64K below 4G; K, M, G (also KiB, ...)
                            are powers of 1024, KB, MB, GB powers of 1000;
                            a bare number below 4096 means KiB; 0: the default
  -i, --stripe-index OST    OST of the first stripe; -1: chosen by free space and in turn
  -o, --ost OST[,..]        exactly these OSTs, in this order: numbers and ranges, as in 0,2-4
  -p, --pool POOL           only OSTs of this pool; 'ignore': any, 'inherit': the directory's pool
  -L, --layout PATTERN      raid0: stripes on OSTs; mdt: data on the MDT (the first component only)
  -E, --component-end END   starts a component of the file that ends there: a multiple of 64K, or -1
                            or 'eof'. The options after it apply to this component; the next one
                            inherits count, size and pool. Nothing can be written after the last end
  -z, --extension-size SIZE the component grows in steps of this size, as the file grows
";

/// Largest component on the MDT that is sent to the server, which has a limit of its own (Lustre's
/// lfs: 1 GiB).
const MDT_BYTES_MAX: u64 = 1 << 30;

/// A wrong command line, in Lustre's words.
pub fn usage_error(problem: impl std::fmt::Display) -> Failure {
    Failure::new(USAGE, format!("lfs setstripe setstripe: {problem}"))
}

/// One component on its way.
#[derive(Clone, Debug, Default)]
struct Draft {
    end: Option<u64>,
    count: Option<i64>,
    /// The count comes from the component before.
    count_inherited: bool,
    overstriped: bool,
    stripe_bytes: Option<u64>,
    first_ost: Option<OstIndex>,
    osts: Vec<OstIndex>,
    pool: Option<String>,
    mdt: bool,
    step_bytes: Option<u64>,
}

/// The layout that the options ask for; options that are not about layouts are skipped.
pub fn layout(parsed: &Parsed) -> Result<LayoutSpec, Failure> {
    let mut draft = Draft::default();
    let mut components: Vec<ComponentSpec> = Vec::new();
    for (name, value) in &parsed.options {
        let value = value.as_deref().unwrap_or_default();
        if *name == "component-end" {
            let end = component_end(value)?;
            if draft.end.is_some() {
                components.push(draft.component(components.last())?);
                draft = draft.inherited();
            }
            draft.end = (end != 0).then_some(end);
        } else {
            draft.take(name, value, !components.is_empty())?;
        }
    }
    if draft.end.is_some() {
        components.push(draft.component(components.last())?);
    }
    if components.is_empty() {
        return draft.plain();
    }
    check_extents(&components)?;
    Ok(LayoutSpec::Composite(components))
}

impl Draft {
    fn take(&mut self, name: &str, value: &str, behind_another: bool) -> Result<(), Failure> {
        match name {
            "stripe-count" | "overstripe-count" => {
                self.overstriped |= name == "overstripe-count";
                self.count = Some(stripe_count(value, self.overstriped)?);
                self.count_inherited = false;
            }
            "stripe-size" => self.stripe_bytes = stripe_size(value)?,
            "stripe-index" => self.first_ost = first_ost(value)?,
            "ost" => self.osts = osts(value)?,
            "pool" => self.pool = pool(value)?,
            "extension-size" => {
                let invalid = |_| usage_error(format_args!("invalid extension size '{value}'{}", size::hint(value)));
                self.step_bytes = Some(types::size::parse(value, 1).map_err(invalid)?);
            }
            "layout" => self.mdt = self.pattern(value, behind_another)?,
            _ => {}
        }
        Ok(())
    }

    /// Whether `-L` asks for the MDT.
    fn pattern(&self, value: &str, behind_another: bool) -> Result<bool, Failure> {
        let invalid = |problem: &str| Failure::new(libc::EINVAL, problem);
        match value {
            "raid0" => Ok(false),
            "mdt" if behind_another => Err(invalid("error: 'mdt' layout can be only the first one")),
            "mdt" if self.end.is_some_and(|end| end > MDT_BYTES_MAX) => {
                Err(Failure::new(libc::EFBIG, "error: 'mdt' layout size is too big"))
            }
            "mdt" => Ok(true),
            other => {
                Err(invalid(&format!("error: layout '{other}' is unknown, supported layouts are: 'mdt', 'raid0'")))
            }
        }
    }

    /// What the next component begins with.
    fn inherited(&self) -> Draft {
        if self.mdt {
            return Draft::default();
        }
        Draft {
            count: self.count,
            count_inherited: true,
            overstriped: self.overstriped,
            stripe_bytes: self.stripe_bytes,
            pool: self.pool.clone(),
            ..Draft::default()
        }
    }

    fn stripes(&self) -> Result<StripeSpec, Failure> {
        let count = self.count.filter(|_| !self.count_inherited || self.osts.is_empty());
        if let Some(count) = count
            && !self.osts.is_empty()
            && count > 0
            && count != self.osts.len() as i64
        {
            let problem = format!("stripe_count({count}) != nr_tgts({})", self.osts.len());
            return Err(Failure::new(USAGE, problem));
        }
        let stripe_count = match count {
            _ if !self.osts.is_empty() => StripeCount::Default,
            None | Some(0) => StripeCount::Default,
            Some(count) if self.overstriped && count < 0 => StripeCount::PerOst(count.unsigned_abs() as u32),
            Some(-1) => StripeCount::All,
            Some(count) if self.overstriped => StripeCount::Overstriped(count as u32),
            Some(count) => StripeCount::Exactly(count as u32),
        };
        Ok(StripeSpec {
            stripe_count,
            stripe_bytes: self.stripe_bytes,
            first_ost: self.first_ost,
            osts: self.osts.clone(),
            pool: self.pool.clone(),
        })
    }

    fn plain(&self) -> Result<LayoutSpec, Failure> {
        if self.mdt {
            let problem = "lfs setstripe: Invalid pattern: '-L mdt', must be specified with -E: Invalid argument (22)";
            return Err(Failure::new(libc::EINVAL, problem));
        }
        if self.step_bytes.is_some() {
            return Err(usage_error("option '--extension-size' must be specified with -E"));
        }
        Ok(LayoutSpec::Plain(self.stripes()?))
    }

    /// The component; `before`: the one it follows.
    fn component(&self, before: Option<&ComponentSpec>) -> Result<ComponentSpec, Failure> {
        let end = self.end.expect("a component was begun by its end");
        let backing = if self.mdt { self.on_mdt()? } else { self.on_osts()? };
        match before.map(|before| before.end) {
            Some(END_OF_FILE) => Err(Failure::new(libc::EINVAL, "Add component failed. Invalid argument")),
            Some(start) if end < start => {
                let problem = format!("Set extent [{start}, {end}) failed. Invalid argument");
                Err(Failure::new(libc::EINVAL, problem))
            }
            _ => Ok(ComponentSpec { end, backing }),
        }
    }

    fn on_osts(&self) -> Result<BackingSpec, Failure> {
        let stripes = self.stripes()?;
        let Some(step_bytes) = self.step_bytes else { return Ok(BackingSpec::Striped(stripes)) };
        if step_bytes == 0 || step_bytes % limits::STRIPE_BYTES_MIN != 0 {
            let problem = format!("Set stripe size {step_bytes} failed: {}", strerror(libc::EINVAL));
            return Err(Failure::new(USAGE, problem));
        }
        Ok(BackingSpec::Extended(stripes, step_bytes))
    }

    fn on_mdt(&self) -> Result<BackingSpec, Failure> {
        let refuse = |name: &str, value: String| {
            let problem = format!("Option '{name}' can't be specified with Data-on-MDT component: {value}");
            Err(Failure::new(USAGE, problem))
        };
        match self {
            Draft { count: Some(count), .. } if *count != 0 => refuse("stripe-count", count.to_string()),
            Draft { stripe_bytes: Some(bytes), .. } => refuse("stripe-size", bytes.to_string()),
            Draft { first_ost: Some(ost), .. } => refuse("stripe-index", ost.0.to_string()),
            Draft { osts, .. } if !osts.is_empty() => refuse("ost-list", osts.len().to_string()),
            Draft { pool: Some(pool), .. } if pool != spec::POOL_IGNORED => refuse("pool", pool.clone()),
            Draft { step_bytes: Some(bytes), .. } => refuse("extension-size", bytes.to_string()),
            _ => Ok(BackingSpec::Mdt),
        }
    }
}

/// What Lustre's lfs checks of the whole before it asks the server.
fn check_extents(components: &[ComponentSpec]) -> Result<(), Failure> {
    let invalid = |problem: &str| Err(Failure::new(1, format!("lfs setstripe: Invalid layout: {problem}")));
    let mut start = 0;
    for component in components {
        if component.end == start {
            return invalid("Zero length components must be followed by extension");
        }
        if let Some(bytes) = component.stripes().and_then(|stripes| stripes.stripe_bytes)
            && component.end != END_OF_FILE
            && component.end % bytes != 0
        {
            return invalid("The component end must be aligned by the stripe size");
        }
        start = component.end;
    }
    Ok(())
}

/// End of a component in bytes; `-1` and `eof`: that of the file.
pub fn component_end(text: &str) -> Result<u64, Failure> {
    if text == "-1" || text.eq_ignore_ascii_case("eof") {
        return Ok(END_OF_FILE);
    }
    let end = size::of_stripes(text).ok().filter(|end| end % limits::STRIPE_BYTES_MIN == 0);
    end.ok_or_else(|| usage_error(format_args!("invalid component end '{text}'{}", multiple_hint(text))))
}

/// As [`size::hint`]; also of a size with a unit that is not a multiple of the smallest stripe, as
/// `1MB` is not.
fn multiple_hint(text: &str) -> String {
    let has_unit = !types::size::split(text.trim()).1.is_empty();
    match size::of_stripes(text) {
        Ok(bytes) if has_unit && bytes % limits::STRIPE_BYTES_MIN != 0 => {
            format!(": {bytes} bytes are not a multiple of 64K; K, M, G are powers of 1024, KB, MB, GB powers of 1000")
        }
        _ => size::hint(text),
    }
}

fn stripe_size(text: &str) -> Result<Option<u64>, Failure> {
    let invalid = || usage_error(format_args!("invalid stripe size '{text}'{}", multiple_hint(text)));
    let bytes = size::of_stripes(text).map_err(|_| invalid())?;
    if bytes > limits::STRIPE_BYTES_MAX && bytes % limits::STRIPE_BYTES_MIN == 0 {
        let problem = format!("lfs setstripe: error: stripe size '{bytes}' over 4GB limit: Invalid argument (22)");
        return Err(Failure::new(libc::EINVAL, problem));
    }
    if bytes % limits::STRIPE_BYTES_MIN != 0 {
        return Err(invalid());
    }
    Ok((bytes != 0).then_some(bytes))
}

fn stripe_count(text: &str, overstriped: bool) -> Result<i64, Failure> {
    let least = if overstriped { -i64::from(spec::STRIPES_PER_OST_MAX) } else { -1 };
    let count = text.parse::<i64>().ok().filter(|count| (least..=i64::from(limits::STRIPE_COUNT_MAX)).contains(count));
    count.ok_or_else(|| usage_error(format_args!("invalid stripe count '{text}'")))
}

/// The index of an OST, decimal or hexadecimal.
fn ost_index(text: &str) -> Option<OstIndex> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    u16::from_str_radix(digits, radix).ok().map(OstIndex)
}

fn first_ost(text: &str) -> Result<Option<OstIndex>, Failure> {
    if text == "-1" {
        return Ok(None);
    }
    ost_index(text).map(Some).ok_or_else(|| usage_error(format_args!("invalid stripe offset '{text}'")))
}

/// `0,2-4`
fn osts(text: &str) -> Result<Vec<OstIndex>, Failure> {
    let mut osts = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (ost_index(first), ost_index(last)) {
            (Some(first), Some(last)) if first <= last => osts.extend((first.0..=last.0).map(OstIndex)),
            _ => return Err(usage_error(format_args!("invalid OST target(s) '{text}'"))),
        }
    }
    if osts.len() > limits::STRIPE_COUNT_MAX as usize {
        return Err(usage_error(format_args!("invalid OST target(s) '{text}'")));
    }
    Ok(osts)
}

/// A pool's name, or that of none; `None`: the directory's.
fn pool(text: &str) -> Result<Option<String>, Failure> {
    match text {
        "" | "inherit" => Ok(None),
        "none" | spec::POOL_IGNORED => Ok(Some(spec::POOL_IGNORED.to_owned())),
        name if spec::is_pool_name(name) => Ok(Some(name.to_owned())),
        name => {
            let problem = format!("lfs setstripe: Invalid Poolname '{name}': {} (22)", strerror(libc::EINVAL));
            Err(Failure::new(libc::EINVAL, problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::options::parse;

    fn read(words: &str) -> Result<LayoutSpec, Failure> {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        layout(&parse(LAYOUT_OPTIONS, &words).unwrap())
    }

    fn striped(end: u64, stripe_count: StripeCount) -> ComponentSpec {
        ComponentSpec { end, backing: BackingSpec::Striped(StripeSpec { stripe_count, ..StripeSpec::default() }) }
    }

    #[test]
    fn counts_and_osts_are_read() {
        let plain = |words: &str| match read(words).unwrap() {
            LayoutSpec::Plain(stripes) => stripes,
            other => panic!("{words}: {other:?}"),
        };
        let osts = |list: &[u16]| list.iter().map(|ost| OstIndex(*ost)).collect::<Vec<_>>();
        assert_eq!(plain("-c -1").stripe_count, StripeCount::All);
        assert_eq!(plain("-C 8").stripe_count, StripeCount::Overstriped(8));
        assert_eq!(plain("-C -2").stripe_count, StripeCount::PerOst(2));
        assert_eq!(plain("-C 4 -c 2").stripe_count, StripeCount::Overstriped(2));
        assert_eq!(plain("-c 0 -S 0 -i -1"), StripeSpec::default());
        assert_eq!(plain("-o 0,2-4,0x7").osts, osts(&[0, 2, 3, 4, 7]));
        assert_eq!(plain("-o 1,2 -c 2").stripe_count, StripeCount::Default);
        assert_eq!(plain("-p flash").pool.as_deref(), Some("flash"));
        assert_eq!(plain("-p inherit").pool, None);
        for ignoring in ["-p ignore", "-p none"] {
            assert_eq!(plain(ignoring).pool.as_deref(), Some(spec::POOL_IGNORED));
        }
        assert_eq!(plain("-E 0 -c 3").stripe_count, StripeCount::Exactly(3), "no component begins");
    }

    #[test]
    fn components_inherit_from_the_one_before() {
        let composite = |words: &str| read(words).unwrap();
        assert_eq!(
            composite("-E 4M -c 1 -E 64M -c 4 -E -1 -c -1"),
            LayoutSpec::Composite(vec![
                striped(4 << 20, StripeCount::Exactly(1)),
                striped(64 << 20, StripeCount::Exactly(4)),
                striped(END_OF_FILE, StripeCount::All),
            ])
        );
        let LayoutSpec::Composite(components) = composite("-S 1M -c 2 -E 1024 -p p1 -i 3 -E eof") else {
            panic!("-E makes components")
        };
        assert_eq!(components[0].end, 1 << 20, "bare small numbers are KiB");
        let stripes: Vec<_> = components.iter().filter_map(ComponentSpec::stripes).collect();
        assert_eq!((stripes[0].first_ost, stripes[1].first_ost), (Some(OstIndex(3)), None));
        for stripes in stripes {
            assert_eq!(stripes.stripe_count, StripeCount::Exactly(2));
            assert_eq!((stripes.stripe_bytes, stripes.pool.as_deref()), (Some(1 << 20), Some("p1")));
        }
        let dom = composite("-E 64K -L mdt -E -1 -c 2");
        let mdt = ComponentSpec { end: 65536, backing: BackingSpec::Mdt };
        assert_eq!(dom, LayoutSpec::Composite(vec![mdt, striped(END_OF_FILE, StripeCount::Exactly(2))]));
        let LayoutSpec::Composite(sel) = composite("-E 1M -S 64K -c1 -E 64M -c 2 -z 64M -E -1 -c 4") else {
            panic!("-E makes components")
        };
        assert!(matches!(sel[1].backing, BackingSpec::Extended(_, step) if step == 64 << 20));
        assert!(matches!(sel[2].backing, BackingSpec::Striped(_)), "the step is not inherited");
    }

    /// The captured edge cases that need no file system.
    #[test]
    fn impossible_layouts_fail_as_in_lustre() {
        for (words, status, message) in [
            ("-S 100000", 4, "lfs setstripe setstripe: invalid stripe size '100000'"),
            ("-S 65537", 4, "lfs setstripe setstripe: invalid stripe size '65537'"),
            ("-S 4G", 22, "lfs setstripe: error: stripe size '4294967296' over 4GB limit: Invalid argument (22)"),
            ("-S 1", 4, "lfs setstripe setstripe: invalid stripe size '1'"),
            ("-S abc", 4, "lfs setstripe setstripe: invalid stripe size 'abc'"),
            (
                "-S 1MB",
                4,
                "lfs setstripe setstripe: invalid stripe size '1MB': 1000000 bytes are not a multiple of 64K; K, M, G are \
                 powers of 1024, KB, MB, GB powers of 1000",
            ),
            ("-c 99999", 4, "lfs setstripe setstripe: invalid stripe count '99999'"),
            ("-c 2001", 4, "lfs setstripe setstripe: invalid stripe count '2001'"),
            ("-c -2", 4, "lfs setstripe setstripe: invalid stripe count '-2'"),
            ("-c abc", 4, "lfs setstripe setstripe: invalid stripe count 'abc'"),
            ("-i -2", 4, "lfs setstripe setstripe: invalid stripe offset '-2'"),
            ("-o 0,1 -c 3", 4, "stripe_count(3) != nr_tgts(2)"),
            ("-o 1-0", 4, "lfs setstripe setstripe: invalid OST target(s) '1-0'"),
            ("-C 20000", 4, "lfs setstripe setstripe: invalid stripe count '20000'"),
            ("-C -33", 4, "lfs setstripe setstripe: invalid stripe count '-33'"),
            (
                "-p toolongpoolnametoolongpoolname",
                22,
                "lfs setstripe: Invalid Poolname 'toolongpoolnametoolongpoolname': Invalid argument (22)",
            ),
            (
                "-L mdt",
                22,
                "lfs setstripe: Invalid pattern: '-L mdt', must be specified with -E: Invalid argument (22)",
            ),
            ("-E 16M -c 1 -E 8M -c 2", 22, "Set extent [16777216, 8388608) failed. Invalid argument"),
            (
                "-E 16M -c 1 -E 16M -c 2",
                1,
                "lfs setstripe: Invalid layout: Zero length components must be followed by extension",
            ),
            ("-E 100000 -c 1 -E -1", 4, "lfs setstripe setstripe: invalid component end '100000'"),
            (
                "-E 1M -S 2M -c 1 -E -1",
                1,
                "lfs setstripe: Invalid layout: The component end must be aligned by the stripe size",
            ),
            ("-E 16M -c 1 -E -1 -c 4 -E 32M", 22, "Add component failed. Invalid argument"),
            ("-E abc", 4, "lfs setstripe setstripe: invalid component end 'abc'"),
            ("-E 1M -L mdt -c 2 -E -1", 4, "Option 'stripe-count' can't be specified with Data-on-MDT component: 2"),
            ("-E 2G -L mdt -E -1", 27, "error: 'mdt' layout size is too big"),
            ("-E 1M -E 2M -L mdt -E -1", 22, "error: 'mdt' layout can be only the first one"),
            ("-E -1 -L mdt", 27, "error: 'mdt' layout size is too big"),
            ("-E 10000 -L mdt -E -1", 4, "lfs setstripe setstripe: invalid component end '10000'"),
            (
                "-E 64K -L mdt -S 128K -E -1",
                4,
                "Option 'stripe-size' can't be specified with Data-on-MDT component: 131072",
            ),
            ("-E 64K -L foo -E -1", 22, "error: layout 'foo' is unknown, supported layouts are: 'mdt', 'raid0'"),
            ("-E 1M -z 1 -E -1", 4, "Set stripe size 1 failed: Invalid argument"),
            ("-z 64M", 4, "lfs setstripe setstripe: option '--extension-size' must be specified with -E"),
        ] {
            assert_eq!(read(words), Err(Failure::new(status, message)), "{words}");
        }
    }
}
