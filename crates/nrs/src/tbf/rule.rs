//! Rules: which rate a class of requests has. As lctl(8) writes them in `nrs_tbf_rule`:
//!
//! ```text
//! start NAME CONDITIONS rate=RATE [rank=OTHER]   before all others, or before OTHER
//! change NAME [rate=RATE] [rank=OTHER]
//! stop NAME
//! ```
//!
//! Invariant: the last rule is `default`, which is for everything.

use std::ops::RangeInclusive;

use super::conditions::Conditions;
use crate::{ClassBy, Facts, Refused};

/// Requests per second of a class.
pub const RATES: RangeInclusive<u32> = 1..=1_000_000;
/// Most rules of a service.
pub const RULES_MAX: usize = 256;
/// Rate of the rule `default` until it is changed.
const RATE_DEFAULT: u32 = 10_000;
/// Longest text of a rule.
const TEXT_BYTES_MAX: usize = 4096;
const NAME_BYTES_MAX: usize = 15;
const DEFAULT: &str = "default";

/// A change of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleCommand {
    /// A new rule.
    Start {
        /// Its name.
        name: String,
        /// What it is for.
        conditions: Conditions,
        /// Requests per second.
        rate: u32,
        /// The rule before which it stands.
        rank: Option<String>,
    },
    /// Another rate or place.
    Change {
        /// The rule.
        name: String,
        /// Requests per second.
        rate: Option<u32>,
        /// The rule before which it stands.
        rank: Option<String>,
    },
    /// The end of a rule.
    Stop(String),
}

impl RuleCommand {
    /// The command in a text, for classes by `class_by`. `opcodes`: all there are.
    pub fn parse(text: &str, class_by: ClassBy, opcodes: &[&'static str]) -> Result<Self, Refused> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Refused::new(format!("a rule has at most {TEXT_BYTES_MAX} characters")));
        }
        let (first, rest) = split_word(text);
        let (command, rest) = match first {
            "reg" => split_word(rest),
            "hp" => return Err(Refused::new(crate::selection::HIGH_PRIORITY)),
            _ => (first, rest),
        };
        let (name, rest) = split_word(rest);
        match command {
            "start" => {
                let name = check_name(name)?;
                let Some(brace) = rest.rfind('}') else {
                    return Err(Refused::new(
                        "expected CONDITIONS rate=RATE after the name, such as jobid={dd.*} rate=100",
                    ));
                };
                let (conditions, options) = rest.split_at(brace + 1);
                if let Some(sign) = options.trim_start().chars().next().filter(|first| ['&', ','].contains(first)) {
                    return Err(Refused::new(format!("expected a condition such as uid={{0}} after '{sign}'")));
                }
                let (rate, rank) = parse_options(options)?;
                let rate = rate.ok_or_else(|| Refused::new("a rule has a rate after its conditions: rate=100"))?;
                let conditions = Conditions::parse(conditions, class_by, opcodes)?;
                Ok(RuleCommand::Start { name, conditions, rate, rank })
            }
            "change" => {
                let (rate, rank) = parse_options(rest)?;
                if (&rate, &rank) == (&None, &None) {
                    return Err(Refused::new("nothing to change; allowed: rate=RATE, rank=RULE"));
                }
                Ok(RuleCommand::Change { name: check_name(name)?, rate, rank })
            }
            "stop" if rest.is_empty() => Ok(RuleCommand::Stop(check_name(name)?)),
            "stop" => Err(Refused::new(format!("'{rest}' is not expected after stop {name}"))),
            _ => Err(Refused::new(format!(
                "expected start NAME CONDITIONS rate=RATE, change NAME rate=RATE or stop NAME, found '{command}'"
            ))),
        }
    }
}

/// The first word, and what follows it.
fn split_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim_start())
}

fn check_name(name: &str) -> Result<String, Refused> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_allowed) {
        let text = format!("'{name}' is not a name of a rule: 1 to {NAME_BYTES_MAX} letters, digits, '_' or '-'");
        return Err(Refused::new(text));
    }
    Ok(name.to_owned())
}

/// Rate and rank.
fn parse_options(text: &str) -> Result<(Option<u32>, Option<String>), Refused> {
    let (mut rate, mut rank) = (None, None);
    for word in text.split_whitespace() {
        match word.split_once('=') {
            Some(("rate", value)) if rate.is_none() => {
                let parsed = value.parse().ok().filter(|rate| RATES.contains(rate));
                let expected = || Refused::new(format!("expected a rate from {} to {}", RATES.start(), RATES.end()));
                rate = Some(parsed.ok_or_else(expected)?);
            }
            Some(("rank", value)) if rank.is_none() => rank = Some(check_name(value)?),
            _ => return Err(Refused::new(format!("'{word}' is not expected; allowed: rate=RATE, rank=RULE"))),
        }
    }
    Ok((rate, rank))
}

#[derive(Debug)]
struct Rule {
    name: String,
    conditions: Conditions,
    rate: u32,
}

/// The rules of a service, in the order in which they are compared.
#[derive(Debug)]
pub struct Rules(Vec<Rule>);

impl Default for Rules {
    fn default() -> Self {
        let (name, conditions) = (DEFAULT.to_owned(), Conditions::everything());
        Self(vec![Rule { name, conditions, rate: RATE_DEFAULT }])
    }
}

impl Rules {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Place of the rule for a request.
    pub fn place_for(&self, facts: &Facts) -> usize {
        self.0.iter().position(|rule| rule.conditions.are_met(facts)).expect("the last rule is for everything")
    }

    /// Time between two tokens, rounded up: the rate is not exceeded.
    pub fn interval_ns(&self, place: usize) -> u64 {
        1_000_000_000_u64.div_ceil(u64::from(self.0[place].rate))
    }

    /// Changes the rules, or nothing.
    pub fn change(&mut self, command: RuleCommand) -> Result<(), Refused> {
        match command {
            RuleCommand::Start { name, conditions, rate, rank } => {
                if self.0.iter().any(|rule| rule.name == name) {
                    return Err(Refused::new(format!("there is a rule {name} already; change or stop it")));
                }
                if self.0.len() >= RULES_MAX {
                    return Err(Refused::new(format!("there are {RULES_MAX} rules, the most a service has")));
                }
                let place = rank.map_or(Ok(0), |rank| self.find(&rank))?;
                self.0.insert(place, Rule { name, conditions, rate });
            }
            RuleCommand::Change { name, rate, rank } => {
                let place = self.find(&name)?;
                if let Some(rank) = &rank {
                    self.find(rank)?;
                    if name == DEFAULT {
                        return Err(Refused::new("the rule default is always the last one"));
                    }
                }
                if let Some(rate) = rate {
                    self.0[place].rate = rate;
                }
                if let Some(rank) = rank.filter(|rank| *rank != name) {
                    let rule = self.0.remove(place);
                    let place = self.find(&rank)?;
                    self.0.insert(place, rule);
                }
            }
            RuleCommand::Stop(name) if name == DEFAULT => {
                return Err(Refused::new("the rule default cannot be stopped; its rate can be changed"));
            }
            RuleCommand::Stop(name) => {
                let place = self.find(&name)?;
                self.0.remove(place);
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize, Refused> {
        self.0.iter().position(|rule| rule.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.0.iter().map(|rule| rule.name.as_str()).collect();
            Refused::new(format!("there is no rule {name}; there are: {}", names.join(", ")))
        })
    }

    /// One line each, as Lustre shows them.
    pub fn show(&self, class_by: ClassBy, classes: &[usize]) -> String {
        let line = |(Rule { name, conditions, rate }, classes): (&Rule, &usize)| match class_by.single() {
            None => format!("{name} {} {rate}, ref {classes}\n", conditions.text()),
            Some(_) => format!("{name} {{{}}} {rate}, ref {classes}\n", conditions.text()),
        };
        self.0.iter().zip(classes).map(line).collect()
    }
}
