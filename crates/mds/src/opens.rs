//! Which files are open, and for which clients. Volatile: after a restart clients report it again
//! (reclaim).

use std::collections::BTreeMap;

use rpc::message::mdt::{OpenFlags, OpenId, open_flag};
use types::{ClientId, FsError, FsResult, InodeNumber, TooMany};

use crate::presumed_opens::PresumedOpens;

/// Identifies an open file among all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpenKey {
    /// The client.
    pub client: ClientId,
    /// Its name for the open.
    pub open: OpenId,
}

/// One open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenFile {
    /// The inode.
    pub inode: InodeNumber,
    /// How.
    pub flags: OpenFlags,
    /// The write epoch the opener was given; `None` if it was reclaimed.
    pub epoch: Option<u64>,
    /// It was the file's first opening for writing, and has truncated nothing: under the epoch
    /// given, only the writes that the opener reports can have created objects of the file.
    pub began: bool,
}

impl OpenFile {
    /// Whether data may be written through it.
    pub fn writes(&self) -> bool {
        self.flags.has(open_flag::WRITE)
    }
}

/// An open that a step of a compound made: it exists for the steps after it, before the batch is
/// applied, and is removed again if that fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EarlyOpen {
    /// Its name.
    pub key: OpenKey,
    /// The open.
    pub file: OpenFile,
    /// What it replaced.
    pub replaced: Option<OpenFile>,
}

impl EarlyOpen {
    /// Makes an open.
    pub fn make(opens: &mut OpenTable, key: OpenKey, file: OpenFile) -> Self {
        let replaced = opens.get(key).copied();
        opens.insert(key, file);
        Self { key, file, replaced }
    }

    /// Undoes it.
    pub fn take_back(self, opens: &mut OpenTable) {
        match self.replaced {
            Some(file) => opens.insert(self.key, file),
            None => drop(opens.remove(self.key)),
        }
    }
}

/// What a client has open, of one inode or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientUse {
    /// Opens.
    pub opens: u32,
    /// Those of them that write.
    pub writers: u32,
}

impl ClientUse {
    fn add(&mut self, file: &OpenFile) {
        self.opens += 1;
        self.writers += u32::from(file.writes());
    }

    fn remove(&mut self, file: &OpenFile) {
        assert!(self.opens > 0, "an open that ends is counted");
        assert!(self.writers >= u32::from(file.writes()), "a writer that ends is counted");
        self.opens -= 1;
        self.writers -= u32::from(file.writes());
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Uses {
    all: ClientUse,
    /// The same by client; none has no opens.
    clients: BTreeMap<ClientId, ClientUse>,
    /// Those of them that write.
    clients_writing: u32,
}

impl Uses {
    fn add(&mut self, client: ClientId, file: &OpenFile) {
        self.all.add(file);
        let of_client = self.clients.entry(client).or_default();
        let wrote = of_client.writers > 0;
        of_client.add(file);
        self.clients_writing += u32::from(!wrote && of_client.writers > 0);
    }

    fn remove(&mut self, client: ClientId, file: &OpenFile) {
        self.all.remove(file);
        let of_client = self.clients.get_mut(&client).expect("an open is counted for its client");
        let wrote = of_client.writers > 0;
        of_client.remove(file);
        self.clients_writing -= u32::from(wrote && of_client.writers == 0);
        if of_client.opens == 0 {
            self.clients.remove(&client);
        }
        assert_eq!(self.all.opens == 0, self.clients.is_empty(), "an inode is open as long as a client has it open");
        assert!(self.clients_writing <= self.all.writers, "a client that writes has an open for writing");
    }
}

/// The writers, on which automatic layouts depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writers {
    /// Opens of a file for writing.
    pub opens: u32,
    /// Clients they belong to.
    pub clients: u32,
    /// Files open for writing, of all.
    pub files: u32,
}

/// All open files of an MDT. Invariant: `uses` and `clients` count exactly what `files` holds, and
/// have no zero entries; `files_written` counts those with writers.
#[derive(Debug)]
pub(crate) struct OpenTable {
    /// Most opens of one client.
    limit: usize,
    files: BTreeMap<OpenKey, OpenFile>,
    uses: BTreeMap<InodeNumber, Uses>,
    clients: BTreeMap<ClientId, ClientUse>,
    files_written: u32,
    /// Inodes that no other client may begin to write, as long as this open lasts.
    held: BTreeMap<InodeNumber, OpenKey>,
    /// Inodes that may be open without this MDT's knowledge.
    pub presumed: PresumedOpens,
}

impl OpenTable {
    /// Nothing open. A client may have `limit` files open
    /// ([`types::limits::OPENS_PER_CLIENT_MAX`]).
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            files: BTreeMap::new(),
            uses: BTreeMap::new(),
            clients: BTreeMap::new(),
            files_written: 0,
            held: BTreeMap::new(),
            presumed: PresumedOpens::default(),
        }
    }

    /// Fails if this open would be one more than its client may have, or has the number of another
    /// open file. `inode`: of the file, unless it is a new one; `target`: for the text.
    pub fn check_limit(&self, target: &str, key: OpenKey, inode: Option<InodeNumber>) -> FsResult<()> {
        self.check_below(self.limit, target, key, inode)
    }

    /// The same for an open that the client already has, and may have made without a request. Both
    /// the client and this MDT apply the limit to the opens that they make, so together there may
    /// be twice as many; refusing one of them now would lose an open file.
    pub fn check_limit_of_claimed(&self, target: &str, key: OpenKey, inode: InodeNumber) -> FsResult<()> {
        self.check_below(self.limit.saturating_mul(2), target, key, Some(inode))
    }

    fn check_below(&self, limit: usize, target: &str, key: OpenKey, inode: Option<InodeNumber>) -> FsResult<()> {
        if let Some(file) = self.files.get(&key) {
            return if inode == Some(file.inode) { Ok(()) } else { Err(FsError::Invalid) };
        }
        let opens = self.of(key.client).opens;
        if (opens as usize) < limit {
            return Ok(());
        }
        Err(TooMany::OpenFiles { client: key.client, target: target.to_owned(), files: opens }.into())
    }

    /// Adds an open, replacing one of the same key and file, which goes on to hold others off if it
    /// does.
    pub fn insert(&mut self, key: OpenKey, file: OpenFile) {
        let held = self.held.get(&file.inode) == Some(&key);
        self.remove(key);
        let uses = self.uses.entry(file.inode).or_default();
        let written = uses.all.writers > 0;
        uses.add(key.client, &file);
        self.files_written += u32::from(!written && file.writes());
        self.clients.entry(key.client).or_default().add(&file);
        self.files.insert(key, file);
        if held {
            self.held.insert(file.inode, key);
        }
    }

    /// What a client has open, of all files.
    pub fn of(&self, client: ClientId) -> ClientUse {
        self.clients.get(&client).copied().unwrap_or_default()
    }

    /// What a client has open of an inode.
    pub fn of_inode(&self, inode: InodeNumber, client: ClientId) -> ClientUse {
        self.uses.get(&inode).and_then(|uses| uses.clients.get(&client)).copied().unwrap_or_default()
    }

    /// Removes an open.
    pub fn remove(&mut self, key: OpenKey) -> Option<OpenFile> {
        let file = self.files.remove(&key)?;
        let uses = self.uses.get_mut(&file.inode).expect("an open file is counted");
        uses.remove(key.client, &file);
        let is_last = u32::from(file.writes() && uses.all.writers == 0);
        assert!(self.files_written >= is_last, "files that are written are counted");
        self.files_written -= is_last;
        let of_client = self.clients.get_mut(&key.client).expect("an open is counted for its client");
        of_client.remove(&file);
        if of_client.opens == 0 {
            self.clients.remove(&key.client);
        }
        if self.held.get(&file.inode) == Some(&key) {
            self.held.remove(&file.inode);
        }
        if uses.all.opens == 0 {
            self.uses.remove(&file.inode);
        }
        Some(file)
    }

    /// The open of this key.
    pub fn get(&self, key: OpenKey) -> Option<&OpenFile> {
        self.files.get(&key)
    }

    /// Remembers the epoch an open was given that truncates.
    pub fn truncates(&mut self, key: OpenKey, epoch: u64) {
        if let Some(file) = self.files.get_mut(&key) {
            file.epoch = Some(epoch);
            file.began = false;
        }
    }

    /// Until this open ends, other clients that want to write to its inode have to wait
    /// ([`OpenTable::is_held`]). A restart forgets it. False if another open holds writers off
    /// already: two of them would wait for each other's end.
    pub fn hold(&mut self, key: OpenKey) -> bool {
        let Some(file) = self.files.get(&key) else { return false };
        *self.held.entry(file.inode).or_insert(key) == key
    }

    /// Writers of the inode need not wait any more; false if they did not have to.
    pub fn end_hold(&mut self, inode: InodeNumber) -> bool {
        self.held.remove(&inode).is_some()
    }

    /// Whether writers of the inode wait for an open's end.
    pub fn is_held(&self, inode: InodeNumber) -> bool {
        self.held.contains_key(&inode)
    }

    /// Whether an open holds writers of the inode off and this client has another: the holder waits
    /// for the end of that, so the client would wait for itself if it waited for the holder.
    pub fn is_waited_for(&self, inode: InodeNumber, client: ClientId) -> bool {
        let Some(holder) = self.held.get(&inode) else { return false };
        self.of_client(client).any(|(key, file)| file.inode == inode && key != *holder)
    }

    /// Whether the inode is open through `open` at most.
    pub fn is_open_only_by(&self, inode: InodeNumber, open: Option<OpenKey>) -> bool {
        let opens = self.uses.get(&inode).map_or(0, |uses| uses.all.opens);
        let own = open.and_then(|key| self.files.get(&key)).is_some_and(|file| file.inode == inode);
        opens == u32::from(own) && !self.presumed.has_any(inode)
    }

    /// Whether any client has the inode open.
    pub fn is_open(&self, inode: InodeNumber) -> bool {
        self.uses.contains_key(&inode) || self.presumed.has_any(inode)
    }

    /// Whether any client except `except` has the inode open for writing.
    pub fn written_by_others(&self, inode: InodeNumber, except: Option<OpenKey>) -> bool {
        let writers = self.uses.get(&inode).map_or(0, |uses| uses.all.writers);
        let own = except.and_then(|key| self.files.get(&key));
        let own = own.is_some_and(|file| file.inode == inode && file.writes());
        writers > u32::from(own)
    }

    /// Files open for writing.
    pub fn files_written(&self) -> u32 {
        self.files_written
    }

    /// The writers of this inode, among all writers.
    pub fn writers(&self, inode: InodeNumber) -> Writers {
        let uses = self.uses.get(&inode);
        Writers {
            opens: uses.map_or(0, |uses| uses.all.writers),
            clients: uses.map_or(0, |uses| uses.clients_writing),
            files: self.files_written,
        }
    }

    /// Whether any client but this one has the inode open.
    pub fn opened_by_others(&self, inode: InodeNumber, client: ClientId) -> bool {
        let opens = self.uses.get(&inode).map_or(0, |uses| uses.all.opens);
        opens > self.of_inode(inode, client).opens || self.presumed.has_other(inode, client)
    }

    /// The opens of a client, in order of their names.
    pub fn of_client(&self, client: ClientId) -> impl Iterator<Item = (OpenKey, &OpenFile)> {
        let first = OpenKey { client, open: OpenId(0) };
        let last = OpenKey { client, open: OpenId(u64::MAX) };
        self.files.range(first..=last).map(|(key, file)| (*key, file))
    }

    /// Asserts that the counts are those of the open files: for audits, since it counts all of
    /// them.
    pub fn assert_counted(&self) {
        let mut counted = Self::new(self.limit);
        self.files.iter().for_each(|(key, file)| counted.insert(*key, *file));
        assert_eq!(self.clients, counted.clients, "opens by client");
        assert_eq!(self.uses, counted.uses, "opens by inode");
        assert_eq!(self.files_written, counted.files_written, "files open for writing");
        for (inode, holder) in &self.held {
            let held = self.files.get(holder).map(|file| file.inode);
            assert_eq!(held, Some(*inode), "the inode of an open that holds writers off");
        }
    }

    /// Number of open files.
    pub fn len(&self) -> usize {
        self.files.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(client: u64, open: u64) -> OpenKey {
        OpenKey { client: ClientId(client), open: OpenId(open) }
    }

    fn file(inode: u64, flags: u32) -> OpenFile {
        OpenFile { inode: InodeNumber(inode), flags: OpenFlags(flags), epoch: None, began: false }
    }

    #[test]
    fn writers_are_counted_without_the_one_who_asks() {
        let mut table = OpenTable::new(10);
        let inode = InodeNumber(5);
        table.insert(key(1, 1), file(5, open_flag::READ | open_flag::WRITE));
        assert!(table.written_by_others(inode, None));
        assert!(!table.written_by_others(inode, Some(key(1, 1))));
        table.insert(key(2, 1), file(5, open_flag::READ));
        assert!(!table.written_by_others(inode, Some(key(1, 1))));
        assert!(table.written_by_others(inode, Some(key(2, 1))));
        table.insert(key(2, 2), file(5, open_flag::WRITE));
        assert!(table.written_by_others(inode, Some(key(1, 1))));
        assert_eq!(table.of_client(ClientId(2)).count(), 2);
        assert!(table.opened_by_others(inode, ClientId(1)) && table.opened_by_others(inode, ClientId(2)));
        assert!(!table.opened_by_others(InodeNumber(6), ClientId(1)));
        table.insert(key(2, 3), file(6, open_flag::WRITE));
        assert_eq!(table.writers(inode), Writers { opens: 2, clients: 2, files: 2 });
        table.remove(key(2, 3)).unwrap();
        assert!(!table.is_open_only_by(inode, Some(key(1, 1))) && !table.is_open_only_by(inode, None));
        assert!(table.hold(key(1, 1)));
        assert!(table.is_held(inode) && !table.is_held(InodeNumber(6)));
        assert!(table.end_hold(inode) && !table.is_held(inode) && !table.end_hold(inode));
        assert!(table.hold(key(1, 1)) && table.hold(key(1, 1)), "again");
        assert!(!table.hold(key(2, 1)), "it is never taken from the one who has it");
        assert!(table.is_waited_for(inode, ClientId(2)) && !table.is_waited_for(inode, ClientId(1)));
        for open in [key(1, 1), key(2, 1), key(2, 2)] {
            assert!(table.is_open(inode));
            table.remove(open).unwrap();
            assert!(!table.opened_by_others(inode, ClientId(2)), "1 left first");
            assert!(!table.is_held(inode), "the holder left first");
        }
        assert!(!table.is_open(inode) && table.is_open_only_by(inode, None));
        assert_eq!(table.writers(inode), Writers::default());
        assert_eq!(table.remove(key(1, 1)), None);
    }

    #[test]
    fn a_client_that_has_all_it_may_have_opens_no_more() {
        let mut table = OpenTable::new(2);
        table.insert(key(1, 1), file(5, open_flag::WRITE));
        table.insert(key(1, 2), file(5, open_flag::READ));
        assert_eq!(table.of_inode(InodeNumber(5), ClientId(1)), ClientUse { opens: 2, writers: 1 });
        let full = table.check_limit("stria-MDT0000", key(1, 3), None).unwrap_err().to_string();
        assert!(full.contains("2 files open on stria-MDT0000") && full.contains("close some"), "{full}");
        let (five, six) = (InodeNumber(5), InodeNumber(6));
        assert_eq!(table.check_limit("", key(1, 2), Some(five)), Ok(()), "it is open already");
        for other in [Some(six), None] {
            assert_eq!(table.check_limit("", key(1, 2), other), Err(FsError::Invalid), "the number is in use");
        }
        assert_eq!(table.check_limit_of_claimed("", key(1, 2), six), Err(FsError::Invalid));
        assert_eq!(table.check_limit_of_claimed("", key(1, 3), six), Ok(()), "it is open at the client");
        assert_eq!(table.check_limit("", key(2, 1), Some(six)), Ok(()), "another client's");
        table.remove(key(1, 1)).unwrap();
        assert_eq!(table.check_limit("", key(1, 3), None), Ok(()));
        assert_eq!(table.of(ClientId(1)), ClientUse { opens: 1, writers: 0 });
    }

    #[test]
    fn a_repeated_open_counts_once() {
        let mut table = OpenTable::new(10);
        table.insert(key(1, 1), file(5, open_flag::WRITE));
        table.insert(key(1, 1), file(5, open_flag::WRITE));
        assert_eq!(table.len(), 1);
        table.remove(key(1, 1)).unwrap();
        assert!(!table.is_open(InodeNumber(5)));
    }
}
