//! The MDTs that an answer names: what it leads to is there, and will be asked for next. The MDT
//! that answers may have a newer cluster map than this client. Pages of directories are not among
//! these answers: names in them are looked up before they are used.

use rpc::message::{MdtReply, mdt::LayoutInfo};
use types::{DirectoryMap, InodeNumber, MdtIndex};

/// See the module documentation.
pub(crate) fn named_mdts(reply: &MdtReply) -> impl Iterator<Item = MdtIndex> + '_ {
    let (inode, map, below) = match reply {
        MdtReply::Remote(inode) => (Some(*inode), None, &[][..]),
        MdtReply::Decided(decided) => (Some(decided.entry.attributes.inode), decided.map.as_ref(), &[][..]),
        MdtReply::Striped(map) | MdtReply::Layout(LayoutInfo { map: Some(map), .. }) => (None, Some(map), &[][..]),
        MdtReply::PathsBelow(found) => (None, None, &found[..]),
        _ => (None, None, &[][..]),
    };
    let shards = map.into_iter().flat_map(|DirectoryMap { shards, .. }| shards);
    let above = below.iter().map(|(inode, _)| inode);
    inode.into_iter().chain(shards.chain(above).copied()).map(InodeNumber::mdt)
}

#[cfg(test)]
mod tests {
    use rpc::message::{mdt::Entry, mdt_peer::Decided};
    use types::{Attributes, FileKind, NameHash};

    use super::*;

    #[test]
    fn answers_that_lead_to_other_mdts_name_them() {
        let on = |mdt| InodeNumber::new(MdtIndex(mdt), 0x200);
        let shards = vec![on(2).as_shard(), on(3).as_shard()];
        let map = DirectoryMap { master: on(1), hash: NameHash::default(), shards };
        let entry = Entry::of(Attributes::zeroed(on(1), FileKind::Directory));
        let named = |reply| named_mdts(&reply).map(|mdt| mdt.0).collect::<Vec<_>>();
        assert_eq!(named(MdtReply::Remote(on(7))), [7]);
        assert_eq!(named(MdtReply::Striped(map.clone())), [2, 3]);
        let decided = Decided { entry: entry.clone(), map: Some(map) };
        assert_eq!(named(MdtReply::Decided(Box::new(decided))), [1, 2, 3]);
        assert_eq!(named(MdtReply::PathsBelow(vec![(on(4), b"a".to_vec()), (on(5), b"b".to_vec())])), [4, 5]);
        assert_eq!(named(MdtReply::Entry(entry)), []);
    }
}
