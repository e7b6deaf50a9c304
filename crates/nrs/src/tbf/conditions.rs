//! What a rule is for: `jobid={dd.* cp.0}`, and, for tbf by several fields, such conditions joined
//! by `&` (and) and `,` (or, which binds less).

// Addresses alone: `core` has no sockets.
use core::net::IpAddr;
use std::ops::RangeInclusive;

use types::limits::JOB_NAME_BYTES_MAX;

use super::pattern::{Pattern, parse_range};
use crate::{ClassBy, Facts, Field, Refused};

/// Most conditions of a rule.
const CONDITIONS_MAX: usize = 32;
/// Most values of a condition.
const VALUES_MAX: usize = 64;

/// The conditions of a rule. One of them is fulfilled if all its parts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    any_of: Vec<Vec<Condition>>,
    /// As it is shown: without the field if all rules have the same.
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Nid(Vec<Pattern>),
    Job(Vec<Pattern>),
    Opcode(Vec<&'static str>),
    Uid(Vec<RangeInclusive<u32>>),
    Gid(Vec<RangeInclusive<u32>>),
    Project(Vec<RangeInclusive<u32>>),
}

impl Condition {
    fn is_met(&self, facts: &Facts) -> bool {
        let has = |ranges: &[RangeInclusive<u32>], id: u32| ranges.iter().any(|range| range.contains(&id));
        match self {
            Condition::Nid(patterns) => patterns.iter().any(|pattern| pattern.matches(&facts.nid)),
            Condition::Job(patterns) => patterns.iter().any(|pattern| pattern.matches(facts.job.as_str())),
            Condition::Opcode(opcodes) => opcodes.contains(&facts.opcode),
            Condition::Uid(ranges) => has(ranges, facts.uid),
            Condition::Gid(ranges) => has(ranges, facts.gid),
            Condition::Project(ranges) => has(ranges, facts.project),
        }
    }

    /// `field={values}`.
    fn parse(text: &str, class_by: ClassBy, opcodes: &[&'static str]) -> Result<Self, Refused> {
        let expected = || Refused::new(format!("expected a condition such as jobid={{dd.0 cp.*}}, found '{text}'"));
        let (field, values) = text.trim().split_once('=').ok_or_else(expected)?;
        let field = Field::parse(field)?;
        // All requests of a class must meet the same conditions.
        if !class_by.has(field) {
            let found = field.as_str();
            let allowed: Vec<_> = Field::ALL.into_iter().filter(|field| class_by.has(*field)).collect();
            let allowed: Vec<_> = allowed.iter().map(|field| format!("{}={{...}}", field.as_str())).collect();
            let allowed = allowed.join(" and ");
            let text = format!("rules of tbf {class_by} are for {allowed}, not for {found}; tbf takes all");
            return Err(Refused::new(text));
        }
        let values = values.strip_prefix('{').and_then(|values| values.strip_suffix('}')).ok_or_else(expected)?;
        if values.contains(['{', '}']) {
            return Err(Refused::new(format!(
                "conditions are joined by '&' (both) or ',' (one of them), and values have no braces: '{text}'"
            )));
        }
        let values: Vec<&str> = values.split_whitespace().collect();
        if values.is_empty() || values.len() > VALUES_MAX {
            return Err(Refused::new(format!("a condition has 1 to {VALUES_MAX} values: '{text}'")));
        }
        let nid = |value: &&str| Pattern::parse(&nid_text(value)?);
        let job = |value: &&str| {
            let pattern = Pattern::parse(value)?;
            if pattern.bytes_min() > JOB_NAME_BYTES_MAX {
                let text = format!("names of jobs have at most {JOB_NAME_BYTES_MAX} characters: '{value}'");
                return Err(Refused::new(text));
            }
            Ok(pattern)
        };
        let ids = || {
            let id = |value: &&str| {
                parse_range(value).ok_or_else(|| {
                    Refused::new(format!("expected ids such as 500 or 500-510, with blanks between them: '{value}'"))
                })
            };
            values.iter().map(id).collect::<Result<Vec<_>, _>>()
        };
        let opcode = |value: &&str| {
            let found = opcodes.iter().find(|opcode| *opcode == value).copied();
            found.ok_or_else(|| Refused::new(format!("unknown opcode '{value}'; allowed: {}", opcodes.join(", "))))
        };
        match field {
            Field::Nid => values.iter().map(nid).collect::<Result<_, _>>().map(Condition::Nid),
            Field::Job => values.iter().map(job).collect::<Result<_, _>>().map(Condition::Job),
            Field::Opcode => values.iter().map(opcode).collect::<Result<_, _>>().map(Condition::Opcode),
            Field::Uid => ids().map(Condition::Uid),
            Field::Gid => ids().map(Condition::Gid),
            Field::Project => ids().map(Condition::Project),
        }
    }
}

/// Networks of addresses: of connections, and of what runs in the server's process.
const NETWORKS: [&str; 2] = ["tcp", "lo"];

/// A pattern of addresses as those of requests are written: one that no address can match is
/// refused. `@tcp0` is `@tcp`.
fn nid_text(value: &str) -> Result<String, Refused> {
    let expected = || {
        let text = format!("expected an address such as 10.0.0.1@tcp, 10.0.[0-3].*@tcp or 10.0.0.*, found '{value}'");
        Refused::new(text)
    };
    let Some((address, network)) = value.split_once('@') else {
        return if value.ends_with('*') && is_possible(value, "*") { Ok(value.to_owned()) } else { Err(expected()) };
    };
    let name = network.strip_suffix('0').unwrap_or(network);
    let is_known = network == "*" || NETWORKS.contains(&name);
    if is_known && is_possible(address, name) { Ok(format!("{address}@{name}")) } else { Err(expected()) }
}

/// Whether a request can have such an address, as far as that shows without trying all of them.
fn is_possible(address: &str, network: &str) -> bool {
    if address.contains(['*', '[']) {
        return address.bytes().all(|byte| byte.is_ascii_hexdigit() || b"*[],-.:".contains(&byte));
    }
    match network {
        "lo" => address == "0",
        _ => address.parse::<IpAddr>().is_ok() || (network == "*" && address == "0"),
    }
}

impl Conditions {
    /// What every request fulfils.
    pub fn everything() -> Self {
        Self { any_of: vec![Vec::new()], text: "*".to_owned() }
    }

    /// The conditions in a text, for classes by `class_by`. `opcodes`: all there are.
    pub fn parse(text: &str, class_by: ClassBy, opcodes: &[&'static str]) -> Result<Self, Refused> {
        let mut any_of = Vec::new();
        for all_of in split_outside_braces(text, ',') {
            let conditions = split_outside_braces(all_of, '&');
            let conditions = conditions.into_iter().map(|condition| Condition::parse(condition, class_by, opcodes));
            any_of.push(conditions.collect::<Result<Vec<_>, _>>()?);
        }
        if any_of.iter().map(Vec::len).sum::<usize>() > CONDITIONS_MAX {
            return Err(Refused::new(format!("a rule has at most {CONDITIONS_MAX} conditions")));
        }
        let single = class_by.single();
        if let Some(field) = single.map(Field::as_str)
            && any_of.iter().map(Vec::len).sum::<usize>() > 1
        {
            return Err(Refused::new(format!(
                "a rule of tbf {field} has one condition, {field}={{...}}; tbf takes several"
            )));
        }
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = match single {
            None => text,
            Some(_) => text.split_once('=').map_or("", |(_, values)| values.trim_matches(['{', '}'])).trim().to_owned(),
        };
        Ok(Self { any_of, text })
    }

    /// Whether a request fulfils them.
    pub fn are_met(&self, facts: &Facts) -> bool {
        self.any_of.iter().any(|all_of| all_of.iter().all(|condition| condition.is_met(facts)))
    }

    /// As they are shown.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The parts between separators that are not within `{` and `}`.
fn split_outside_braces(text: &str, separator: char) -> Vec<&str> {
    let mut is_within = false;
    text.split(|character| {
        is_within = match character {
            '{' => true,
            '}' => false,
            _ => is_within,
        };
        character == separator && !is_within
    })
    .collect()
}
