//! Where the directories of a metadata benchmark are: on the MDTs in turn, each striped over the
//! following ones if that is asked for.

use types::{DirectoryPlace, MdtIndex, Stripes, mdts_from};

/// The place of the directory with this number, of a file system with so many MDTs. With one stripe
/// it is not striped.
pub fn in_turn(number: usize, mdts: u16, stripes: u16) -> DirectoryPlace {
    let there: Vec<MdtIndex> = (0..mdts).map(MdtIndex).collect();
    let mdt = there[number % there.len()];
    let mdts = if stripes > 1 { mdts_from(&there, mdt, stripes.into()) } else { Vec::new() };
    DirectoryPlace { mdt, stripes: Stripes { mdts, ..Stripes::default() } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_on_the_mdts_in_turn_and_stripes_follow_them() {
        let indices = |place: DirectoryPlace| place.stripes.mdts.iter().map(|mdt| mdt.0).collect::<Vec<u16>>();
        assert_eq!(in_turn(5, 4, 1), DirectoryPlace { mdt: MdtIndex(1), stripes: Stripes::default() });
        assert_eq!((in_turn(6, 4, 3).mdt, indices(in_turn(6, 4, 3))), (MdtIndex(2), vec![2, 3, 0]));
    }
}
