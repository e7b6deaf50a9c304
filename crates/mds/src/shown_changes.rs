//! What a client is shown, along with the reply, of the inodes that its request changed: without it
//! the client would have to ask for the attributes of a directory after each name that it creates
//! there.
//!
//! Shown are inodes on whose attributes the client has the lock, whose attributes are known
//! exactly, and which the reply does not show. To be called together with the operation, under the
//! namespace's lock. Costs nothing while no client has a lock.
//!
//! Of names that were made, removed or lead elsewhere it is told the positions, so that it need not
//! read again a directory whose names it knows.

use lock::{InodeBits, inode_bit};
use rpc::message::{MdtReply, extension::ChangedName, mdt::Entry};
use types::{ClientId, FileKind, InodeNumber};

use crate::{grants::is_still, tables::inode::Inode, transaction::versions::Change, volatile::Volatile};

const ATTRIBUTES: InodeBits = InodeBits(inode_bit::ATTRIBUTES);

/// What protects the names of a directory at a client.
const LISTING: InodeBits = InodeBits(inode_bit::DIRECTORY | inode_bit::ATTRIBUTES);

/// Leaves the names in directories whose names this client may know.
pub(crate) fn retain_names(volatile: &Volatile, client: ClientId, names: &mut Vec<ChangedName>) {
    names.retain(|changed| volatile.cache.lock().holds(client, changed.directory, LISTING));
}

/// The inodes of a change as they are after it, directories first; `stored`: an inode as the tables
/// have it.
pub(crate) fn beside(
    volatile: &Volatile,
    client: ClientId,
    change: &Change,
    reply: Option<&MdtReply>,
    stored: impl Fn(InodeNumber) -> Option<Inode>,
) -> Vec<Entry> {
    if volatile.cache.lock().is_empty() {
        return Vec::new();
    }
    let in_reply = reply.and_then(shown_by);
    let wanted = change.inodes.iter().filter(|version| version.before != 0 && version.after != 0);
    let wanted = wanted.map(|version| version.inode).filter(|inode| Some(*inode) != in_reply);
    let held = wanted.filter(|inode| volatile.cache.lock().held_by(*inode, client).meets(ATTRIBUTES));
    let exact =
        |inode: &Inode| inode.size_known && inode.attributes.links > 0 && is_still(volatile, client, inode.number());
    let mut entries: Vec<Entry> = held.filter_map(stored).filter(exact).map(|inode| inode.entry()).collect();
    entries.sort_by_key(|entry| entry.attributes.kind != FileKind::Directory);
    entries
}

/// The inode whose attributes a reply shows.
fn shown_by(reply: &MdtReply) -> Option<InodeNumber> {
    let entry = match reply {
        MdtReply::Entry(entry) => entry,
        MdtReply::Created(created) => &created.entry,
        MdtReply::Opened(opened) => &opened.entry,
        _ => return None,
    };
    Some(entry.attributes.inode)
}
