//! Where the listing of an open directory is. One that has begun before all names of the directory
//! were in its shards shows what the directory has left, page after page, and then what the shards
//! have that it has not shown.
//!
//! Names move in the order of their cookies in the directory. So what a page shows is everything
//! that the directory has between two cookies, and what is missing there has moved.

use rpc::message::mdt::{COOKIE_HASH_BITS, COOKIE_PARENT, first_cookie};

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct ListingPlace {
    /// What pages of the directory itself have shown: names after the first cookie, up to the
    /// second one. In order.
    shown: Vec<(u64, u64)>,
    /// The last place that was told up to which names have moved; 0: none have, for all that is
    /// known.
    place: u64,
    /// The last cookie of the directory itself, if the listing goes on in the shards.
    in_shards: Option<u64>,
}

/// What is to be read after a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The directory itself.
    Directory,
    /// Its shards, after this cookie.
    Shards(u64),
}

impl ListingPlace {
    /// What comes after a cookie; `has_map`: the directory is known to have shards.
    pub fn after(&mut self, cookie: u64, has_map: bool) -> Next {
        if cookie <= COOKIE_PARENT {
            *self = Self::default();
        }
        match self.in_shards {
            // Also if the first page comes a second time.
            Some(last) if last == cookie => Next::Shards(COOKIE_PARENT),
            Some(_) => Next::Shards(cookie),
            // It has begun in the shards.
            None if has_map && self.shown.is_empty() && self.place == 0 => Next::Shards(cookie),
            None => Next::Directory,
        }
    }

    /// A page of the directory was given, after a cookie up to another one; `place`: names up to
    /// that have moved. False if names that had moved have come back, by a power loss: the listing
    /// has left some of them out.
    pub fn gave(&mut self, (cookie, last): (u64, u64), place: Option<u64>) -> bool {
        self.forget_after(cookie);
        if place.is_none() && self.place > 0 {
            return false;
        }
        self.place = self.place.max(place.unwrap_or(0));
        let from = cookie.max(place.unwrap_or(0));
        match self.shown.last_mut() {
            Some((_, to)) if *to == from => *to = last.max(from),
            _ if last > from => self.shown.push((from, last)),
            _ => {}
        }
        true
    }

    /// The directory has no names after this cookie. `place`: as of a page; `None`: all have moved.
    pub fn goes_on_in_shards(&mut self, cookie: u64, place: Option<u64>) {
        self.forget_after(cookie);
        self.place = self.place.max(place.unwrap_or(u64::MAX));
        self.in_shards = Some(cookie);
    }

    /// The place up to which a shard must have its names, so that the listing shows all.
    pub fn needed(&self) -> u64 {
        if self.in_shards.is_some() { self.place } else { u64::MAX }
    }

    /// Whether it goes on in the shards after what the directory itself had.
    pub fn is_in_shards(&self) -> bool {
        self.in_shards.is_some()
    }

    /// Whether a name was shown before the listing went on in the shards.
    pub fn has_shown(&self, name: &[u8]) -> bool {
        let cookie = first_cookie(name, COOKIE_HASH_BITS);
        let after = self.shown.partition_point(|(from, _)| *from < cookie);
        self.shown[..after].last().is_some_and(|(_, to)| cookie <= *to)
    }

    /// The kernel may ask again for a part of a page.
    fn forget_after(&mut self, cookie: u64) {
        let kept = self.shown.partition_point(|(from, _)| *from < cookie);
        self.shown.truncate(kept);
        if let Some((_, to)) = self.shown.last_mut() {
            *to = cookie.min(*to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_goes_on_after_what_it_has_shown() {
        let mut place = ListingPlace::default();
        assert_eq!((place.after(0, false), place.after(0, true)), (Next::Directory, Next::Shards(0)));
        assert_eq!(place.after(500, true), Next::Shards(500), "it has always had shards");
        assert_eq!(place.needed(), u64::MAX);
        assert!(place.gave((0, 500), None));
        assert_eq!(place.after(500, true), Next::Directory);
        place.goes_on_in_shards(500, None);
        assert_eq!(place.after(500, true), Next::Shards(COOKIE_PARENT));
        assert_eq!(place.after(500, true), Next::Shards(COOKIE_PARENT), "the page was lost on its way");
        assert_eq!((place.after(1 << 53, true), place.needed()), (Next::Shards(1 << 53), u64::MAX));
        assert_eq!(place.after(0, true), Next::Shards(0), "from the beginning");
    }

    #[test]
    fn what_pages_have_shown_is_known() {
        let mut place = ListingPlace::default();
        assert!(place.gave((0, 500), None));
        assert!(place.gave((500, 700), None));
        assert_eq!(place.shown, [(0, 700)]);
        assert!(place.gave((600, 800), None), "a part comes a second time");
        assert_eq!(place.shown, [(0, 800)]);
        // Names up to 1000 have moved.
        assert!(place.gave((800, 1200), Some(1000)));
        assert!(place.gave((1200, 1300), Some(1100)));
        assert_eq!(place.shown, [(0, 800), (1000, 1300)]);
        assert!(place.gave((900, 1150), Some(1100)), "a part comes a second time, and some of it has moved");
        assert_eq!(place.shown, [(0, 800), (1100, 1150)]);
        place.goes_on_in_shards(1150, Some(1100));
        assert_eq!((place.needed(), place.after(1150, true)), (1100, Next::Shards(COOKIE_PARENT)));
        // Pages that show no name change nothing.
        let mut dots = ListingPlace::default();
        assert!(dots.gave((0, COOKIE_PARENT), Some(1000)));
        assert_eq!(dots.shown, []);
    }

    #[test]
    fn names_that_came_back_are_noticed() {
        let mut place = ListingPlace::default();
        assert!(place.gave((0, 1200), Some(1000)));
        assert!(!place.gave((1200, 1300), None));
    }

    #[test]
    fn names_are_shown_in_the_order_of_their_cookies() {
        let cookie = first_cookie(b"name", COOKIE_HASH_BITS);
        for (ranges, is_shown) in [
            (&[(0, cookie)][..], true),
            (&[(0, 5), (cookie - 1, cookie + 9)], true),
            (&[(0, cookie - 1), (cookie, u64::MAX)], false),
            (&[], false),
        ] {
            let place = ListingPlace { shown: ranges.to_vec(), ..ListingPlace::default() };
            assert_eq!(place.has_shown(b"name"), is_shown, "{ranges:?}");
        }
    }
}
