//! What was cached through a connection that has ended, until the MDT grants its locks again on the
//! next one.
//!
//! ```text
//! connected -> parted -> claiming -> claimed -> connected
//!                 ^---------'  (the connection breaks)
//! ```
//!
//! While parted nothing is served, and no answer is kept. Each lock is claimed with the version of
//! its inode for which the data cached under it are valid: the highest one that a grant of it, or a
//! reply to a change by this client, has contained on the connection through which the lock is
//! held. The MDT compares this version with its own, so a claim that is granted proves that nothing
//! has changed. Locks that are not granted are dropped together with what is under them, and so are
//! those that were not claimed. Locks on data are not claimed: writing data changes no version.
//!
//! Answers to questions from before the claim are not kept: all locks count as new, and so do the
//! spans for which they are held.

use rpc::message::{
    lock::{InodeBits, inode_bit},
    mdt::LockClaim,
};
use types::{ClientId, Generation, LockHandle};

use super::InodeCache;
use crate::cache::{
    connection_id::ConnectionId, listings::Listings, name_table::NameTable, own_changes::Moment, released::Released,
};

/// A claim on a new connection.
#[derive(Debug)]
struct Claim {
    connection: ConnectionId,
    /// It counts as a question: a callback may overtake its answer.
    asked: Moment,
    is_done: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The client whose session the ended connection belonged to.
    former: Option<ClientId>,
    claim: Option<Claim>,
}

impl Claims {
    /// Whether all was claimed on this connection.
    pub fn is_done(&self, connection: ConnectionId) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.is_done && claim.connection == connection)
    }

    fn is_under_way(&self, connection: ConnectionId) -> bool {
        self.claim.as_ref().is_some_and(|claim| !claim.is_done && claim.connection == connection)
    }
}

impl InodeCache {
    /// The connection of a session at present, if there is one. False if that is an earlier
    /// session, which changes nothing: it may have connected again for the calls that still use it.
    pub fn connect_by(&mut self, client: ClientId, connection: Option<Generation>) -> bool {
        if self.is_of_other_session(client) {
            return false;
        }
        self.connect(connection.map(|connection| (client, connection)));
        true
    }

    /// The connection at present, if there is one. What was cached through another one is dropped,
    /// unless it was claimed.
    pub fn connect(&mut self, connection: Option<ConnectionId>) {
        if self.connection == connection {
            return;
        }
        match connection {
            None => self.part(),
            Some(new) => {
                if !self.claims.is_done(new) {
                    self.drop_everything();
                }
                self.end_question();
                self.claims.former = None;
            }
        }
        self.connection = connection;
    }

    fn part(&mut self) {
        self.claims.former = self.connection.map(|(client, _)| client);
        self.versions.doubt_all();
        self.early.clear();
    }

    fn drop_everything(&mut self) {
        self.inodes.clear();
        self.handles.clear();
        self.names = NameTable::default();
        self.listings = Listings::default();
        self.small_files.clear();
        self.versions.doubt_all();
        self.drop_accesses();
        self.early.clear();
        self.recency.clear();
    }

    fn end_question(&mut self) {
        if let Some(claim) = self.claims.claim.take() {
            self.changes.answered(claim.asked);
            self.early.answered(self.changes.oldest_question());
        }
    }

    /// Whether the locks were claimed on this connection, by which no call could go out yet.
    pub fn is_claimed(&self, connection: ConnectionId) -> bool {
        self.claims.is_done(connection)
    }

    /// A connection has begun, on which no call goes out before the locks were claimed: what is to
    /// be claimed, those that were used last first.
    pub fn begin_claim(&mut self, connection: ConnectionId) -> Vec<LockClaim> {
        if self.is_of_other_session(connection.0) {
            return Vec::new();
        }
        self.connect(None);
        if self.claims.former != Some(connection.0) {
            return Vec::new();
        }
        self.end_question();
        let asked = self.changes.asked();
        self.claims.claim = Some(Claim { connection, asked, is_done: false });
        let newest = self.recency.newest_first().filter_map(|number| Some((number, self.inodes.get(&number)?)));
        let told = newest.filter(|(_, cached)| cached.version != 0);
        let claims = told.flat_map(|(inode, cached)| {
            let version = cached.version;
            let claimable = cached.locks().filter(|(_, bits)| bits.0 & inode_bit::DATA == 0);
            claimable.map(move |(handle, bits)| LockClaim { handle, inode, bits, version })
        });
        claims.collect()
    }

    /// A claim was answered with the lock's new handle; `None`: it was refused. Returns a lock that
    /// is to be given back.
    pub fn claimed(
        &mut self,
        connection: ConnectionId,
        claim: &LockClaim,
        granted: Option<LockHandle>,
    ) -> Option<Released> {
        if !self.claims.is_under_way(connection) {
            return None;
        }
        let is_held = self.handles.contains_key(&claim.handle);
        let is_withdrawn = |handle: LockHandle| self.early.contains(handle) || self.handles.contains_key(&handle);
        let since = self.changes.next_question();
        match granted.filter(|handle| is_held && !is_withdrawn(*handle)) {
            Some(handle) => {
                self.handles.remove(&claim.handle);
                self.handles.insert(handle, claim.inode);
                self.inode(claim.inode).renew(claim.handle, handle, since);
                self.renew_span(claim.inode);
                self.accesses.renewed(claim.inode, claim.handle, handle);
                None
            }
            None => {
                self.revoke(claim.handle);
                self.forget_access(claim.inode, claim.handle);
                granted.map(|handle| Released { handle, inode: claim.inode, parts: InodeBits(0), since })
            }
        }
    }

    /// All that could be claimed was: the rest is dropped.
    pub fn end_claim(&mut self, connection: ConnectionId) {
        let Some(claim) = self.claims.claim.as_mut().filter(|claim| claim.connection == connection) else { return };
        claim.is_done = true;
        let asked = claim.asked;
        let old: Vec<LockHandle> = self.inodes.values().flat_map(|inode| inode.locks_at(asked)).collect();
        for handle in old {
            if let Some(released) = self.revoke(handle) {
                self.forget_access(released.inode, handle);
            }
        }
    }
}
