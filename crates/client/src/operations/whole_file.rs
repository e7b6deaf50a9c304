//! Whole small files in one request, if their layout has them on the MDT, and paths in one request:
//! for programs that use this client directly and treat a file as a value that is created once and
//! read as a whole. If the data are elsewhere, the usual requests follow.
//!
//! A mount cannot use them: another client could change the data returned with an open before the
//! kernel asks for them, and the kernel looks up one name at a time.

use std::sync::Arc;

use bytes::Bytes;
use rpc::{
    checksum,
    message::{
        Compound, CompoundReply, MdtReply, MdtRequest, Step, StepInode, StepReply,
        compound::StepNumber,
        mdt::{Entry, OpenFlags, OpenId, open_flag},
        ost::ReadDone,
    },
};
use types::{
    Attributes, Credentials, FileKind, FsError, FsResult, InodeNumber, NodeKind, ProtocolError,
    limits::{COMPOUND_DATA_BYTES_MAX, COMPOUND_STEPS_MAX},
};

use crate::{
    FileSystem, NewFile, OpenFile, ReadData,
    operations::compound::{ATTEMPTS, CompoundOutcome},
    statistics::Operation,
    targets::connection::unexpected,
};

/// The largest number of bytes sent with a creation, or requested with an open, before it is known
/// that they are on the MDT.
pub const WHOLE_FILE_BYTES_MAX: usize = COMPOUND_DATA_BYTES_MAX;
/// Steps of a compound that opens, reads and closes a file, besides those of its path.
const READ_STEPS: usize = 3;

/// Steps that look up one name after the other; and the inode that the last one finds.
fn lookups(from: InodeNumber, path: &[&[u8]]) -> (Vec<Step>, StepInode) {
    let mut at = StepInode::Known(from);
    let mut steps = Vec::with_capacity(path.len() + READ_STEPS);
    for name in path {
        steps.push(Step::Lookup { parent: at, name: name.to_vec() });
        at = last_of(&steps);
    }
    (steps, at)
}

/// What the last of these steps finds.
fn last_of(steps: &[Step]) -> StepInode {
    assert!((1..=COMPOUND_STEPS_MAX).contains(&steps.len()), "a compound of {} steps", steps.len());
    StepInode::Of((steps.len() - 1) as StepNumber)
}

/// What became of a file that was to be read with one request.
enum Whole {
    /// All of it was read.
    Read(Attributes, ReadData),
    /// It has so many bytes.
    TooLarge,
    /// Some of it may be elsewhere; perhaps it is open.
    Elsewhere(InodeNumber, Option<Arc<OpenFile>>),
}

impl FileSystem {
    /// Creates a regular file with these contents; the name must not exist. Up to
    /// [`WHOLE_FILE_BYTES_MAX`] bytes on the MDT it is there whole or not at all, whatever fails.
    /// Else it is created, written and closed, and removed again if that fails.
    ///
    /// ```
    /// # mod cluster { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/cluster.rs")); }
    /// # use cluster::with_file_system;
    ///
    /// use client::NewFile;
    /// use types::{Credentials, FsError, InodeNumber};
    ///
    /// # with_file_system(async |file_system| {
    /// let (root, parent) = (Credentials::root(), InodeNumber::ROOT);
    /// let file = NewFile { parent, name: b"motd".to_vec(), mode: 0o644, umask: 0o022 };
    /// let made = file_system.create_with_data(&root, file.clone(), "hello".into()).await?;
    /// assert_eq!((made.size, made.mode & 0o777), (5, 0o644));
    /// let again = file_system.create_with_data(&root, file, "other".into()).await;
    /// assert_eq!(again.unwrap_err(), FsError::Exists);
    ///
    /// let (attributes, data) = file_system.open_and_read(&root, parent, &[b"motd"], 1000).await?;
    /// assert_eq!((attributes.inode, data.into_bytes()), (made.inode, "hello".into()));
    /// # Ok(())
    /// # });
    /// ```
    pub async fn create_with_data(
        self: &Arc<Self>,
        credentials: &Credentials,
        file: NewFile,
        data: Bytes,
    ) -> FsResult<Attributes> {
        if data.len() > WHOLE_FILE_BYTES_MAX {
            let NewFile { parent, name, mode, umask } = &file;
            let flags = OpenFlags(open_flag::WRITE | open_flag::EXCLUSIVE);
            let created = self.create_open(credentials, *parent, name, *mode, *umask, flags).await?;
            return self.write_created(credentials, file, created.file, data).await;
        }
        let mut at = self.directory_maps.place(file.parent, &file.name);
        let CompoundOutcome { reply, left_open, .. } = loop {
            let (compound, open) = self.creation(credentials, &NewFile { parent: at, ..file.clone() }, &data);
            let outcome = self.open_by_compound(at, compound, open, data.clone()).await?;
            match outcome.reply.error {
                Some(FsError::CrossDevice) => {}
                // Perhaps this shard has ended.
                Some(FsError::Stale) if at != file.parent => {}
                _ => break outcome,
            }
            // The directory is striped, and where the name belongs is known then.
            let is_new = at == file.parent && self.directory_map(file.parent).await?.is_some();
            let place = self.directory_maps.place(file.parent, &file.name);
            if !is_new || place == at {
                // Its names move: it is asked for this one alone, until it is found.
                let NewFile { parent, name, mode, umask } = &file;
                let created = self.create_open(credentials, *parent, name, *mode, *umask, open.1).await?;
                return self.write_created(credentials, file, created.file, data).await;
            }
            at = place;
        };
        match (left_open, reply.error, reply.replies.last()) {
            (Some(left_open), _, _) => self.write_created(credentials, file, left_open, data).await,
            (None, Some(error), _) => Err(error),
            (None, None, Some(StepReply::Entry(entry))) => {
                self.count(Operation::Mknod);
                self.statistics.count_bytes(Operation::WriteBytes, data.len());
                self.complete(entry).await
            }
            (None, None, reply) => Err(unexpected(reply)),
        }
    }

    /// Create, write, close, and look at what that left.
    fn creation(&self, who: &Credentials, file: &NewFile, data: &Bytes) -> (Compound, (OpenId, OpenFlags)) {
        let (made, written) = (StepInode::Of(0), 1);
        let open = (self.next_open_id(), OpenFlags(open_flag::WRITE | open_flag::EXCLUSIVE));
        let NewFile { parent, name, mode, umask } = file.clone();
        let (parent, kind) = (StepInode::Known(parent), NodeKind::Regular);
        let (bytes, checksums) = (data.len() as u32, checksum::checksums(0, data));
        let steps = vec![
            Step::Create { parent, name, kind, mode, umask, layout: None, open: Some(open) },
            Step::Write { inode: made, offset: 0, bytes, checksums },
            Step::Close { inode: made, open: open.0, written: Some(written) },
            Step::GetAttributes { inode: made },
        ];
        (Compound { who: who.clone(), steps }, open)
    }

    /// Writes and closes a new file, and removes it if that fails.
    async fn write_created(
        self: &Arc<Self>,
        credentials: &Credentials,
        NewFile { parent, name, .. }: NewFile,
        file: Arc<OpenFile>,
        data: Bytes,
    ) -> FsResult<Attributes> {
        let inode = file.inode();
        let outcome = self.write_all(&file, data).await;
        let closed = self.close(file, None).await;
        match outcome.and(closed) {
            Ok(()) => self.get_attributes(inode, None).await,
            Err(error) => {
                if let Err(left) = self.unlink(credentials, parent, &name).await {
                    tracing::warn!(%inode, error = %left, "cannot remove a file that could not be written");
                }
                Err(error)
            }
        }
    }

    async fn write_all(self: &Arc<Self>, file: &Arc<OpenFile>, mut data: Bytes) -> FsResult<()> {
        let mut offset = 0;
        while !data.is_empty() {
            let written = self.write_new(file, offset, data.clone()).await?;
            let _ = data.split_to(written);
            offset += written as u64;
        }
        Ok(())
    }

    /// Attributes of what a path leads to from a directory, in one request for each
    /// [`COMPOUND_STEPS_MAX`] names, or for each name if the path leads over several MDTs. Symbolic
    /// links are not followed.
    ///
    /// ```
    /// # mod cluster { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/cluster.rs")); }
    /// # use cluster::with_file_system;
    ///
    /// use client::NewNode;
    /// use types::{Credentials, InodeNumber, NodeKind};
    ///
    /// # with_file_system(async |file_system| {
    /// let root = Credentials::root();
    /// let mut parent = InodeNumber::ROOT;
    /// for name in [b"a", b"b", b"c"] {
    ///     let (name, kind) = (name.to_vec(), NodeKind::Directory);
    ///     let node = NewNode { parent, name, kind, mode: 0o755, umask: 0, layout: None };
    ///     parent = file_system.create(&root, node).await?.inode;
    /// }
    /// let found = file_system.walk(&root, InodeNumber::ROOT, &[b"a", b"b", b"c"]).await?;
    /// assert_eq!(found.inode, parent);
    /// assert_eq!(file_system.paths(&root, parent).await?, [b"a/b/c"]);
    /// # Ok(())
    /// # });
    /// ```
    pub async fn walk(&self, credentials: &Credentials, from: InodeNumber, path: &[&[u8]]) -> FsResult<Attributes> {
        match self.walk_on_one_mdt(credentials, from, path).await {
            Err(FsError::CrossDevice) => {}
            found => return found,
        }
        let mut at = from;
        let mut found = None;
        for name in path {
            let attributes = self.lookup(credentials, at, name).await?;
            at = attributes.inode;
            found = Some(attributes);
        }
        found.ok_or(FsError::Invalid)
    }

    /// `CrossDevice` if the path comes to a directory on another MDT.
    async fn walk_on_one_mdt(
        &self,
        credentials: &Credentials,
        from: InodeNumber,
        path: &[&[u8]],
    ) -> FsResult<Attributes> {
        let mut at = from;
        let mut found = None;
        for names in path.chunks(COMPOUND_STEPS_MAX) {
            let (steps, _) = lookups(at, names);
            let request = MdtRequest::Compound(Compound { who: credentials.clone(), steps });
            names.iter().for_each(|_| self.count(Operation::Lookup));
            let CompoundReply { mut replies, error } = match self.call(at, request).await?.reply {
                MdtReply::Compound(reply) => reply,
                reply => return Err(unexpected(reply)),
            };
            match (error, replies.pop()) {
                (Some(error), _) => return Err(error),
                (None, Some(StepReply::Entry(entry))) if replies.len() + 1 == names.len() => {
                    at = entry.attributes.inode;
                    found = Some(entry);
                }
                (None, reply) => return Err(unexpected(reply)),
            }
        }
        match found {
            Some(entry) => self.complete(&entry).await,
            None => self.get_attributes(from, None).await,
        }
    }

    /// Attributes and all data of the file that a path leads to from the inode `from`, which is
    /// that file if the path is empty. Symbolic links are not followed. `FileTooLarge` if it has
    /// more than `bytes_max` bytes.
    pub async fn open_and_read(
        self: &Arc<Self>,
        credentials: &Credentials,
        from: InodeNumber,
        path: &[&[u8]],
        bytes_max: usize,
    ) -> FsResult<(Attributes, ReadData)> {
        let (far, near) = path.split_at(path.len().saturating_sub(COMPOUND_STEPS_MAX - READ_STEPS));
        let from = match far {
            [] => from,
            far => self.walk(credentials, from, far).await?.inode,
        };
        let found = match self.read_on_mdt(credentials, from, near, bytes_max).await {
            Err(FsError::CrossDevice) => Whole::Elsewhere(self.walk(credentials, from, near).await?.inode, None),
            found => found?,
        };
        let (inode, file) = match found {
            Whole::Read(attributes, data) => {
                self.count(Operation::Open);
                self.statistics.count_bytes(Operation::ReadBytes, data.len());
                return Ok((attributes, data));
            }
            Whole::TooLarge => return Err(FsError::FileTooLarge),
            Whole::Elsewhere(inode, Some(file)) => (inode, file),
            Whole::Elsewhere(inode, None) => (inode, self.open(credentials, inode, OpenFlags(open_flag::READ)).await?),
        };
        let outcome = match file.kind() {
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => self.read(&file, 0, bytes_max.saturating_add(1)).await,
        };
        let attributes = self.get_attributes(inode, Some(&file)).await;
        self.close(file, None).await?;
        match outcome? {
            data if data.len() > bytes_max => Err(FsError::FileTooLarge),
            data => Ok((attributes?, data)),
        }
    }

    async fn read_on_mdt(
        self: &Arc<Self>,
        credentials: &Credentials,
        from: InodeNumber,
        path: &[&[u8]],
        bytes_max: usize,
    ) -> FsResult<Whole> {
        let open = (self.next_open_id(), OpenFlags(open_flag::READ));
        let (mut steps, found) = lookups(from, path);
        let bytes = bytes_max.min(WHOLE_FILE_BYTES_MAX) as u32;
        steps.push(Step::Open { inode: found, open: open.0, flags: open.1 });
        let file = last_of(&steps);
        steps.push(Step::Read { inode: file, offset: 0, bytes });
        steps.push(Step::Close { inode: file, open: open.0, written: None });
        let compound = Compound { who: credentials.clone(), steps };
        for _ in 0..ATTEMPTS {
            let CompoundOutcome { reply, data, left_open } =
                self.open_by_compound(from, compound.clone(), open, Bytes::new()).await?;
            if let Some(file) = left_open {
                return Ok(Whole::Elsewhere(file.inode(), Some(file)));
            }
            if let Some(error) = reply.error {
                return Err(error);
            }
            let (entry, done) = match &reply.replies[..] {
                [.., StepReply::Opened(opened), StepReply::Read(done), _] => (&opened.entry, done),
                _ => return Err(unexpected(reply)),
            };
            match checksum::verify(0, &data, &done.checksums) {
                Ok(()) => return self.whole(entry, done, data, bytes_max).await,
                Err(FsError::Transfer) => {
                    tracing::warn!(inode = %entry.attributes.inode, "data were damaged in transit; retrying")
                }
                Err(error) => return Err(error),
            }
        }
        Err(FsError::Transfer)
    }

    /// Whether these data, all that was read of the object on the MDT, are the whole file.
    async fn whole(&self, entry: &Entry, done: &ReadDone, data: Bytes, bytes_max: usize) -> FsResult<Whole> {
        let (found, inode) = (data.len() as u64, entry.attributes.inode);
        if found > done.size {
            return Err(ProtocolError::DataBytes { found, expected: done.size }.into());
        }
        let size = match &entry.size_unknown {
            None => entry.attributes.size,
            // Nothing of it is elsewhere.
            Some(layout) if layout.object_count() == 1 => done.size,
            Some(_) => return Ok(Whole::Elsewhere(inode, None)),
        };
        if size > bytes_max as u64 {
            return Ok(Whole::TooLarge);
        }
        if size != found {
            return Ok(Whole::Elsewhere(inode, None));
        }
        let attributes = self.complete(entry).await?;
        let mut read = ReadData::default();
        read.push(data);
        Ok(Whole::Read(Attributes { size, ..attributes }, read))
    }
}
