//! RAID-0 striping: which byte of a file is which byte of which object. Numbers only:
//! [`crate::PlainLayout`] says which targets hold the objects.
//!
//! ```text
//! stripe_bytes = S, stripe_count = 3           object offsets
//! file      |  0  |  1  |  2  |  3  |  4  |    object 0: stripe 0 at 0, stripe 3 at S
//! object       0     1     2     0     1       object 1: stripe 1 at 0, stripe 4 at S
//! ```
//!
//! Invariants: file bytes and object bytes are in bijection; the bytes a contiguous file range has
//! in one object are contiguous there; the file's size is the largest of the sizes its objects
//! imply. All functions are total: no argument overflows or panics as long as both numbers are
//! positive and the object exists. The caller checks limits on file sizes.

/// Stripe `n` of the file (bytes `n*stripe_bytes..(n+1)*stripe_bytes`) is in object
/// `n % stripe_count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    /// Bytes per stripe; not 0.
    pub stripe_bytes: u64,
    /// Number of objects; not 0.
    pub stripe_count: u32,
}

/// What a file range has in one object; contiguous there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeRange {
    /// Which object.
    pub index: u32,
    /// First byte within the object.
    pub offset: u64,
    /// Bytes; never 0.
    pub bytes: u64,
}

impl Striping {
    /// The object that holds the byte at `offset` of the file.
    pub fn index_of(self, offset: u64) -> u32 {
        (offset / self.stripe_bytes % u64::from(self.stripe_count)) as u32
    }

    /// The offset within its object of the byte at `offset` of the file.
    pub fn object_offset(self, offset: u64) -> u64 {
        let round = offset / self.stripe_bytes / u64::from(self.stripe_count);
        round * self.stripe_bytes + offset % self.stripe_bytes
    }

    /// The inverse: which byte of the file is the byte at `object_offset` of an object. Saturates
    /// at `u64::MAX`, which no valid file reaches: an object that large is damaged.
    pub fn file_offset(self, index: u32, object_offset: u64) -> u64 {
        self.check(index);
        let (round, within) = (object_offset / self.stripe_bytes, object_offset % self.stripe_bytes);
        round
            .checked_mul(u64::from(self.stripe_count))
            .and_then(|stripes| stripes.checked_add(u64::from(index)))
            .and_then(|stripe| stripe.checked_mul(self.stripe_bytes))
            .and_then(|start| start.checked_add(within))
            .unwrap_or(u64::MAX)
    }

    /// The size of an object if the file has `file_size` bytes: how many of the file's first
    /// `file_size` bytes are in it. A truncation of the file to a size truncates each object to
    /// this.
    pub fn object_size(self, index: u32, file_size: u64) -> u64 {
        self.check(index);
        let (stripes, rest) = (file_size / self.stripe_bytes, file_size % self.stripe_bytes);
        let count = u64::from(self.stripe_count);
        let (rounds, index_of_end) = (stripes / count, stripes % count);
        let last = match u64::from(index).cmp(&index_of_end) {
            std::cmp::Ordering::Less => self.stripe_bytes,
            std::cmp::Ordering::Equal => rest,
            std::cmp::Ordering::Greater => 0,
        };
        rounds * self.stripe_bytes + last
    }

    /// The file size that an object of `object_size` bytes implies: just past its last byte. The
    /// file's size is the largest over all objects.
    pub fn file_size(self, index: u32, object_size: u64) -> u64 {
        match object_size.checked_sub(1) {
            None => 0,
            Some(last) => self.file_offset(index, last).saturating_add(1),
        }
    }

    /// Splits the file range of `bytes` from `offset`: one entry per object touched, in the order
    /// in which the range first touches them. A range that would pass `u64::MAX` ends there.
    pub fn ranges(self, offset: u64, bytes: u64) -> impl Iterator<Item = StripeRange> {
        let end = offset.saturating_add(bytes);
        let touched = match end.checked_sub(1) {
            Some(last) if last >= offset => (last / self.stripe_bytes - offset / self.stripe_bytes).saturating_add(1),
            _ => 0,
        };
        let count = u64::from(self.stripe_count);
        let first = u64::from(self.index_of(offset));
        (0..touched.min(count)).map(move |step| {
            let index = ((first + step) % count) as u32;
            let start = self.object_size(index, offset);
            StripeRange { index, offset: start, bytes: self.object_size(index, end) - start }
        })
    }

    fn check(self, index: u32) {
        assert!(index < self.stripe_count, "object {index} of {} stripes", self.stripe_count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use types::limits::{FILE_BYTES_MAX, STRIPE_BYTES_MAX, STRIPE_BYTES_MIN};

    use super::*;

    #[test]
    fn walks_three_stripes() {
        let striping = Striping { stripe_bytes: 65536, stripe_count: 3 };
        let ranges: Vec<_> = striping.ranges(65536 * 2 + 100, 65536 * 2).collect();
        let summary: Vec<_> = ranges.iter().map(|range| (range.index, range.offset, range.bytes)).collect();
        assert_eq!(summary, [(2, 100, 65436), (0, 65536, 65536), (1, 65536, 100)]);
        assert_eq!(striping.object_size(0, 65536 * 3 + 5), 65541);
        assert_eq!(striping.object_size(1, 65536 * 3 + 5), 65536);
        assert_eq!(striping.file_size(1, 1), 65537);
        assert_eq!(striping.file_size(1, 0), 0);
        assert_eq!(striping.ranges(12345, 0).count(), 0);
    }

    #[test]
    fn absurd_objects_saturate() {
        let striping = Striping { stripe_bytes: 4 << 20, stripe_count: 2000 };
        assert_eq!(striping.file_offset(1999, u64::MAX), u64::MAX);
        assert_eq!(striping.file_size(1999, u64::MAX), u64::MAX);
        let end: u64 = striping.ranges(u64::MAX - 10, 100).map(|range| range.bytes).sum();
        assert_eq!(end, 10);
    }

    prop_compose! {
        fn stripings()(units in 1u64..=64, large in any::<bool>(), stripe_count in 1u32..=40) -> Striping {
            let small = units * STRIPE_BYTES_MIN;
            Striping { stripe_bytes: if large { STRIPE_BYTES_MAX - small } else { small }, stripe_count }
        }
    }

    proptest! {
        #[test]
        fn file_and_object_bytes_are_in_bijection(striping in stripings(), offset in 0..=FILE_BYTES_MAX) {
            let index = striping.index_of(offset);
            prop_assert!(index < striping.stripe_count);
            let object_offset = striping.object_offset(offset);
            prop_assert!(object_offset <= offset);
            prop_assert_eq!(striping.file_offset(index, object_offset), offset);
            prop_assert_eq!(striping.object_size(index, offset), object_offset);
        }

        #[test]
        fn sizes_agree(striping in stripings(), size in prop_oneof![0..=FILE_BYTES_MAX, 0..=(1u64 << 30)]) {
            let sizes: Vec<u64> = (0..striping.stripe_count).map(|index| striping.object_size(index, size)).collect();
            prop_assert_eq!(sizes.iter().sum::<u64>(), size);
            let implied = sizes.iter().enumerate().map(|(index, &bytes)| striping.file_size(index as u32, bytes)).max();
            prop_assert_eq!(implied, Some(size));
        }
    }
}
