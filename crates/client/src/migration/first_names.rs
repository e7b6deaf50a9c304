//! The first names of a directory, in the order of their bytes: those that are worked on next, if
//! there may be more than are to be in memory. The directory is listed once more for those after
//! them, so it need not stay open, and its names may move meanwhile.

use std::{
    collections::{BTreeSet, btree_set},
    ffi::{OsStr, OsString},
};

/// See the module documentation.
pub struct FirstNames {
    /// Only those after this one.
    after: Option<OsString>,
    names: BTreeSet<OsString>,
    names_max: usize,
    has_more: bool,
}

impl FirstNames {
    /// Of those after this name, at most this many.
    pub fn after(after: Option<OsString>, names_max: usize) -> Self {
        Self { after, names: BTreeSet::new(), names_max, has_more: false }
    }

    /// A name that was listed.
    pub fn offer(&mut self, name: &OsStr) {
        if self.after.as_deref().is_some_and(|after| name <= after) {
            return;
        }
        let is_full = self.names.len() >= self.names_max;
        if is_full && self.names.last().is_some_and(|last| name > last) {
            self.has_more = true;
            return;
        }
        self.names.insert(name.to_owned());
        if self.names.len() > self.names_max {
            self.has_more = true;
            self.names.pop_last();
        }
    }

    /// The names, and the last of them if there are others after it.
    pub fn end(self) -> (btree_set::IntoIter<OsString>, Option<OsString>) {
        let last = if self.has_more { self.names.last().cloned() } else { None };
        (self.names.into_iter(), last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_come_once_and_few_at_a_time() {
        let listed = ["d", "a", "e", "c", "b", "", "c", "f"];
        for names_max in 1..9 {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let mut first = FirstNames::after(after, names_max);
                // In another order each time.
                let turned = found.len() % listed.len();
                for name in listed[turned..].iter().chain(&listed[..turned]) {
                    first.offer(OsStr::new(name));
                    assert!(first.names.len() <= names_max);
                }
                let (names, last) = first.end();
                found.extend(names);
                match last {
                    Some(last) => after = Some(last),
                    None => break,
                }
            }
            assert_eq!(found, ["", "a", "b", "c", "d", "e", "f"], "{names_max} at a time");
        }
    }
}
