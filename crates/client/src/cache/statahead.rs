//! Statahead: which names of a listing a program will look at next. Pure.
//!
//! A program that looks at the names of a directory one after the other would ask the MDT for each
//! of them. If the listing is known, attributes of the names that follow are asked for with one
//! request instead, as a page of the directory, which brings a lock for each. Lustre does the same
//! (`statahead`); as there, the order is that of the listing. Programs that sort the names first
//! (shells, rsync), or by the numbers of the inodes (du), get a page around a name in the listing
//! instead: one that looks at many names probably looks at all of them, in the end. If what was
//! asked for so is not used, or known already, pages stay small and rare: a page of the first size
//! takes the MDT as long as a few lookups, so what is asked for in vain at most doubles the cost.
//! If as much waits for its use as fits among the locks of the MDT, nothing more is asked for
//! around names.
//!
//! [`Statahead`] is told only of lookups that the cache could not answer. It knows nothing that has
//! to be true: a listing that has changed costs a few lookups.

use std::collections::BTreeMap;

use types::InodeNumber;

use super::{
    listings::{Listed, Names},
    name_index::NameIndex,
};

/// Names by which a lookup may be ahead of the one that was expected: others are known, or were
/// removed by a filter of the program.
const NEAR: usize = 8;
/// Lookups in order before anything is asked for ahead.
const RUN: u32 = 2;
/// Lookups in another order before a page around one of them is asked for.
const OUT_OF_ORDER_MAX: u32 = 4;
/// Names that are asked for first; the number doubles as long as lookups are in order, or as pages
/// are useful.
const WINDOW_FIRST: u32 = 32;
/// With pages of so many names, lookups in another order are many: each asks for a page.
const WINDOW_LARGE: u32 = 128;
/// Entries that are passed over with the cache locked.
const STEPS_MAX: usize = 4096;
/// Directories in which programs look at names: with more, all begin again.
const DIRECTORIES_MAX: usize = 256;

/// Names of a directory that are to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Those after this position.
    pub cookie: u64,
    /// How many.
    pub count: u32,
}

/// What follows from a lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// What to ask for before this name.
    pub ahead: Option<Ahead>,
    /// Lookups were in order, and this one is not.
    pub has_left_order: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Statahead {
    directories: BTreeMap<InodeNumber, Progress>,
}

/// What a step is decided by.
pub(crate) struct Looked<'a, K> {
    /// The name that is looked up. Its attributes are not known.
    pub name: &'a [u8],
    /// The names of its directory that are known, from the first one on.
    pub entries: &'a Names,
    pub index: &'a mut NameIndex,
    /// Ask for at most so many names.
    pub names_max: u32,
    /// Whether what is asked for around a name would not drive out what waits for its use.
    pub has_room: bool,
    /// Whether what was asked for ahead lately was used.
    pub is_useful: bool,
    /// Whether the attributes of an inode are known.
    pub is_known: K,
}

impl<K: Fn(InodeNumber) -> bool> Looked<'_, K> {
    fn is_passed(&self, entry: &Listed) -> bool {
        matches!(&*entry.name, b"." | b"..") || (self.is_known)(entry.inode)
    }

    /// So many names from a position on, and how many of them are not known.
    fn page(&self, from: u64, window: u32) -> Option<(Ahead, u64, u32)> {
        let page = self.entries.range(from..).take(window as usize);
        let count = |(count, unknown, _): (u32, u32, u64), (cookie, entry): (&u64, &Listed)| {
            (count + 1, unknown + u32::from(!self.is_passed(entry)), *cookie)
        };
        let (count, unknown, last) = page.fold((0, 0, 0), count);
        let cookie = self.entries.range(..from).next_back().map_or(0, |(cookie, _)| *cookie);
        (count > 0).then_some((Ahead { cookie, count }, last, unknown))
    }

    /// The first position of a page around the name: of what is not known, as much before it as
    /// after it, or more where there is less on the other side.
    fn around(&mut self, window: u32) -> Option<u64> {
        let position = self.index.find(self.entries, self.name)?;
        let after = self.entries.range(position..).take(window.div_ceil(2) as usize);
        let after = after.take_while(|(_, entry)| !self.is_passed(entry)).count();
        let before = self.entries.range(..position).rev().take(window as usize - after);
        let first = before.take_while(|(_, entry)| !self.is_passed(entry)).last();
        Some(first.map_or(position, |(cookie, _)| *cookie))
    }
}

impl Statahead {
    /// A name is looked up in a directory.
    pub fn step<K: Fn(InodeNumber) -> bool>(&mut self, directory: InodeNumber, looked: Looked<'_, K>) -> Step {
        if self.directories.len() >= DIRECTORIES_MAX && !self.directories.contains_key(&directory) {
            self.directories.clear();
        }
        self.directories.entry(directory).or_default().step(looked)
    }
}

/// How far a program has got in a listing.
#[derive(Debug, Default)]
struct Progress {
    /// The cookie from which on entries may be unknown, for lookups in order.
    next: u64,
    in_order: u32,
    window: u32,
    /// The same for lookups in another order.
    out_of_order: u32,
    window_out_of_order: u32,
}

impl Progress {
    /// A name is looked up.
    fn step<K: Fn(InodeNumber) -> bool>(&mut self, mut looked: Looked<'_, K>) -> Step {
        let entries = looked.entries;
        let rest = entries.range(self.next..).take(STEPS_MAX);
        if let Some((passed, _)) = rest.take_while(|(_, entry)| looked.is_passed(entry)).last() {
            self.next = passed.saturating_add(1);
        }
        let near = |from: u64| {
            let mut near = entries.range(from..).take(NEAR);
            near.find(|(_, entry)| *entry.name == *looked.name).map(|(cookie, _)| *cookie)
        };
        let was_in_order = self.in_order >= RUN;
        match (near(self.next), near(0)) {
            (Some(found), _) => (self.next, self.in_order) = (found, self.in_order + 1),
            // From the beginning again.
            (None, Some(found)) => *self = Self { next: found, in_order: 1, ..Self::default() },
            (None, None) => (self.in_order, self.window) = (0, 0),
        }
        let has_left_order = was_in_order && self.in_order == 0;
        let ahead = match looked.names_max {
            0 => None,
            _ if self.in_order >= RUN => self.after(&looked),
            _ if looked.has_room => self.around(&mut looked),
            _ => None,
        };
        Step { ahead, has_left_order }
    }

    /// The page that follows the last one.
    fn after<K: Fn(InodeNumber) -> bool>(&mut self, looked: &Looked<'_, K>) -> Option<Ahead> {
        self.window = (self.window * 2).max(WINDOW_FIRST).min(looked.names_max);
        let (ahead, last, _) = looked.page(self.next, self.window)?;
        self.next = last.saturating_add(1);
        Some(ahead)
    }

    /// A page around the name.
    fn around<K: Fn(InodeNumber) -> bool>(&mut self, looked: &mut Looked<'_, K>) -> Option<Ahead> {
        if !looked.is_useful {
            self.window_out_of_order = 0;
        }
        self.out_of_order += 1;
        let patience = if self.window_out_of_order < WINDOW_LARGE { OUT_OF_ORDER_MAX } else { 1 };
        if self.out_of_order < patience {
            return None;
        }
        let window = (self.window_out_of_order * 2).max(WINDOW_FIRST).min(looked.names_max);
        let first = looked.around(window)?;
        let (ahead, _, unknown) = looked.page(first, window)?;
        self.out_of_order = 0;
        self.window_out_of_order = if 2 * unknown < ahead.count { 0 } else { window };
        Some(ahead)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeSet};

    use types::FileKind;

    use super::*;

    const MAX: u32 = 128;

    /// A listing of so many names, and the inodes whose attributes are known.
    struct Walk {
        entries: Names,
        index: NameIndex,
        has_room: bool,
        is_useful: bool,
        known: RefCell<BTreeSet<u64>>,
        progress: Progress,
        lookups: usize,
        pages: Vec<Ahead>,
    }

    impl Walk {
        fn new(names: u64) -> Self {
            let listed = |name: String, number: u64| Listed {
                name: name.into_bytes().into(),
                inode: InodeNumber(number),
                kind: FileKind::Regular,
                cookie: number * 10,
            };
            let by_cookie = |entry: Listed| (entry.cookie, entry);
            let dots = [listed(".".to_owned(), 1), listed("..".to_owned(), 2)];
            let entries = dots.into_iter().chain((3..names + 3).map(|number| listed(format!("f{number}"), number)));
            let (known, progress) = (RefCell::default(), Progress::default());
            Self {
                entries: entries.map(by_cookie).collect(),
                index: NameIndex::default(),
                has_room: true,
                is_useful: true,
                known,
                progress,
                lookups: 0,
                pages: Vec::new(),
            }
        }

        /// Looks at a name as the client does.
        fn look(&mut self, number: u64) -> Step {
            if self.known.borrow().contains(&number) {
                return Step::default();
            }
            let name = format!("f{number}");
            let known = |inode: InodeNumber| self.known.borrow().contains(&inode.0);
            let step = self.progress.step(Looked {
                name: name.as_bytes(),
                entries: &self.entries,
                index: &mut self.index,
                names_max: MAX,
                has_room: self.has_room,
                is_useful: self.is_useful,
                is_known: known,
            });
            if let Some(ahead) = step.ahead {
                let after = self.entries.range(ahead.cookie + 1..).take(ahead.count as usize);
                self.known.borrow_mut().extend(after.map(|(_, entry)| entry.inode.0));
                self.pages.push(ahead);
            }
            self.lookups += usize::from(self.known.borrow_mut().insert(number));
            step
        }

        fn look_at(&mut self, numbers: impl Iterator<Item = u64>) {
            for number in numbers {
                self.look(number);
            }
        }
    }

    #[test]
    fn lookups_in_order_need_few_requests() {
        let mut walk = Walk::new(1000);
        (3..1003).for_each(|number| assert!(!walk.look(number).has_left_order));
        assert_eq!(walk.lookups, 1);
        let counts: Vec<u32> = walk.pages.iter().map(|page| page.count).collect();
        assert_eq!(counts, [32, 64, 128, 128, 128, 128, 128, 128, 128, 7]);
        assert_eq!(walk.pages[0].cookie, 30, "after the name that was looked at first");
    }

    #[test]
    fn what_is_known_already_is_passed_over() {
        let mut walk = Walk::new(1000);
        walk.known.borrow_mut().extend(3..503);
        walk.look_at(3..1003);
        assert_eq!((walk.lookups, walk.pages[0].cookie), (1, 5030));
    }

    #[test]
    fn lookups_in_another_order_ask_for_what_is_around_them() {
        let mut walk = Walk::new(10_000);
        // The first searches make the index.
        (0..3).for_each(|_| assert_eq!(walk.index.find(&walk.entries, b"f3"), Some(30)));
        // Each of a few names, far apart.
        let out_of_order = (0..20).map(|number| 9950 - number * 200);
        out_of_order.for_each(|number| assert!(!walk.look(number).has_left_order));
        let counts: Vec<u32> = walk.pages.iter().map(|page| page.count).collect();
        assert_eq!((walk.lookups, &counts[..4]), (9, &[32, 64, 128, 128][..]));
        assert_eq!(counts.len(), 3 + 8, "of twelve lookups each fourth asks for a page, then each");
        assert_eq!(walk.pages[0].cookie, (9350 - 16 - 1) * 10, "as much before the fourth name as after it");
        // All of them, in the order of other numbers: few lookups are left for each page.
        walk.look_at((0..10_000).map(|number| 3 + number * 6007 % 10_000));
        let pages = walk.pages.len();
        assert!(pages < 100 && walk.lookups < 60, "{pages} pages, {} lookups", walk.lookups);
        // Some of them again, after others have changed these.
        let changed: Vec<u64> = (0..40).map(|number| 9950 - number * 200).collect();
        walk.known.borrow_mut().retain(|number| !changed.contains(number));
        walk.pages.clear();
        walk.look_at(changed.into_iter());
        assert!(walk.pages[1..].iter().all(|page| page.count <= WINDOW_FIRST), "{:?}", walk.pages);
    }

    #[test]
    fn pages_stay_small_and_rare_if_nobody_uses_them() {
        let mut walk = Walk::new(10_000);
        walk.is_useful = false;
        walk.look_at((0..100).map(|number| 9950 - number * 90));
        assert!(walk.pages.len() <= 25 && walk.pages.iter().all(|page| page.count == WINDOW_FIRST), "{:?}", walk.pages);
    }

    #[test]
    fn nothing_is_asked_for_around_names_without_room() {
        let mut walk = Walk::new(1000);
        walk.has_room = false;
        walk.look_at((3..1003).rev());
        assert!(walk.pages.is_empty(), "{:?}", walk.pages);
        walk.known.borrow_mut().clear();
        walk.look_at(3..1003);
        assert!(walk.pages.len() > 4, "in order what is asked for is used next");
    }

    /// A program reads a part of the names, and looks at these before it reads on.
    #[test]
    fn what_is_listed_so_far_is_asked_for_ahead() {
        let mut walk = Walk::new(3000);
        let all = walk.entries.clone();
        for part in 0..3u64 {
            walk.entries =
                all.range(..(3 + (part + 1) * 1000) * 10).map(|(cookie, entry)| (*cookie, entry.clone())).collect();
            walk.look_at((3 + part * 1000..3 + (part + 1) * 1000).rev());
        }
        assert!(walk.lookups < 60 && walk.pages.len() < 40, "{} lookups, {:?}", walk.lookups, walk.pages);
    }

    #[test]
    fn a_walk_that_ends_has_left_order_once() {
        let mut walk = Walk::new(1000);
        walk.look_at(3..200);
        let asked = walk.pages.len();
        assert!(walk.look(900).has_left_order);
        assert!(!walk.look(700).has_left_order);
        assert_eq!(walk.pages.len(), asked);
    }

    #[test]
    fn a_second_walk_begins_at_the_beginning() {
        let mut walk = Walk::new(300);
        walk.look_at(3..303);
        walk.known.borrow_mut().clear();
        walk.pages.clear();
        walk.look_at(3..303);
        assert_eq!(walk.pages.iter().map(|page| page.count).collect::<Vec<_>>(), [32, 64, 128, 75]);
    }

    #[test]
    fn nothing_is_asked_for_if_that_is_switched_off() {
        let mut walk = Walk::new(10);
        let steps: Vec<Step> = (3..13u64)
            .map(|number| {
                walk.progress.step(Looked {
                    name: format!("f{number}").as_bytes(),
                    entries: &walk.entries,
                    index: &mut walk.index,
                    names_max: 0,
                    has_room: true,
                    is_useful: true,
                    is_known: |_| false,
                })
            })
            .collect();
        assert!(steps.iter().all(|step| step.ahead.is_none()));
    }
}
