//! Fields of keys, and those fields of values that [`types::record`] does not have.

use types::{ClientId, Damage, FileKind, FsResult, InodeNumber, OstIndex};

/// Kinds as stored.
const KINDS: [(u8, FileKind); 7] = [
    (1, FileKind::Regular),
    (2, FileKind::Directory),
    (3, FileKind::Symlink),
    (4, FileKind::Fifo),
    (5, FileKind::Socket),
    (6, FileKind::CharacterDevice),
    (7, FileKind::BlockDevice),
];

/// The stored number of a kind.
pub fn kind_number(kind: FileKind) -> u8 {
    KINDS.iter().find(|(_, known)| *known == kind).expect("every kind has a number").0
}

/// The kind with this number.
pub fn kind_of(number: u8) -> FsResult<FileKind> {
    let known = KINDS.iter().find(|(known, _)| *known == number);
    known.map(|(_, kind)| *kind).ok_or_else(|| Damage::new("file", format!("unknown kind {number}")).into())
}

/// A key of big-endian parts.
pub fn key_of(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// Takes a big-endian number from the front of a key.
pub fn split_number<'a>(what: &'static str, key: &'a [u8]) -> FsResult<(u64, &'a [u8])> {
    let (number, rest) = key.split_first_chunk::<8>().ok_or_else(|| Damage::new(what, "key too short"))?;
    Ok((u64::from_be_bytes(*number), rest))
}

/// A key of exactly one inode number.
pub fn inode_of_key(what: &'static str, key: &[u8]) -> FsResult<InodeNumber> {
    match split_number(what, key)? {
        (number, []) => Ok(InodeNumber(number)),
        _ => Err(Damage::new(what, "key too long").into()),
    }
}

/// A key of exactly one client.
pub fn client_of_key(what: &'static str, key: &[u8]) -> FsResult<ClientId> {
    Ok(ClientId(inode_of_key(what, key)?.0))
}

/// Prefix of an OST's keys.
pub fn ost_key(ost: OstIndex) -> [u8; 2] {
    ost.0.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use types::FsError;

    use super::*;

    #[test]
    fn kinds_round_trip_and_unknown_ones_are_damage() {
        for (number, kind) in KINDS {
            assert_eq!(kind_number(kind), number);
            assert_eq!(kind_of(number), Ok(kind));
        }
        assert!(matches!(kind_of(0), Err(FsError::Damaged(_))));
        assert!(matches!(kind_of(8), Err(FsError::Damaged(_))));
    }
}
