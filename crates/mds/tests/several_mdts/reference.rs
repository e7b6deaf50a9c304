//! What the operations mean on one MDT, and whether what several MDTs did can be explained by it.

use std::collections::{BTreeMap, BTreeSet};

use super::vocabulary::{Answer, Ino, Place, ROOT, Request};

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    pub entries: BTreeMap<Place, Ino>,
}

impl Reference {
    pub fn found(&self, at: Place) -> Option<Ino> {
        self.entries.get(&at).copied()
    }

    fn exists(&self, ino: Ino) -> bool {
        ino == ROOT || self.entries.values().any(|named| *named == ino)
    }

    fn is_empty(&self, directory: Ino) -> bool {
        !self.entries.keys().any(|at| at.0 == directory)
    }

    /// Whether a directory is another one, or in it.
    fn is_below(&self, mut directory: Ino, above: Ino) -> bool {
        // Loops are refused, so this ends.
        while directory != above {
            match self.entries.iter().find(|(_, ino)| **ino == directory) {
                Some((at, _)) => directory = at.0,
                None => return false,
            }
        }
        true
    }

    pub fn run(&mut self, request: Request) -> Answer {
        match request {
            Request::Lookup(at) => Answer::Found(self.found(at)),
            Request::Links(ino) => Answer::Links(self.entries.values().filter(|named| **named == ino).count() as u8),
            _ => self.change(request).map_or(Answer::Failed, |()| Answer::Done),
        }
    }

    fn change(&mut self, request: Request) -> Option<()> {
        match request {
            Request::Create(at, ino) | Request::Mkdir(at, ino) | Request::Link(ino, at) => {
                let linkable = !matches!(request, Request::Link(..)) || self.exists(ino);
                (linkable && self.exists(at.0) && self.found(at).is_none()).then_some(())?;
                self.entries.insert(at, ino);
            }
            Request::Unlink(at) => {
                self.found(at).filter(|ino| !ino.is_directory())?;
                self.entries.remove(&at);
            }
            Request::Rmdir(at) => {
                self.found(at).filter(|ino| ino.is_directory() && self.is_empty(*ino))?;
                self.entries.remove(&at);
            }
            Request::Rename(from, to) => {
                let moved = self.found(from).filter(|_| self.exists(to.0))?;
                let replaced = self.found(to);
                if replaced == Some(moved) {
                    return Some(());
                }
                if let Some(replaced) = replaced {
                    let alike = moved.is_directory() == replaced.is_directory();
                    (alike && (!replaced.is_directory() || self.is_empty(replaced))).then_some(())?;
                }
                (!moved.is_directory() || !self.is_below(to.0, moved)).then_some(())?;
                self.entries.remove(&from);
                self.entries.insert(to, moved);
            }
            Request::Exchange(from, to) => {
                let (one, two) = (self.found(from)?, self.found(to)?);
                let loops = |directory: Ino, moved: Ino| moved.is_directory() && self.is_below(directory, moved);
                if one != two && (loops(to.0, one) || loops(from.0, two)) {
                    return None;
                }
                self.entries.insert(from, two);
                self.entries.insert(to, one);
            }
            Request::Lookup(_) | Request::Links(_) => return None,
        }
        Some(())
    }
}

/// An operation as its client has seen it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub request: Request,
    pub answer: Answer,
    /// Operations that had been answered before this one was asked, as bits.
    pub after: u32,
    /// It may have left nothing: a power loss took changes of its coordinator that were not durable
    /// when it was answered, or it changed nothing, and answered what a power loss has taken.
    pub may_be_undone: bool,
}

/// Whether there is an order of the operations, one after the other, that gives these answers and
/// leaves these names.
pub fn explains(start: &Reference, seen: &[Seen], end: &Reference) -> bool {
    let mut known = BTreeSet::new();
    fits(start.clone(), seen, 0, end, &mut known)
}

fn fits(now: Reference, seen: &[Seen], done: u32, end: &Reference, known: &mut BTreeSet<(u32, Reference)>) -> bool {
    if !known.insert((done, now.clone())) {
        return false;
    }
    if done == (1 << seen.len()) - 1 {
        return now == *end;
    }
    (0..seen.len()).filter(|index| done & (1 << index) == 0).any(|index| {
        let one = seen[index];
        let next = done | 1 << index;
        if one.after & !done != 0 {
            return false;
        }
        if one.may_be_undone && fits(now.clone(), seen, next, end, known) {
            return true;
        }
        let mut after = now.clone();
        after.run(one.request) == one.answer && fits(after, seen, next, end, known)
    })
}
