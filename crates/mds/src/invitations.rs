//! The clients that may report the size of a file: this MDT told them to ask the objects, because
//! no client is writing to it. They were told with an inode ([`Entry::quiet`]) or in the reply to
//! their own close of it, each under an epoch.
//!
//! Volatile: after a restart no client is invited any more, and the next client that looks at such
//! a file will be. The same applies to invitations that are forgotten because a client has too
//! many.

use std::collections::{BTreeMap, VecDeque};

use rpc::message::{MdtReply, mdt::Entry};
use types::{ClientId, InodeNumber, limits::SIZE_INVITATIONS_MAX};

/// Those of one client, and the order in which they were made.
#[derive(Debug, Default)]
struct OfClient {
    epochs: BTreeMap<InodeNumber, u64>,
    order: VecDeque<InodeNumber>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Invitations {
    clients: BTreeMap<ClientId, OfClient>,
}

impl Invitations {
    /// Notes which client this reply invites to report, and for which file.
    pub fn note(&mut self, client: ClientId, reply: &MdtReply) {
        for (inode, epoch) in invited(reply) {
            self.invite(client, inode, epoch);
        }
    }

    /// Whether this reply invites its client to report something.
    pub fn are_in(reply: &MdtReply) -> bool {
        invited(reply).next().is_some()
    }

    /// A client closed a file and is told to ask its objects.
    pub fn invite(&mut self, client: ClientId, inode: InodeNumber, epoch: u64) {
        let of_client = self.clients.entry(client).or_default();
        if of_client.epochs.insert(inode, epoch).is_some() {
            return;
        }
        of_client.order.push_back(inode);
        if of_client.order.len() > SIZE_INVITATIONS_MAX
            && let Some(oldest) = of_client.order.pop_front()
        {
            of_client.epochs.remove(&oldest);
        }
        assert_eq!(
            of_client.epochs.len(),
            of_client.order.len(),
            "each invitation of a client has its place in the order"
        );
    }

    /// Whether the client was told to report this file under this epoch.
    pub fn is_invited(&self, client: ClientId, inode: InodeNumber, epoch: u64) -> bool {
        self.clients.get(&client).is_some_and(|of_client| of_client.epochs.get(&inode) == Some(&epoch))
    }

    /// The client is gone.
    pub fn forget(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }
}

/// What the inodes of a reply invite to. (A close does not say of which inode it is; scans are for
/// root.)
fn invited(reply: &MdtReply) -> impl Iterator<Item = (InodeNumber, u64)> {
    let (one, listed) = match reply {
        MdtReply::Entry(entry) => (Some(entry), &[][..]),
        MdtReply::Directory(entries, _) => (None, &entries[..]),
        _ => (None, &[][..]),
    };
    let entries = one.into_iter().chain(listed.iter().filter_map(|listed| listed.entry.as_ref()));
    entries.filter_map(|entry: &Entry| Some((entry.attributes.inode, entry.quiet?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientId = ClientId(1);

    #[test]
    fn the_oldest_of_too_many_is_forgotten() {
        let mut invitations = Invitations::default();
        for number in 0..=SIZE_INVITATIONS_MAX as u64 {
            invitations.invite(CLIENT, InodeNumber(number), 7);
            invitations.invite(CLIENT, InodeNumber(number), 8);
        }
        assert!(!invitations.is_invited(CLIENT, InodeNumber(0), 8), "one too many");
        assert!(invitations.is_invited(CLIENT, InodeNumber(1), 8));
        assert!(!invitations.is_invited(CLIENT, InodeNumber(1), 7), "that was before");
        assert!(!invitations.is_invited(ClientId(2), InodeNumber(1), 8));
        invitations.forget(CLIENT);
        assert!(!invitations.is_invited(CLIENT, InodeNumber(1), 8));
    }
}
