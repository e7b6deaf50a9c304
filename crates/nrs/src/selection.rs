//! Names of policies, as in `nrs_policies`.

use std::{fmt, str::FromStr};

use crate::Refused;

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyName {
    /// First in, first out.
    Fifo,
    /// Round robin among clients.
    Crrn,
    /// Round robin among objects, by offset.
    Orr,
    /// Round robin among targets, by offset.
    Trr,
    /// Token buckets.
    Tbf,
    /// Delays.
    Delay,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [PolicyName; 6] =
        [PolicyName::Fifo, PolicyName::Crrn, PolicyName::Orr, PolicyName::Trr, PolicyName::Tbf, PolicyName::Delay];

    fn as_str(self) -> &'static str {
        match self {
            PolicyName::Fifo => "fifo",
            PolicyName::Crrn => "crrn",
            PolicyName::Orr => "orr",
            PolicyName::Trr => "trr",
            PolicyName::Tbf => "tbf",
            PolicyName::Delay => "delay",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// By what tbf distinguishes classes of requests, each with a bucket of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClassBy {
    /// By all of the following together.
    Everything,
    /// By the client's address.
    Nid,
    /// By job.
    Job,
    /// By kind of request.
    Opcode,
    /// By user.
    Uid,
    /// By group.
    Gid,
}

impl ClassBy {
    /// All that have a name: the fields that rules name.
    pub const NAMED: [ClassBy; 5] = [ClassBy::Nid, ClassBy::Job, ClassBy::Opcode, ClassBy::Uid, ClassBy::Gid];

    /// As rules name it; empty for all together.
    pub fn as_str(self) -> &'static str {
        match self {
            ClassBy::Everything => "",
            ClassBy::Nid => "nid",
            ClassBy::Job => "jobid",
            ClassBy::Opcode => "opcode",
            ClassBy::Uid => "uid",
            ClassBy::Gid => "gid",
        }
    }

    /// The field of this name.
    pub fn parse(name: &str) -> Result<Self, Refused> {
        if name == "projid" {
            return Err(Refused::new(
                "projid is not possible: requests do not carry project ids; allowed: nid, jobid, opcode, uid, gid",
            ));
        }
        let found = Self::NAMED.into_iter().find(|field| field.as_str() == name);
        found.ok_or_else(|| Refused::new(format!("unknown field '{name}'; allowed: nid, jobid, opcode, uid, gid")))
    }
}

/// A policy as it is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Which one.
    pub name: PolicyName,
    /// For tbf.
    pub class_by: ClassBy,
}

impl Selection {
    /// The usual one.
    pub const FIFO: Self = Self::of(PolicyName::Fifo);

    /// This policy; tbf by everything.
    pub const fn of(name: PolicyName) -> Self {
        Self { name, class_by: ClassBy::Everything }
    }
}

/// As lctl(8) writes it: `crrn`, `tbf`, `tbf jobid`; `reg` may follow, as requests of high priority
/// have a service of their own.
impl FromStr for Selection {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        let allowed = "allowed: fifo, crrn, orr, trr, tbf [nid|jobid|opcode|uid|gid], delay";
        let Some(name) = PolicyName::ALL.into_iter().find(|policy| policy.as_str() == name) else {
            return Err(Refused::new(format!("unknown policy '{name}'; {allowed}")));
        };
        let mut selection = Selection::of(name);
        let mut word = words.next();
        if name == PolicyName::Tbf
            && let Some(field) = word.filter(|word| !["reg", "hp"].contains(word))
        {
            selection.class_by = ClassBy::parse(field)?;
            word = words.next();
        }
        match (word, words.next()) {
            (None | Some("reg"), None) => Ok(selection),
            (Some("hp"), None) => Err(Refused::new(HIGH_PRIORITY)),
            (Some(word), _) => Err(Refused::new(format!("'{word}' is not expected after {selection}; {allowed}"))),
            (None, Some(_)) => unreachable!("no word follows the last one"),
        }
    }
}

/// Why `hp` is refused.
pub(crate) const HIGH_PRIORITY: &str =
    "hp is not possible: urgent requests have a service of their own, in order of arrival (ldlm_canceld)";

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class_by {
            ClassBy::Everything => write!(f, "{}", self.name),
            class_by => write!(f, "{} {}", self.name, class_by.as_str()),
        }
    }
}
