//! The parameter tree: what `get_param`, `set_param` and `list_param` show and change (lctl(8)).
//!
//! Components register the values that users may see and tune, by dotted name, such as
//! `osc.stria-OST0000-osc.max_rpcs_in_flight`. The tree knows only names; values stay with their
//! owners and are accessed by closures, which must be short and must not wait. They are called
//! without the tree's lock, so they may use the tree.
//!
//! Invariant: no parameter's name is the beginning of another's, part by part: a node has a value
//! or children.
//!
//! Downside: values are text, and each owner parses its own; [`Parameter::number`] does it for the
//! usual ones.

mod glob;
mod near;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use types::size::{self, SizeError};

use glob::Glob;
pub use near::near;

/// Reads a value; several lines if it is a table.
pub type Getter = Box<dyn Fn() -> String + Send + Sync>;
/// Takes a value, or says why not, for people.
pub type Setter = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// A parameter.
pub struct Parameter {
    /// Reads it.
    pub get: Getter,
    /// Changes it; `None` if it cannot be changed.
    pub set: Option<Setter>,
    /// What it means, with its unit.
    pub doc: &'static str,
    /// Least and most value, of a number that can be set.
    pub range: Option<RangeInclusive<u64>>,
    /// Its value unless it is set.
    pub default: Option<String>,
}

impl Parameter {
    /// A parameter that can only be read.
    pub fn read_only(doc: &'static str, get: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { get: Box::new(get), set: None, doc, range: None, default: None }
    }

    /// A parameter that can be changed.
    pub fn writable(
        doc: &'static str,
        get: impl Fn() -> String + Send + Sync + 'static,
        set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self { get: Box::new(get), set: Some(Box::new(set)), doc, range: None, default: None }
    }

    /// The same, described as a number within `range`, which its setter enforces. Its present value
    /// is its default.
    pub fn within(self, range: RangeInclusive<u64>) -> Self {
        Self { range: Some(range), ..self.with_default() }
    }

    /// The same; its present value is its default.
    pub fn with_default(self) -> Self {
        Self { default: Some((self.get)()), ..self }
    }

    /// A number within `range` that its owner reads whenever it needs it.
    pub fn number(doc: &'static str, value: Arc<AtomicU64>, range: RangeInclusive<u64>) -> Self {
        let (read, allowed) = (value.clone(), range.clone());
        let set = move |text: &str| {
            value.store(parse_number(text, &allowed)?, Ordering::Relaxed);
            Ok(())
        };
        Self::writable(doc, move || read.load(Ordering::Relaxed).to_string(), set).within(range)
    }
}

/// A whole number within `range`, or what is wrong with the text.
pub fn parse_number(text: &str, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let expected = || format!("expected a number from {} to {}", range.start(), range.end());
    text.trim().parse().ok().filter(|number| range.contains(number)).ok_or_else(expected)
}

/// A size within `range` in units of `unit_bytes`, a power of two: a bare number of these units, or
/// one with a unit of its own ([`types::size`]). What is not a whole number of units is refused.
pub fn parse_size(text: &str, unit_bytes: u64, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let text = text.trim();
    if size::split(text).1.is_empty() {
        return parse_number(text, range);
    }
    let expected = || {
        let (least, most) = (range.start().saturating_mul(unit_bytes), range.end().saturating_mul(unit_bytes));
        let of_units = if unit_bytes > 1 { format!(", a multiple of {unit_bytes}") } else { String::new() };
        format!(
            "expected a number from {} to {}, or {least} to {most} bytes{of_units}, with a unit (K, MiB, MB)",
            range.start(),
            range.end()
        )
    };
    let bytes = match size::parse(text, unit_bytes) {
        Ok(bytes) => bytes,
        Err(ambiguous @ SizeError::Ambiguous { .. }) => return Err(ambiguous.to_string()),
        Err(SizeError::Malformed | SizeError::TooLarge) => return Err(expected()),
    };
    let whole = Some(bytes / unit_bytes).filter(|_| bytes.is_multiple_of(unit_bytes));
    whole.filter(|units| range.contains(units)).ok_or_else(expected)
}

/// Why a parameter was not shown or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// Nothing has such a name.
    #[error("no parameter matches '{0}'")]
    Unknown(String),
    /// It cannot be changed.
    #[error("'{0}' is read-only")]
    ReadOnly(String),
    /// Its owner does not accept the value.
    #[error("'{}' is not a value for '{name}': {reason}", shown(.value))]
    BadValue {
        /// The parameter.
        name: String,
        /// The refused value.
        value: String,
        /// Why, as its owner says.
        reason: String,
    },
    /// A name to register that is empty or holds other than letters, digits, `_`, `-`, `:`, `@`
    /// between separators.
    #[error("'{0}' is not a valid parameter name")]
    BadName(String),
    /// The name is taken, or is the beginning of another, or the other way round.
    #[error("parameter '{0}' is already registered")]
    Exists(String),
}

/// What a listed node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeKind {
    /// It has children (`/` in `list_param -F`).
    Branch,
    /// A value that can only be read.
    ReadOnly,
    /// A value that can be changed (`=` in `list_param -F`).
    Writable,
}

/// A node of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Full name, dotted.
    pub name: String,
    /// What it is.
    pub kind: NodeKind,
    /// What a value means; empty for branches.
    pub doc: &'static str,
    /// See [`Parameter::range`].
    pub range: Option<RangeInclusive<u64>>,
    /// See [`Parameter::default`].
    pub default: Option<String>,
}

/// The parameters of a process. Clones are the same tree.
#[derive(Clone, Default)]
pub struct ParameterTree {
    parameters: Arc<RwLock<BTreeMap<String, Arc<Parameter>>>>,
}

/// A refused value as messages show it: on one line, and not whole if it is long.
fn shown(value: &str) -> String {
    const CHARACTERS_MAX: usize = 100;
    let mut characters = value.chars().flat_map(char::escape_debug);
    let mut text: String = characters.by_ref().take(CHARACTERS_MAX).collect();
    if characters.next().is_some() {
        text.push_str("...");
    }
    text
}

impl ParameterTree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a parameter. `name` has parts separated by `.` or `/`.
    pub fn register(&self, name: &str, parameter: Parameter) -> Result<(), ParameterError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-:@".contains(c);
        let parts: Vec<&str> = glob::parts(name).collect();
        if parts.iter().any(|part| part.is_empty() || !part.chars().all(allowed)) {
            return Err(ParameterError::BadName(name.to_owned()));
        }
        let name = parts.join(".");
        let mut parameters = self.parameters.write();
        let is_below = |longer: &str, shorter: &str| {
            longer == shorter || longer.strip_prefix(shorter).is_some_and(|rest| rest.starts_with('.'))
        };
        let below = parameters.range(name.clone()..).take_while(|(other, _)| other.starts_with(&name));
        let taken = below.map(|(other, _)| other).any(|other| is_below(other, &name));
        let above = (1..parts.len()).any(|end| parameters.contains_key(&parts[..end].join(".")));
        if taken || above {
            return Err(ParameterError::Exists(name));
        }
        parameters.insert(name, Arc::new(parameter));
        Ok(())
    }

    /// Removes the parameters that match `glob` and all below what matches: an owner's when it
    /// ends. How many there were.
    pub fn unregister(&self, glob: &str) -> usize {
        let glob = Glob::new(glob);
        let mut parameters = self.parameters.write();
        let before = parameters.len();
        parameters.retain(|name, _| glob.matched_prefix(name).is_none());
        before - parameters.len()
    }

    /// Names and values of the parameters that match, sorted by name; at least one.
    pub fn get(&self, glob: &str) -> Result<Vec<(String, String)>, ParameterError> {
        let matching = self.matching(glob)?;
        Ok(matching.into_iter().map(|(name, parameter)| (name, (parameter.get)())).collect())
    }

    /// Sets all parameters that match, and returns their names with the values they now have. If
    /// one of them is read-only, none is changed; at the first that refuses the value the rest stay
    /// as they are.
    pub fn set(&self, glob: &str, value: &str) -> Result<Vec<(String, String)>, ParameterError> {
        self.set_those(glob, value, |_| true)
    }

    /// The same for those that match and are wanted by their names.
    pub fn set_those(
        &self,
        glob: &str,
        value: &str,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<(String, String)>, ParameterError> {
        let mut matching = self.matching(glob)?;
        matching.retain(|(name, _)| is_wanted(name));
        if let Some((name, _)) = matching.iter().find(|(_, parameter)| parameter.set.is_none()) {
            return Err(ParameterError::ReadOnly(name.clone()));
        }
        let mut changed = Vec::new();
        for (name, parameter) in matching {
            let set = parameter.set.as_ref().expect("read-only parameters were refused above");
            if let Err(mut reason) = set(value) {
                if !changed.is_empty() {
                    let names: Vec<_> = changed.iter().map(|(name, _): &(String, String)| name.as_str()).collect();
                    reason.push_str(&format!("; set before that: {}", names.join(", ")));
                }
                return Err(ParameterError::BadValue { name, value: value.to_owned(), reason });
            }
            let value = (parameter.get)();
            changed.push((name, value));
        }
        Ok(changed)
    }

    /// The nodes that match, sorted by name: values, and branches if the glob ends above values. At
    /// least one.
    pub fn list(&self, glob: &str) -> Result<Vec<Node>, ParameterError> {
        self.list_nodes(glob, false)
    }

    /// The nodes that match and every value below them, sorted by name; at least one.
    pub fn list_recursive(&self, glob: &str) -> Result<Vec<Node>, ParameterError> {
        self.list_nodes(glob, true)
    }

    /// The names of all parameters.
    pub fn names(&self) -> BTreeSet<String> {
        self.parameters.read().keys().cloned().collect()
    }

    fn list_nodes(&self, glob: &str, recursive: bool) -> Result<Vec<Node>, ParameterError> {
        let matcher = Glob::new(glob);
        let mut nodes = BTreeMap::new();
        for (name, parameter) in self.parameters.read().iter() {
            let Some(prefix) = matcher.matched_prefix(name) else { continue };
            if prefix.len() < name.len() {
                let name = prefix.to_owned();
                let branch = Node { name, kind: NodeKind::Branch, doc: "", range: None, default: None };
                nodes.insert(branch.name.clone(), branch);
            }
            if prefix.len() == name.len() || recursive {
                let kind = if parameter.set.is_some() { NodeKind::Writable } else { NodeKind::ReadOnly };
                let (range, default) = (parameter.range.clone(), parameter.default.clone());
                nodes.insert(name.clone(), Node { name: name.clone(), kind, doc: parameter.doc, range, default });
            }
        }
        if nodes.is_empty() {
            return Err(ParameterError::Unknown(glob.to_owned()));
        }
        Ok(nodes.into_values().collect())
    }

    /// The parameters whose whole name matches; at least one.
    fn matching(&self, glob: &str) -> Result<Vec<(String, Arc<Parameter>)>, ParameterError> {
        let matcher = Glob::new(glob);
        let parameters = self.parameters.read();
        let whole = parameters.iter().filter(|(name, _)| matcher.matched_prefix(name) == Some(name));
        let matching: Vec<_> = whole.map(|(name, parameter)| (name.clone(), parameter.clone())).collect();
        if matching.is_empty() {
            return Err(ParameterError::Unknown(glob.to_owned()));
        }
        Ok(matching)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (ParameterTree, Arc<AtomicU64>) {
        let tree = ParameterTree::new();
        let in_flight = Arc::new(AtomicU64::new(8));
        for ost in 0..3 {
            let name = format!("osc.stria-OST000{ost}-osc.max_rpcs_in_flight");
            tree.register(&name, Parameter::number("requests", in_flight.clone(), 1..=256)).unwrap();
            let name = format!("osc/stria-OST000{ost}-osc/kbytesfree");
            tree.register(&name, Parameter::read_only("free space, KiB", move || (ost * 100).to_string())).unwrap();
        }
        tree.register("version", Parameter::read_only("version", || "0.1.0".into())).unwrap();
        (tree, in_flight)
    }

    fn names(nodes: Result<Vec<Node>, ParameterError>) -> Vec<(String, NodeKind)> {
        nodes.unwrap().into_iter().map(|node| (node.name, node.kind)).collect()
    }

    #[test]
    fn values_are_read_by_name_and_by_glob() {
        let (tree, _) = tree();
        let value = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(tree.get("version").unwrap(), [value("version", "0.1.0")]);
        assert_eq!(
            tree.get("osc/*OST000?-osc.kbytesfree").unwrap(),
            [0, 1, 2].map(|ost| value(&format!("osc.stria-OST000{ost}-osc.kbytesfree"), &(ost * 100).to_string()))
        );
        for unknown in ["osc", "osc.*", "", "*.*.*.*", "version.x", "osc.stria-OST0009-osc.kbytesfree"] {
            assert_eq!(tree.get(unknown), Err(ParameterError::Unknown(unknown.to_owned())));
        }
    }

    #[test]
    fn values_are_set_or_refused_with_the_reason() {
        let (tree, in_flight) = tree();
        assert_eq!(tree.set("osc.*.max_rpcs_in_flight", "32").unwrap().len(), 3);
        assert_eq!(in_flight.load(Ordering::Relaxed), 32);
        for bad in ["0", "257", "many", "", "-1"] {
            let error = tree.set("osc.*.max_rpcs_in_flight", bad).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "'{bad}' is not a value for 'osc.stria-OST0000-osc.max_rpcs_in_flight': \
                     expected a number from 1 to 256"
                )
            );
        }
        assert_eq!(tree.set("version", "2").unwrap_err().to_string(), "'version' is read-only");
        assert!(matches!(tree.set("osc.*.*", "7"), Err(ParameterError::ReadOnly(_))));
        assert_eq!(tree.set("nothing", "2").unwrap_err().to_string(), "no parameter matches 'nothing'");
        assert_eq!(in_flight.load(Ordering::Relaxed), 32, "a refused set changes nothing");
        let is_wanted = |name: &str| name.contains("OST0001");
        let set = tree.set_those("osc.*.max_rpcs_in_flight", "16", is_wanted).unwrap();
        assert_eq!(set, [("osc.stria-OST0001-osc.max_rpcs_in_flight".to_owned(), "16".to_owned())]);
    }

    #[test]
    fn a_listing_tells_documentation_range_and_default() {
        let (tree, _) = tree();
        tree.set("osc.*.max_rpcs_in_flight", "32").unwrap();
        let found = tree.list("osc.stria-OST0000-osc.*").unwrap();
        let told: Vec<_> = found.into_iter().map(|node| (node.doc, node.range, node.default)).collect();
        assert_eq!(told, [("free space, KiB", None, None), ("requests", Some(1..=256), Some("8".to_owned()))]);
    }

    #[test]
    fn sizes_may_have_units() {
        let mib = |text: &str| parse_size(text, 1 << 20, &(0..=1 << 30)).ok();
        assert_eq!(
            (mib("64"), mib(" 64M "), mib("64MiB"), mib("64 Mi"), mib("2g"), mib("1T")),
            (Some(64), Some(64), Some(64), Some(64), Some(2048), Some(1 << 20))
        );
        assert_eq!(
            (mib("1024K"), mib("1048576B"), mib("512K"), mib("1MB"), mib("2P")),
            (Some(1), Some(1), None, None, None)
        );
        let bytes = |text: &str| parse_size(text, 1, &(65536..=4 << 30)).ok();
        assert_eq!(
            (bytes("64K"), bytes("4GiB"), bytes("65536"), bytes("100KB")),
            (Some(65536), Some(4 << 30), Some(65536), Some(100_000))
        );
        for wrong in
            ["", "K", "-1M", "1X", "1Kb", "1KiBB", "1Bi", "1M2", "99999999999999999999K", "16E", "63K", "5G", "1\u{e4}"]
        {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
        let said = parse_size("1X", 1 << 20, &(0..=16)).unwrap_err();
        assert_eq!(
            said,
            "expected a number from 0 to 16, or 0 to 16777216 bytes, a multiple of 1048576, with a unit (K, MiB, MB)"
        );
        let said = parse_size("1mb", 1 << 20, &(0..=16)).unwrap_err();
        assert!(said.contains("ambiguous"), "{said}");
    }

    #[test]
    fn listing_shows_branches_and_what_is_below() {
        let (tree, _) = tree();
        let node = |name: &str, kind| (name.to_owned(), kind);
        assert_eq!(names(tree.list("*")), [node("osc", NodeKind::Branch), node("version", NodeKind::ReadOnly)]);
        assert_eq!(names(tree.list("osc.*0002*")), [node("osc.stria-OST0002-osc", NodeKind::Branch)]);
        let below = names(tree.list_recursive("osc.*0002*"));
        assert_eq!(below.len(), 3);
        assert_eq!(below[2], node("osc.stria-OST0002-osc.max_rpcs_in_flight", NodeKind::Writable));
        assert_eq!(tree.list("osc.x"), Err(ParameterError::Unknown("osc.x".into())));
    }

    #[test]
    fn names_are_checked_and_unique() {
        let (tree, _) = tree();
        let register = |name: &str| tree.register(name, Parameter::read_only("", String::new));
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a*", "\u{e4}"] {
            assert_eq!(register(bad), Err(ParameterError::BadName(bad.to_owned())));
        }
        for taken in ["version", "osc", "osc.stria-OST0000-osc", "version.minor"] {
            assert_eq!(register(taken), Err(ParameterError::Exists(taken.to_owned())));
        }
        register("osc-more").unwrap();
        register("versions").unwrap();
        assert_eq!(tree.unregister("osc.stria-OST0001-osc"), 2);
        assert_eq!(tree.get("osc.*.kbytesfree").unwrap().len(), 2);
        assert_eq!(tree.unregister("osc.stria-OST0001-osc"), 0);
    }

    #[test]
    fn owners_may_use_the_tree() {
        let (tree, _) = tree();
        let inner = tree.clone();
        let count = move || inner.get("osc.*.*").map_or(0, |all| all.len()).to_string();
        tree.register("count", Parameter::read_only("", count)).unwrap();
        assert_eq!(tree.get("count").unwrap()[0].1, "6");
    }
}
