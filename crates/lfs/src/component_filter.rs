//! Selects the components of a layout to which a command applies: `-I`, `--component-start`, `-E`,
//! `--component-flags`, `--mirror-id`, `--mirror-index`. Pure.

use layout::text::Row;

use super::{compare::Compare, layout_options::component_end, options::Parsed};

/// Flags that components can have; of these only `init` and `extension` ever are set here.
const FLAGS: &[&str] =
    &["init", "extension", "stale", "prefer", "prefrd", "prefwr", "offline", "nosync", "parity", "compress"];

/// Number and place of the mirror that every component belongs to: there is one, and it is none of
/// those that mirrored files count from 1.
const NO_MIRROR: u64 = 0;

/// Flags that a component shall have, and shall not have (`^`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlagMatch {
    wanted: Vec<&'static str>,
    unwanted: Vec<&'static str>,
}

impl FlagMatch {
    /// Reads `init,^stale`; the unknown flag is the error.
    pub fn parse(text: &str, negated: bool) -> Result<Self, String> {
        let mut flags = Self::default();
        for word in text.split(',') {
            let (name, unwanted) = word.strip_prefix(['^', '!']).map_or((word, negated), |name| (name, !negated));
            let known = FLAGS.iter().copied().find(|flag| *flag == name).ok_or_else(|| word.to_owned())?;
            if unwanted { flags.unwanted.push(known) } else { flags.wanted.push(known) }
        }
        Ok(flags)
    }

    /// Whether a component has them.
    pub fn matches(&self, row: &Row) -> bool {
        let has = |flag: &&str| row.flags() == *flag;
        self.wanted.iter().all(has) && !self.unwanted.iter().any(has)
    }
}

/// All that is asked of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComponentFilter {
    id: Option<Compare>,
    start: Option<Compare>,
    end: Option<Compare>,
    flags: Option<FlagMatch>,
    mirror: Option<Compare>,
}

impl ComponentFilter {
    /// From options that have values; the error says which value is wrong.
    pub fn new(parsed: &Parsed) -> Result<Self, String> {
        let mut filter = Self::default();
        for (name, value, negated) in parsed.with_negation() {
            let Some(value) = value else { continue };
            let wrong = || format!("'{value}' is not a value of a component");
            match name {
                "component-id" => {
                    filter.id = Some(Compare::parse(value, negated, |text| text.parse().ok()).ok_or_else(wrong)?);
                }
                "component-start" => {
                    filter.start = Some(Compare::parse(value, negated, position).ok_or_else(wrong)?);
                }
                "component-end" => {
                    filter.end = Some(Compare::parse(value, negated, position).ok_or_else(wrong)?);
                }
                "component-flags" => {
                    filter.flags =
                        Some(FlagMatch::parse(value, negated).map_err(|flag| format!("'{flag}' is not a flag"))?);
                }
                "mirror-id" => filter.by_mirror("mirror ID", value, negated)?,
                "mirror-index" => filter.by_mirror("mirror index", value, negated)?,
                _ => {}
            }
        }
        Ok(filter)
    }

    /// By a number of mirrors, of which 0 is none.
    fn by_mirror(&mut self, name: &str, value: &str, negated: bool) -> Result<(), String> {
        let number = |text: &str| text.parse::<u16>().ok().map(u64::from);
        let compare = Compare::parse_count(value, number).filter(|_| negated || value != "0");
        let compare = compare.ok_or_else(|| format!("invalid {name} '{value}'"))?;
        if self.mirror.replace(compare.negated(negated)).is_some() {
            return Err("can't specify both mirror index and mirror ID".to_owned());
        }
        Ok(())
    }

    /// Whether it lets everything pass.
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a component passes.
    pub fn matches(&self, row: &Row) -> bool {
        let compare = |wanted: &Option<Compare>, found: u64| wanted.is_none_or(|wanted| wanted.matches(found));
        compare(&self.id, row.id.map_or(0, |id| u64::from(id.0)))
            && compare(&self.start, row.extent.start)
            && compare(&self.end, row.extent.end)
            && self.flags.as_ref().is_none_or(|flags| flags.matches(row))
            && compare(&self.mirror, NO_MIRROR)
    }
}

/// A position in a file.
pub fn position(text: &str) -> Option<u64> {
    component_end(text).ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use layout::{BackingSpec, ComponentSpec, END_OF_FILE, Layout, PlainLayout, StripeSpec, text};
    use types::OstIndex;

    use super::*;
    use crate::options::{OptionSpec, Takes, long_option, option, parse};

    const OPTIONS: &[OptionSpec] = &[
        option('I', &["component-id"], Takes::OptionalValue),
        option('E', &["component-end"], Takes::OptionalValue),
        long_option(&["component-start"], Takes::OptionalValue),
        long_option(&["component-flags"], Takes::OptionalValue),
        long_option(&["mirror-id"], Takes::Value),
        long_option(&["mirror-index"], Takes::Value),
        long_option(&["!"], Takes::Nothing),
    ];

    /// Numbers of the components that pass.
    fn passing(words: &str) -> Vec<u32> {
        let ends = [16 << 20, 64 << 20, END_OF_FILE];
        let asked = ends.map(|end| ComponentSpec { end, backing: BackingSpec::Striped(StripeSpec::default()) });
        let mut layout = Layout::composite(&asked);
        for position in 0..2 {
            let plain = PlainLayout { stripe_bytes: 65536, osts: vec![OstIndex(0)] };
            layout.instantiate(position, plain, StripeSpec::default()).unwrap();
        }
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let filter = ComponentFilter::new(&parse(OPTIONS, &words).unwrap()).unwrap();
        text::rows(&layout).iter().filter(|row| filter.matches(row)).map(|row| row.id.unwrap().0).collect()
    }

    #[test]
    fn components_are_chosen() {
        for (words, expected) in [
            ("", &[1, 2, 3][..]),
            ("-I2", &[2]),
            ("--component-id=+1", &[2, 3]),
            ("! -I2", &[1, 3]),
            ("--component-start=16M", &[2]),
            ("--component-start=+0", &[2, 3]),
            ("--component-end=-64M", &[1]),
            ("--component-end=-1", &[3]),
            ("-Eeof", &[3]),
            ("--component-flags=init", &[1, 2]),
            ("--component-flags=^init", &[3]),
            ("! --component-flags=init", &[3]),
            ("--component-flags=stale", &[]),
            ("--component-flags=init --component-start=16M", &[2]),
            ("--mirror-id=1", &[]),
            ("--mirror-index 1", &[]),
            ("--mirror-index=-1", &[1, 2, 3]),
            ("! --mirror-id 1", &[1, 2, 3]),
            ("--mirror-id=+0", &[]),
        ] {
            assert_eq!(passing(words), expected, "{words}");
        }
    }

    #[test]
    fn wrong_values_are_named() {
        for (words, wrong) in [
            ("-Ix", "'x' is not a value of a component"),
            ("--component-start=abc", "'abc' is not a value of a component"),
            ("--component-flags=init,foo", "'foo' is not a flag"),
            ("--mirror-id=0", "invalid mirror ID '0'"),
            ("--mirror-index=65536", "invalid mirror index '65536'"),
            ("--mirror-index=1 --mirror-id=1", "can't specify both mirror index and mirror ID"),
        ] {
            let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
            let filter = ComponentFilter::new(&parse(OPTIONS, &words).unwrap());
            assert_eq!(filter, Err(wrong.to_owned()));
        }
    }
}
