//! Where the listing of an open directory is. One that has begun before the directory got shards
//! goes on in the shards: after what it has shown.

use rpc::message::mdt::{COOKIE_HASH_BITS, COOKIE_PARENT, first_cookie};

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct ListingPlace {
    /// The last page was that of a directory without shards.
    plain: bool,
    /// The last cookie before the directory had shards.
    split_at: Option<u64>,
}

impl ListingPlace {
    /// A page was given of a directory without shards.
    pub fn gave_plain(&mut self) {
        *self = Self { plain: true, split_at: None };
    }

    /// For the page after a cookie of a directory with shards: the cookie there, and the one up to
    /// which names were shown before there were shards.
    pub fn in_shards(&self, cookie: u64) -> (u64, Option<u64>) {
        match cookie {
            ..=COOKIE_PARENT => (cookie, None),
            // Also if the first page since then comes a second time.
            _ if self.plain || self.split_at == Some(cookie) => (COOKIE_PARENT, Some(cookie)),
            _ => (cookie, self.split_at),
        }
    }

    /// That page was given.
    pub fn gave_of_shards(&mut self, split_at: Option<u64>) {
        *self = Self { plain: false, split_at };
    }
}

/// Whether a name was shown up to this cookie of a directory without shards.
pub(crate) fn was_shown(name: &[u8], split_at: u64) -> bool {
    first_cookie(name, COOKIE_HASH_BITS) <= split_at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_goes_on_after_what_it_has_shown() {
        let mut place = ListingPlace::default();
        assert_eq!(place.in_shards(0), (0, None));
        assert_eq!(place.in_shards(500), (500, None), "it has always had shards");
        place.gave_plain();
        assert_eq!(place.in_shards(500), (COOKIE_PARENT, Some(500)));
        place.gave_of_shards(Some(500));
        assert_eq!(place.in_shards(500), (COOKIE_PARENT, Some(500)), "the page was lost on its way");
        assert_eq!(place.in_shards(1 << 53), (1 << 53, Some(500)));
        assert_eq!(place.in_shards(0), (0, None), "from the beginning");
        place.gave_of_shards(None);
        assert_eq!(place.in_shards(1 << 53), (1 << 53, None));
    }

    #[test]
    fn names_are_shown_in_the_order_of_their_cookies() {
        let cookie = first_cookie(b"name", COOKIE_HASH_BITS);
        assert!(was_shown(b"name", cookie) && !was_shown(b"name", cookie - 1));
    }
}
