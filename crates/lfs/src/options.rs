//! Option parsing like that of getopt_long(3), because `lfs` users rely on it: options and operands
//! in any order, clustered short options, `--long=value`, unambiguous abbreviations, negative
//! numbers as values, `--` ends options.
//!
//! Operands are paths: any bytes. Options and their values are words and numbers: bytes in them
//! that are not text are replaced, and the code that reads the value refuses them.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

/// The option that negates the one after it: a `!` of its own. Commands that understand it have it
/// in their table.
pub const NOT: &str = "!";

/// Whether an option takes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// It is a switch.
    Nothing,
    /// It needs a value.
    Value,
    /// It may have one: attached (`-c4`) or after `=`.
    OptionalValue,
}

/// One option a command knows.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Short letter, if any.
    pub short: Option<char>,
    /// Long names; the first is the one the command matches on.
    pub long: &'static [&'static str],
    /// Value.
    pub takes: Takes,
}

/// Shorthand for the tables of options.
pub const fn option(short: char, long: &'static [&'static str], takes: Takes) -> OptionSpec {
    OptionSpec { short: Some(short), long, takes }
}

/// An option without a short letter.
pub const fn long_option(long: &'static [&'static str], takes: Takes) -> OptionSpec {
    OptionSpec { short: None, long, takes }
}

/// What was found on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Options in order: canonical long name and value.
    pub options: Vec<(&'static str, Option<String>)>,
    /// Everything else, in order.
    pub operands: Vec<OsString>,
}

impl Parsed {
    /// Whether the option was given.
    pub fn has(&self, name: &str) -> bool {
        self.options.iter().any(|(found, _)| *found == name)
    }

    /// Value of the option's last occurrence.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(found, _)| *found == name).and_then(|(_, value)| value.as_deref())
    }

    /// All options in order: name, value, and whether [`NOT`] stands before it.
    pub fn with_negation(&self) -> Vec<(&'static str, Option<&str>, bool)> {
        let mut negated = false;
        let mut found = Vec::with_capacity(self.options.len());
        for (name, value) in &self.options {
            if *name != NOT {
                found.push((*name, value.as_deref(), negated));
            }
            negated = *name == NOT;
        }
        found
    }
}

/// Why the command line is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such option.
    #[error("unrecognized option '{0}'")]
    Unrecognized(String),
    /// Several options begin like this.
    #[error("option '{0}' is ambiguous")]
    Ambiguous(String),
    /// The option needs a value.
    #[error("option '{0}' requires an argument")]
    MissingValue(String),
    /// A switch was given a value.
    #[error("option '{0}' doesn't allow an argument")]
    UnexpectedValue(String),
}

/// Parses `arguments` by the table of `specs`.
pub fn parse(specs: &[OptionSpec], arguments: &[OsString]) -> Result<Parsed, OptionError> {
    parse_by(specs, arguments, false)
}

/// As [`parse`], but long options may begin with a single `-` too, if they are written in full
/// (`-name`), as find(1) has them.
pub fn parse_long_only(specs: &[OptionSpec], arguments: &[OsString]) -> Result<Parsed, OptionError> {
    parse_by(specs, arguments, true)
}

fn parse_by(specs: &[OptionSpec], arguments: &[OsString], long_only: bool) -> Result<Parsed, OptionError> {
    let mut parsed = Parsed::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == NOT && specs.iter().any(|spec| spec.long == [NOT]) {
            parsed.options.push((NOT, None));
            continue;
        }
        if !is_option(argument) {
            parsed.operands.push(argument.clone());
            continue;
        }
        let text = argument.to_string_lossy();
        if text == "--" {
            parsed.operands.extend(rest.by_ref().cloned());
        } else if let Some(long) = text.strip_prefix("--") {
            parse_long(specs, long, &mut rest, &mut parsed)?;
        } else if long_only && is_long(specs, &text[1..]) {
            parse_long(specs, &text[1..], &mut rest, &mut parsed)?;
        } else {
            parse_cluster(specs, &text[1..], &mut rest, &mut parsed)?;
        }
    }
    Ok(parsed)
}

/// Whether `text`, what stands after a single `-`, is a long option in full, with or without a
/// value.
fn is_long(specs: &[OptionSpec], text: &str) -> bool {
    let name = text.split_once('=').map_or(text, |(name, _)| name);
    name.len() > 1 && specs.iter().any(|spec| spec.long.contains(&name))
}

/// Whether an argument is an option; a single `-` is a path.
fn is_option(argument: &OsStr) -> bool {
    argument.len() > 1 && argument.as_bytes()[0] == b'-'
}

/// The next argument as an option's value; `shown` names the option.
fn next_value<'a>(
    rest: &mut impl Iterator<Item = &'a OsString>,
    shown: impl FnOnce() -> String,
) -> Result<String, OptionError> {
    let value = rest.next().ok_or_else(|| OptionError::MissingValue(shown()))?;
    Ok(value.to_string_lossy().into_owned())
}

fn parse_long<'a>(
    specs: &[OptionSpec],
    text: &str,
    rest: &mut impl Iterator<Item = &'a OsString>,
    parsed: &mut Parsed,
) -> Result<(), OptionError> {
    let (name, attached) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    let spec = find_long(specs, name)?;
    let shown = || format!("--{name}");
    let value = match (spec.takes, attached) {
        (Takes::Nothing, None) | (Takes::OptionalValue, None) => None,
        (Takes::Nothing, Some(_)) => return Err(OptionError::UnexpectedValue(shown())),
        (_, Some(value)) => Some(value),
        (Takes::Value, None) => Some(next_value(rest, shown)?),
    };
    parsed.options.push((spec.long[0], value));
    Ok(())
}

fn find_long<'s>(specs: &'s [OptionSpec], name: &str) -> Result<&'s OptionSpec, OptionError> {
    if let Some(exact) = specs.iter().find(|spec| spec.long.contains(&name)) {
        return Ok(exact);
    }
    let mut candidates = specs.iter().filter(|spec| spec.long.iter().any(|long| long.starts_with(name)));
    match (candidates.next(), candidates.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(OptionError::Ambiguous(format!("--{name}"))),
        (None, _) => Err(OptionError::Unrecognized(format!("--{name}"))),
    }
}

fn parse_cluster<'a>(
    specs: &[OptionSpec],
    cluster: &str,
    rest: &mut impl Iterator<Item = &'a OsString>,
    parsed: &mut Parsed,
) -> Result<(), OptionError> {
    for (position, letter) in cluster.char_indices() {
        let shown = || format!("-{letter}");
        let spec =
            specs.iter().find(|spec| spec.short == Some(letter)).ok_or_else(|| OptionError::Unrecognized(shown()))?;
        let attached = &cluster[position + letter.len_utf8()..];
        let value = match spec.takes {
            Takes::Nothing => {
                parsed.options.push((spec.long[0], None));
                continue;
            }
            _ if !attached.is_empty() => Some(attached.to_owned()),
            Takes::OptionalValue => None,
            Takes::Value => Some(next_value(rest, shown)?),
        };
        parsed.options.push((spec.long[0], value));
        return Ok(());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECS: &[OptionSpec] = &[
        option('c', &["stripe-count", "count"], Takes::Value),
        option('S', &["stripe-size"], Takes::OptionalValue),
        option('v', &["verbose"], Takes::Nothing),
        option('q', &["quiet"], Takes::Nothing),
        long_option(&["hex-idx"], Takes::Nothing),
    ];

    fn parse_words(words: &str) -> Result<Parsed, OptionError> {
        parse(SPECS, &words.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_and_operands_mix() {
        let parsed = parse_words("a -c -1 -vq b --hex --stripe-count=3 -- -c").unwrap();
        assert_eq!(parsed.operands, ["a", "b", "-c"]);
        assert_eq!(parsed.value("stripe-count"), Some("3"));
        assert!(parsed.has("verbose") && parsed.has("quiet") && parsed.has("hex-idx"));
    }

    #[test]
    fn optional_values_must_be_attached() {
        let parsed = parse_words("-S file -S4M").unwrap();
        assert_eq!(parsed.operands, ["file"]);
        assert_eq!(parsed.value("stripe-size"), Some("4M"));
    }

    #[test]
    fn long_options_may_have_a_single_dash_where_that_is_understood() {
        let words = ["-hex-idx", "-stripe-count=2", "-c3", "-count", "-vq"].map(OsString::from);
        let parsed = parse_long_only(SPECS, &[&words[..], &["-quiet".into()]].concat()).unwrap();
        let given: Vec<_> = parsed.options.iter().map(|(name, value)| (*name, value.as_deref())).collect();
        let count = |value| ("stripe-count", Some(value));
        assert_eq!(given, [("hex-idx", None), count("2"), count("3"), count("-vq"), ("quiet", None)]);
    }

    #[test]
    fn operands_may_have_any_bytes() {
        let operand = OsStr::from_bytes(b"caf\xe9").to_owned();
        let words = [OsStr::from_bytes(b"-c").to_owned(), OsStr::from_bytes(b"1\xff").to_owned(), operand.clone()];
        let parsed = parse(SPECS, &words).unwrap();
        assert_eq!(parsed.operands, [operand]);
        assert_eq!(parsed.value("stripe-count"), Some("1\u{fffd}"));
        let unknown = parse(SPECS, &[OsStr::from_bytes(b"-\xff").to_owned()]);
        assert_eq!(unknown, Err(OptionError::Unrecognized("-\u{fffd}".into())));
    }

    #[test]
    fn errors_name_the_option() {
        assert_eq!(parse_words("-Q x"), Err(OptionError::Unrecognized("-Q".into())));
        assert_eq!(parse_words("--nope"), Err(OptionError::Unrecognized("--nope".into())));
        assert_eq!(parse_words("--stripe"), Err(OptionError::Ambiguous("--stripe".into())));
        assert_eq!(parse_words("-c"), Err(OptionError::MissingValue("-c".into())));
        assert_eq!(parse_words("--quiet=1"), Err(OptionError::UnexpectedValue("--quiet".into())));
    }
}
