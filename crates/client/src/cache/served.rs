//! What a client would answer from its cache at a moment: for simulations, which compare it with
//! the MDT.

use bytes::Bytes;
use rpc::message::lock::InodeBits;
use types::{Attributes, ClientId, Generation, InodeNumber, LockHandle, ObjectId};

use super::{connection_id::ConnectionId, inode_cache::InodeCache};

/// A lock under which a client serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedLock {
    /// Of this inode.
    pub inode: InodeNumber,
    /// Its handle.
    pub handle: LockHandle,
    /// These parts.
    pub bits: InodeBits,
}

/// What a client serves of one MDT without asking it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The client, as the MDT knows it.
    pub client: ClientId,
    /// All attributes of these inodes.
    pub attributes: Vec<Attributes>,
    /// Of these inodes what permissions depend on: kind, mode and owners.
    pub permissions: Vec<Attributes>,
    /// The generations of the layouts of these files.
    pub layouts: Vec<(InodeNumber, Generation)>,
    /// All bytes of these objects on the MDT.
    pub data: Vec<(ObjectId, Bytes)>,
    /// Names in directories, and where they lead; `None`: there is no such name.
    pub names: Vec<(InodeNumber, Vec<u8>, Option<InodeNumber>)>,
}

impl InodeCache {
    /// Whether what is cached is served once calls can go out on this connection.
    fn serves(&self, connection: ConnectionId) -> bool {
        self.connection == Some(connection) || self.is_claimed(connection)
    }

    /// The locks held, while this is the connection; nothing changes.
    pub fn served_locks(&self, connection: ConnectionId) -> Vec<ServedLock> {
        if !self.serves(connection) {
            return Vec::new();
        }
        let locks = self.inodes.iter().flat_map(|(inode, cached)| cached.locks().map(move |lock| (*inode, lock)));
        locks.map(|(inode, (handle, bits))| ServedLock { inode, handle, bits }).collect()
    }

    /// What would be served under them. `written` as in [`InodeCache::ask`].
    pub fn served(&self, connection: ConnectionId, written: impl Fn(InodeNumber) -> bool) -> Served {
        let mut served = Served { client: connection.0, ..Served::default() };
        if !self.serves(connection) {
            return served;
        }
        for (number, attributes) in self.inodes.iter().filter_map(|(number, inode)| Some((*number, inode.attributes?)))
        {
            let exact = attributes.exact(self.epoch);
            served.attributes.extend(exact.filter(|_| self.changes.attributes_stable(number) && !written(number)));
            let is_stable = self.changes.permissions_stable(number);
            served.permissions.extend(is_stable.then(|| *attributes.permissions()));
        }
        let layouts =
            self.inodes.iter().filter_map(|(number, inode)| Some((*number, inode.layout.as_ref()?.generation)));
        served.layouts.extend(layouts.filter(|(number, _)| self.changes.layout_stable(*number)));
        let data = self.small_files.all(self.epoch).filter(|(object, _)| self.changes.data_stable(object.inode));
        served.data.extend(data.map(|(object, data)| (object, data.clone())));
        let names = self.names.all().filter(|(parent, name, _)| self.changes.name_stable(*parent, name));
        served.names.extend(names.map(|(parent, name, known)| (parent, name.to_vec(), known.inode())));
        served
    }
}
