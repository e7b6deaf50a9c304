//! What a migration of directories has left, and why, as users are told it.

use client::migration::{Left, Place, What};
use types::{
    MdtIndex,
    limits::{FOLLOWING_MAX, GIVEN_BYTES_MAX, GIVEN_NAMES_MAX, RETURNING_SHARDS_MAX, SPLIT_NAMES_MAX},
};

use crate::channel::{CallError, Errno, strerror};

/// In words. `place`: where a directory is now, if that is known; `to`: where it is to be.
pub fn told(left: &Left<CallError>, place: Option<&Place>, to: MdtIndex) -> String {
    let map = place.and_then(|(_, map)| map.as_ref());
    let state = match (left.what, place) {
        (What::Below, _) => "cannot be listed, and what is in it stays".to_owned(),
        (What::Mounted, _) => "stays on its MDT, and so does what is in it".to_owned(),
        (What::Directory | What::Names, Some((inode, _))) if inode.mdt() == to => match map {
            Some(_) => format!("is on {to}, but keeps its stripes"),
            None => format!("is on {to}, but has no stripes"),
        },
        (What::Directory | What::Names | What::Other(_), _) => "stays on its MDT".to_owned(),
    };
    let shards = map.map_or(0, |map| map.shards.len());
    format!("{} {state}: {}", left.path.display(), reason(left, shards))
}

fn reason(left: &Left<CallError>, shards: usize) -> String {
    match left.error.errno() {
        Errno(libc::EBUSY) if left.what == What::Mounted => "something is mounted on it (16)".to_owned(),
        Errno(libc::EBUSY) => "it is in use (16)".to_owned(),
        Errno(libc::ESTALE) => "it was moved by somebody else meanwhile (116)".to_owned(),
        Errno(libc::EINVAL) => {
            "the root directory and lost+found do not move; nor does a directory of more than 1024 names if its \
             metadata target is of an earlier release (22)"
                .to_owned()
        }
        Errno(libc::E2BIG) => too_big(left.what, shards),
        Errno(libc::ENOSPC) => "more than 128 of its names have the same hash (28)".to_owned(),
        Errno(libc::EOPNOTSUPP) => "it has two names of one file on another metadata target, or a metadata target \
                                    is of an earlier release (95)"
            .to_owned(),
        Errno(errno) => format!("{} ({errno})", strerror(errno)),
    }
}

/// Which limit that is, and what can be done.
fn too_big(what: What, shards: usize) -> String {
    let kib = GIVEN_BYTES_MAX >> 10;
    match what {
        What::Other(_) => format!(
            "it has more than {GIVEN_NAMES_MAX} names, or attributes and data on its MDT of more than {kib} KiB: \
             lfs migrate -c 1 moves the data to an OST (7)"
        ),
        _ if shards > RETURNING_SHARDS_MAX => format!(
            "it has {shards} stripes: with more than {FOLLOWING_MAX} on further metadata targets it moves without \
             them, and more than {RETURNING_SHARDS_MAX} cannot end: move what is in it to a new directory (7)"
        ),
        _ if shards > 1 => format!(
            "one of its {shards} stripes has more than {} names, or it has attributes of more than {kib} KiB: \
             move some names to another directory and run the command again (7)",
            SPLIT_NAMES_MAX / shards
        ),
        _ => format!(
            "it has more than {SPLIT_NAMES_MAX} names, or attributes of more than {kib} KiB: move some names to \
             another directory and run the command again (7)"
        ),
    }
}
