//! Swapping the layouts of two files, and with them their data.
//!
//! Objects keep their names, which contain the number of the file for which they were created; each
//! layout says which number its objects have (`named_by`), and the count of slots moves with the
//! layout. So a name still means one object forever: a number is in the names of one layout's
//! objects at a time, wherever that layout is, and only that layout assigns slots for it.
//!
//! Data on the MDT are always named by their file: a swap moves them.

use types::{Generation, InodeNumber};

use crate::Layout;

/// The layouts that the first and the second file have after swapping.
pub fn swapped(first: (InodeNumber, &Layout), second: (InodeNumber, &Layout)) -> (Layout, Layout) {
    // Beyond both, so that clients that know the old layout of either learn of the new one.
    let generation = first.1.generation.max(second.1.generation).next();
    (moved(second, first.0, generation), moved(first, second.0, generation))
}

fn moved((from, layout): (InodeNumber, &Layout), to: InodeNumber, generation: Generation) -> Layout {
    let namer = layout.namer(from);
    Layout { generation, named_by: (namer != to).then_some(namer), ..layout.clone() }
}

/// The layout of a file that gets another number.
pub fn renumbered(layout: &Layout, from: InodeNumber, to: InodeNumber) -> Layout {
    moved((from, layout), to, layout.generation)
}

#[cfg(test)]
mod tests {
    use types::{ObjectId, OstIndex};

    use super::*;
    use crate::{BackingSpec, ComponentSpec, END_OF_FILE, Location, PlainLayout, StripeSpec};

    const FIRST: InodeNumber = InodeNumber(7);
    const SECOND: InodeNumber = InodeNumber(9);

    fn plain(count: u16) -> Layout {
        let plain = PlainLayout { stripe_bytes: 65536, osts: (0..count).map(OstIndex).collect() };
        Layout::plain(Generation(1), plain, StripeSpec::default())
    }

    fn on_mdt() -> Layout {
        let asked = [
            ComponentSpec { end: 65536, backing: BackingSpec::Mdt },
            ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) },
        ];
        let mut layout = Layout::composite(&asked);
        let plain = PlainLayout { stripe_bytes: 65536, osts: vec![OstIndex(1)] };
        layout.instantiate(1, plain, StripeSpec::default()).unwrap();
        layout
    }

    #[test]
    fn objects_keep_their_names_and_data_on_the_mdt_get_their_files() {
        let (first, second) = swapped((FIRST, &plain(2)), (SECOND, &on_mdt()));
        assert_eq!(first.object(FIRST, 0), ObjectId::new(FIRST, 0), "on the MDT");
        assert_eq!(first.object(FIRST, 1), ObjectId::new(SECOND, 1));
        assert_eq!(second.object(SECOND, 1), ObjectId::new(FIRST, 1));
        assert!(first.generation == second.generation && first.generation > on_mdt().generation);
        assert!(first.validate().is_ok() && second.validate().is_ok());
    }

    #[test]
    fn swapping_again_restores_all_but_the_generation() {
        let (before_first, before_second) = (plain(2), on_mdt());
        let (first, second) = swapped((FIRST, &before_first), (SECOND, &before_second));
        let (first, second) = swapped((FIRST, &first), (SECOND, &second));
        assert_eq!(Layout { generation: before_first.generation, ..first }, before_first);
        assert_eq!(Layout { generation: before_second.generation, ..second }, before_second);
    }

    #[test]
    fn a_file_that_gets_another_number_keeps_its_objects() {
        let (before, third) = (on_mdt(), InodeNumber(11));
        let after = renumbered(&before, FIRST, SECOND);
        assert_eq!(
            (after.object(SECOND, 0), after.object(SECOND, 1)),
            (ObjectId::new(SECOND, 0), ObjectId::new(FIRST, 1))
        );
        assert_eq!(renumbered(&after, SECOND, third).object(third, 1), ObjectId::new(FIRST, 1));
        assert_eq!(renumbered(&after, SECOND, FIRST), before);
    }

    #[test]
    fn objects_made_afterwards_have_names_of_their_own() {
        // Three files in a cycle: whatever grows gives out slots of the number its objects bear.
        let third = InodeNumber(11);
        let (first, second) = swapped((FIRST, &on_mdt()), (SECOND, &plain(3)));
        let (first, last) = swapped((FIRST, &first), (third, &plain(1)));
        let mut names: Vec<ObjectId> = Vec::new();
        for (inode, layout) in [(FIRST, &first), (SECOND, &second), (third, &last)] {
            // What is on the MDT is named by its file, apart from them.
            let on_osts = layout.objects().filter(|(_, location)| matches!(location, Location::Ost(_)));
            names.extend(on_osts.map(|(slot, _)| layout.object(inode, slot)));
            names.push(ObjectId::new(layout.namer(inode), layout.slots_next));
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }

    #[test]
    fn a_swapped_layout_has_not_grown_from_the_one_before() {
        let (first, _) = swapped((FIRST, &plain(2)), (SECOND, &plain(2)));
        assert!(!first.has_grown_from(&plain(2)));
    }
}
