//! Reads layouts that were written as YAML: by `lfs getstripe -y`, or by people who edited that.
//!
//! Accepted: `key: value` lines in any order within a component, components in order, each starting
//! with `- lcme_id` (or with any other key after a dash below `components:`). Objects, generations,
//! flags and verbose fields are accepted and ignored. Unknown keys are refused, so that a misspelt
//! one is not silently lost.

use types::{OstIndex, limits::STRIPE_COUNT_MAX};

use crate::{
    automatic,
    limits::END_OF_FILE,
    spec::{self, BackingSpec, ComponentSpec, LayoutSpec, StripeCount, StripeSpec},
};

/// Why text is not a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    /// Not `key: value`, or an unknown key.
    #[error("line {line}: '{text}' is not a field of a layout")]
    Field {
        /// Number, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// A value.
    #[error("line {line}: '{value}' is not a value of {key}")]
    Value {
        /// Number, from 1.
        line: usize,
        /// Which field.
        key: String,
        /// What it says.
        value: String,
    },
    /// Components do not follow each other.
    #[error("a component begins at {0}, not where the one before it ends")]
    Gap(u64),
    /// Nothing in it.
    #[error("it contains no layout")]
    Empty,
    /// More than one mirror.
    #[error("mirrored layouts are not supported")]
    Mirrored,
}

/// Fields that say what a layout became, not what was asked for.
const IGNORED: &[&str] = &[
    "lmm_magic",
    "lmm_seq",
    "lmm_object_id",
    "lmm_fid",
    "lmm_layout_gen",
    "lmm_mdt_index",
    "lmm_objects",
    "l_ost_idx",
    "l_fid",
    "lcm_magic",
    "lcm_size",
    "lcm_flags",
    "lcm_layout_gen",
    "lcm_entry_count",
    "composite_header",
    "sub_layout",
    "lcme_id",
    "lcme_mirror_id",
    "lcme_offset",
    "lcme_size",
];

/// One component as far as it is read.
#[derive(Clone, Debug)]
struct Draft {
    start: u64,
    end: u64,
    extension: bool,
    mdt: bool,
    automatic: bool,
    overstriped: bool,
    count: i64,
    step_bytes: u64,
    stripes: StripeSpec,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            start: 0,
            end: END_OF_FILE,
            extension: false,
            mdt: false,
            automatic: false,
            overstriped: false,
            count: 0,
            step_bytes: 0,
            stripes: StripeSpec::default(),
        }
    }
}

/// What the text asks for. Whether it is possible is [`LayoutSpec::validate`]'s to say. The OST of
/// the first stripe of a file with objects is not taken over.
pub fn parse(text: &str) -> Result<LayoutSpec, YamlError> {
    let (mut drafts, mut composite, mut objects): (Vec<Draft>, bool, bool) = (Vec::new(), false, false);
    for (number, raw) in (1..).zip(text.lines()) {
        let trimmed = raw.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') || trimmed == "---" {
            continue;
        }
        let bare = trimmed.trim_start_matches("- ");
        let field = || YamlError::Field { line: number, text: trimmed.to_owned() };
        let (key, value) = bare.split_once(':').ok_or_else(field)?;
        let (key, value) = (key.trim(), value.trim());
        if key == "components" {
            (composite, objects) = (true, false);
            drafts.clear();
            continue;
        }
        let begins = composite && trimmed.starts_with("- ") && !key.starts_with("l_");
        if begins || drafts.is_empty() {
            drafts.push(Draft::default());
            objects = false;
        }
        objects |= key == "lmm_objects";
        let draft = drafts.last_mut().expect("one was just pushed");
        if objects {
            draft.stripes.first_ost = None;
        }
        if !IGNORED.contains(&key) {
            let wrong = || YamlError::Value { line: number, key: key.to_owned(), value: value.to_owned() };
            if key == "lcm_mirror_count" {
                if value != "1" {
                    return Err(YamlError::Mirrored);
                }
            } else if !draft.set(key, value).ok_or_else(wrong)? {
                return Err(field());
            }
        }
    }
    finish(drafts, composite)
}

impl Draft {
    /// Takes a field over. `None`: the value is wrong; false: there is no such field.
    fn set(&mut self, key: &str, value: &str) -> Option<bool> {
        match key.strip_prefix("lmm_").unwrap_or(key) {
            "stripe_count" => self.count = value.parse().ok()?,
            "stripe_size" => self.stripes.stripe_bytes = Some(value.parse().ok()?).filter(|bytes| *bytes != 0),
            "extension_size" => self.step_bytes = value.parse().ok()?,
            "stripe_offset" => self.stripes.first_ost = first_ost(value)?,
            "pool" => self.stripes.pool = Some(value.to_owned()).filter(|pool| !pool.is_empty()),
            "pattern" => {
                self.mdt = value == "mdt";
                self.automatic |= value == "automatic";
                self.overstriped = value == "raid0,overstriped";
                matches!(value, "raid0" | "0" | "mdt" | "automatic" | "raid0,overstriped").then_some(())?;
            }
            "lcme_flags" => {
                self.extension = value.split(',').any(|flag| flag == "extension");
                self.automatic |= value.split(',').any(|flag| flag == "automatic");
            }
            "lcme_extent.e_start" => self.start = value.parse().ok()?,
            "lcme_extent.e_end" => self.end = if value == "EOF" { END_OF_FILE } else { value.parse().ok()? },
            _ => return Some(false),
        }
        Some(true)
    }

    fn stripes(mut self) -> Option<StripeSpec> {
        self.stripes.stripe_count = match (self.count, self.overstriped) {
            (0, _) => StripeCount::Default,
            (-1, false) => StripeCount::All,
            (count, true) if count < 0 => StripeCount::PerOst(u32::try_from(count.checked_neg()?).ok()?),
            (count, overstriped) => {
                let count = u32::try_from(count).ok().filter(|count| *count <= STRIPE_COUNT_MAX)?;
                if overstriped { StripeCount::Overstriped(count) } else { StripeCount::Exactly(count) }
            }
        };
        Some(self.stripes)
    }
}

fn first_ost(value: &str) -> Option<Option<OstIndex>> {
    match value.strip_prefix("0x") {
        _ if value == "-1" => Some(None),
        Some(digits) => u16::from_str_radix(digits, 16).ok().map(|index| Some(OstIndex(index))),
        None => value.parse().ok().map(|index| Some(OstIndex(index))),
    }
}

fn finish(drafts: Vec<Draft>, composite: bool) -> Result<LayoutSpec, YamlError> {
    let count = |draft: &Draft| {
        let (key, value) = ("stripe_count".to_owned(), draft.count.to_string());
        YamlError::Value { line: 0, key, value }
    };
    if !composite {
        let draft = drafts.into_iter().next().ok_or(YamlError::Empty)?;
        if draft.automatic {
            return Ok(LayoutSpec::Automatic);
        }
        let error = count(&draft);
        return draft.stripes().map(LayoutSpec::Plain).ok_or(error);
    }
    let (mut components, mut at): (Vec<ComponentSpec>, u64) = (Vec::new(), 0);
    for draft in drafts {
        if draft.start != at {
            return Err(YamlError::Gap(draft.start));
        }
        at = draft.end;
        let (end, error) = (draft.end, count(&draft));
        if draft.extension
            && let Some(before) = components.last_mut()
            && let BackingSpec::Striped(stripes) = &before.backing
        {
            before.backing = BackingSpec::Extended(stripes.clone(), draft.step_bytes);
            before.end = end;
            continue;
        }
        let backing = match (draft.mdt, draft.automatic) {
            (true, _) => BackingSpec::Mdt,
            (_, true) => BackingSpec::Automatic,
            _ => BackingSpec::Striped(draft.stripes().ok_or(error)?),
        };
        spec::push(&mut components, ComponentSpec { end, backing });
    }
    if components.is_empty() { Err(YamlError::Empty) } else { Ok(automatic::recognised(components)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripe_counts_out_of_bounds_are_refused_whatever_their_sign() {
        for count in [i64::MIN, i64::MIN + 1, -(1 << 40), i64::MAX] {
            for pattern in ["raid0", "raid0,overstriped"] {
                let text = format!("lmm_stripe_count: {count}\nlmm_pattern: {pattern}\n");
                assert!(matches!(parse(&text), Err(YamlError::Value { .. })), "{text}");
            }
        }
    }
}
