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

/// A field of a request by which tbf distinguishes classes, and which rules name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// The client's address.
    Nid,
    /// The job.
    Job,
    /// The kind of request.
    Opcode,
    /// The user.
    Uid,
    /// The group.
    Gid,
    /// The project of the file whose data are read or changed.
    Project,
}

impl Field {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Field; 6] = [Field::Nid, Field::Job, Field::Opcode, Field::Uid, Field::Gid, Field::Project];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Field::Nid => "nid",
            Field::Job => "jobid",
            Field::Opcode => "opcode",
            Field::Uid => "uid",
            Field::Gid => "gid",
            Field::Project => "projid",
        }
    }

    /// The field of this name.
    pub fn parse(name: &str) -> Result<Self, Refused> {
        let found = Self::ALL.into_iter().find(|field| field.as_str() == name);
        found.ok_or_else(|| {
            Refused::new(format!("unknown field '{name}'; allowed: nid, jobid, opcode, uid, gid, projid"))
        })
    }
}

/// By what tbf distinguishes classes of requests, each with a bucket of its own: a set of fields,
/// at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassBy(u8);

impl ClassBy {
    /// By all fields together: plain `tbf`.
    pub const EVERYTHING: Self = Self((1 << Field::ALL.len()) - 1);

    /// By one field.
    pub const fn of(field: Field) -> Self {
        Self(1 << field as u8)
    }

    /// Whether this field is among them.
    pub const fn has(self, field: Field) -> bool {
        self.0 & Self::of(field).0 != 0
    }

    /// The only field, if there is one: rules then have one condition, for this field.
    pub fn single(self) -> Option<Field> {
        Field::ALL.into_iter().find(|field| Self::of(*field) == self)
    }

    /// The fields in a text such as `jobid` or `nid+jobid`.
    pub fn parse(text: &str) -> Result<Self, Refused> {
        let mut set = 0;
        for name in text.split('+') {
            let field = Self::of(Field::parse(name)?);
            if set & field.0 != 0 {
                return Err(Refused::new(format!("'{name}' is there twice in '{text}'")));
            }
            set |= field.0;
        }
        Ok(Self(set))
    }
}

/// The fields joined by `+`.
impl fmt::Display for ClassBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Field::ALL.into_iter().filter(|field| self.has(*field)).map(Field::as_str).collect();
        f.write_str(&names.join("+"))
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
        Self { name, class_by: ClassBy::EVERYTHING }
    }
}

/// What `nrs_policies` takes.
const POLICIES_ALLOWED: &str =
    "fifo, crrn, orr, trr, tbf [nid|jobid|opcode|uid|gid|projid, or several joined by +], delay";

/// As lctl(8) writes it: `crrn`, `tbf`, `tbf jobid`, `tbf nid+jobid`; `reg` may follow, as requests
/// of high priority have a service of their own.
impl FromStr for Selection {
    type Err = Refused;

    fn from_str(text: &str) -> Result<Self, Refused> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        let allowed = format!("allowed: {POLICIES_ALLOWED}");
        let Some(name) = PolicyName::ALL.into_iter().find(|policy| policy.as_str() == name) else {
            return Err(Refused::new(format!("unknown policy '{name}'; {allowed}")));
        };
        let mut selection = Selection::of(name);
        let mut word = words.next();
        if name == PolicyName::Tbf
            && let Some(fields) = word.filter(|word| !["reg", "hp"].contains(word))
        {
            selection.class_by = ClassBy::parse(fields)?;
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
            ClassBy::EVERYTHING => write!(f, "{}", self.name),
            class_by => write!(f, "{} {class_by}", self.name),
        }
    }
}
