//! Writing.
//!
//! The layout splits a write into one request per object (several above `max_pages_per_rpc`, 4 MiB
//! unless it is changed), all in flight at once. Data that are contiguous in the caller's buffer
//! are sent from there; stripes of one object that are apart in the buffer are gathered, because
//! one request and a copy cost less than several requests.
//!
//! Data that an OST refuses for lack of space go to another OST if possible (see
//! [`crate::placement::no_space`]).
//!
//! If some requests fail, the bytes before the first failed one are reported as written: a short
//! write, as in POSIX. Bytes after it may have been written too; the next write or the caller's
//! error handling finds out.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use layout::{Coverage, Layout, ObjectRange};
use rpc::message::{
    MdtRequest,
    mdt::{ExclusiveBegin, ExclusiveGranted, ExclusivePurpose},
};
use rt::BoxFuture;
use types::{Credentials, FsError, FsResult, limits::FILE_BYTES_MAX, mode};

use crate::{
    FileSystem, Interruption, OpenFile, WriteOptions,
    cache::cached_inode::{CAPABILITIES_NAME, Privileges},
    cancellation::finish::finish,
    join::join_all,
    locks::exclusive::Section,
    objects::object::Object,
    open_state::open_inode::OpenInode,
    operations::truncate::adopted,
    placement::no_space::{Refusals, Search},
    statistics::Operation,
    targets::connection::{done, entry},
};

impl FileSystem {
    /// Writes; returns the number of bytes written, fewer than given only if an object failed after
    /// them or the largest file size is reached. An empty write succeeds.
    pub async fn write(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        offset: u64,
        data: Bytes,
        options: WriteOptions,
    ) -> FsResult<usize> {
        if options.append {
            file.check_writable()?;
        } else {
            file.check_changeable()?;
        }
        if data.is_empty() {
            return Ok(0);
        }
        self.clear_privileges(&file.open, options.keep_set_id).await?;
        self.write_checked(file, offset, data, options).await
    }

    /// Writes to a file that the same operation has just made: nobody has set anything on it
    /// before.
    pub(crate) async fn write_new(self: &Arc<Self>, file: &Arc<OpenFile>, offset: u64, data: Bytes) -> FsResult<usize> {
        self.write_checked(file, offset, data, WriteOptions::default()).await
    }

    async fn write_checked(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        offset: u64,
        data: Bytes,
        options: WriteOptions,
    ) -> FsResult<usize> {
        let written = if options.append {
            let (this, file) = (self.clone(), file.clone());
            finish(&self.seams.spawn, move |abandoned| async move {
                let _change = file.begin_change()?;
                this.begin(file.inode(), &abandoned).await?;
                this.append(&file, data, options, &Interruption::default().or_abandoned(abandoned)).await
            })
            .await?
        } else {
            self.write_at(file, offset, data, options, None).await?
        };
        self.statistics.count_bytes(Operation::WriteBytes, written);
        Ok(written)
    }

    /// Clears set-id bits before the first write of a user who may not keep them, and capabilities
    /// before the first write of any user. The same goes for the other changes of data through an
    /// open file.
    pub(crate) async fn clear_privileges(&self, open: &OpenInode, keep_set_id: bool) -> FsResult<()> {
        self.learn_privileges(open, keep_set_id).await?;
        let (set_id, capabilities) = {
            let state = open.state();
            (state.set_id && !keep_set_id, state.capabilities)
        };
        if !set_id && !capabilities {
            return Ok(());
        }
        let inode = open.inode();
        let request = match set_id {
            true => MdtRequest::ClearPrivileges(inode),
            false => MdtRequest::RemoveXattr(Credentials::root(), inode, CAPABILITIES_NAME.to_vec()),
        };
        match self.call(inode, request).await.and_then(done) {
            // Another write was faster.
            Ok(()) | Err(FsError::NoData) => {}
            Err(error) => return Err(error),
        }
        let mut state = open.state();
        state.set_id &= !set_id;
        state.capabilities = false;
        Ok(())
    }

    /// Another client may have set set-id bits or capabilities since the file was opened. What is
    /// cached says what there was when the lock on extended attributes was granted, which has to be
    /// given back for that. If nothing is cached, the file is taken to have them. Two exceptions: a
    /// file without a name, which gets none; and writes go on while the MDT cannot be asked.
    async fn learn_privileges(&self, open: &OpenInode, keep_set_id: bool) -> FsResult<()> {
        let inode = open.inode();
        let target = self.targets.mdt_of(inode)?;
        let mut known = self.look(inode, |cache| cache.privileges(inode));
        let cannot_be_asked = || !target.is_connected() || !target.cache().grants();
        if known.is_none() && (open.has_no_name() || cannot_be_asked()) {
            return Ok(());
        }
        if known.is_none() && open.may_have_no_name() {
            let attributes = self.call(inode, MdtRequest::GetAttributes(inode)).await.and_then(entry)?.attributes;
            if attributes.links == 0 {
                open.note_no_name();
                return Ok(());
            }
        }
        if known.is_none() && keep_set_id {
            // With the lock.
            let request = MdtRequest::GetXattr(Credentials::root(), inode, CAPABILITIES_NAME.to_vec());
            let capabilities = match self.call(inode, request).await {
                Ok(_) => true,
                Err(FsError::NoData) => false,
                Err(error) => return Err(error),
            };
            known = Some(Privileges { set_id: true, capabilities });
        }
        let Privileges { set_id, capabilities } = known.unwrap_or(Privileges { set_id: true, capabilities: true });
        let mut state = open.state();
        state.set_id |= set_id;
        state.capabilities |= capabilities;
        Ok(())
    }

    /// As [`FileSystem::clear_privileges`], on behalf of this user: a writer that is not a member
    /// of the file's group clears its set-group-id bit even if the group may not execute the file.
    /// (The kernel does not say on whose behalf it writes.)
    pub(crate) async fn drop_privileges(&self, open: &OpenInode, who: &Credentials) -> FsResult<()> {
        if who.is_root() {
            return self.clear_privileges(open, true).await;
        }
        self.learn_privileges(open, false).await?;
        if !open.has_privileges() {
            return Ok(());
        }
        let inode = open.inode();
        let entry = self.call(inode, MdtRequest::DropPrivileges(who.clone(), inode)).await.and_then(entry)?;
        let mut state = open.state();
        state.set_id = entry.attributes.mode & (mode::S_ISUID | mode::S_ISGID) != 0;
        state.capabilities = false;
        Ok(())
    }

    /// Appends: under the exclusive data lock, at the end of the file as of then.
    async fn append(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        data: Bytes,
        options: WriteOptions,
        interruption: &Interruption,
    ) -> FsResult<usize> {
        let open = &file.open;
        let begin = ExclusiveBegin { inode: file.inode(), open: Some(file.id()), purpose: ExclusivePurpose::Append };
        // The open file was checked when it was opened; nothing depends on the writing user.
        let (section, granted) = self.begin_exclusive(&Credentials::root(), &begin, interruption).await?;
        let outcome = match self.end_of_file(open, &granted).await {
            Ok(end) => self.write_at(file, end, data, options, Some(&section)).await,
            Err(error) => Err(error),
        };
        self.end_exclusive(section, None).await;
        outcome
    }

    /// The end of the file while the exclusive data lock is held: known if no other client wrote,
    /// otherwise by glimpse.
    async fn end_of_file(&self, open: &OpenInode, granted: &ExclusiveGranted) -> FsResult<u64> {
        let known = open.state().tracker.size_under(granted.epoch);
        match known {
            Some(size) => Ok(size),
            None => Ok(self.glimpse(open.inode(), adopted(Some(open), &granted.layout)?).await?.size),
        }
    }

    /// `section`: of an append. Boxed, see [`BoxFuture`].
    fn write_at<'a>(
        self: &'a Arc<Self>,
        file: &'a Arc<OpenFile>,
        offset: u64,
        data: Bytes,
        options: WriteOptions,
        section: Option<&'a Section>,
    ) -> BoxFuture<'a, FsResult<usize>> {
        Box::pin(self.write_at_inner(file, offset, data, options, section))
    }

    async fn write_at_inner(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        offset: u64,
        mut data: Bytes,
        options: WriteOptions,
        section: Option<&Section>,
    ) -> FsResult<usize> {
        let space = FILE_BYTES_MAX.saturating_sub(offset);
        if space == 0 {
            return Err(FsError::FileTooLarge);
        }
        let open = &*file.open;
        let mut layout = self.layout_of(open).await?;
        if layout.coverage(offset, space.min(data.len() as u64)) == Coverage::Beyond(layout.end()) {
            // A component may have been added.
            layout = self.layout_as_of_now(open).await?;
        }
        let space = space.min(layout.end().saturating_sub(offset));
        if space == 0 {
            return Err(FsError::NoData);
        }
        data.truncate(usize::try_from(space).unwrap_or(usize::MAX).min(data.len()));
        let mut search = Search::default();
        let written = loop {
            let (written, refusals) = self.write_once(file, offset, &data, options.sync).await?;
            if written == Ok(data.len()) || !self.find_space(file, refusals, &mut search, section).await {
                break written?;
            }
        };
        if options.sync {
            self.commit_once(open).await?;
        }
        Ok(written)
    }

    /// One attempt under the present layout.
    async fn write_once(
        &self,
        file: &OpenFile,
        offset: u64,
        data: &Bytes,
        sync: bool,
    ) -> FsResult<(FsResult<usize>, Refusals)> {
        let _changing = file.open.changing.read().await;
        let layout = self.writable(file, offset, data.len() as u64).await?;
        let mut refusals = Refusals::default();
        Ok((self.write_range(&file.open, &layout, offset, data, sync, &mut refusals).await, refusals))
    }

    async fn write_range(
        &self,
        open: &OpenInode,
        layout: &Layout,
        offset: u64,
        data: &Bytes,
        sync: bool,
        refusals: &mut Refusals,
    ) -> FsResult<usize> {
        let inode = open.inode();
        let chunks = self.requests_of(inode, layout, offset, data.len() as u64);
        let write = |chunk: &ObjectRange| {
            let object = Object::new(inode, layout, (chunk.slot, chunk.location), Some(open));
            self.write_object(object, layout, chunk.offset, gather(chunk, offset, data), sync)
        };
        let outcomes = join_all(chunks.iter().map(write).collect()).await;
        let mut written = data.len() as u64;
        let mut failure = None;
        for (chunk, outcome) in chunks.iter().zip(outcomes) {
            refusals.note(layout, chunk, &outcome);
            if let Err(error) = outcome {
                let start = chunk.file_offset() - offset;
                if failure.is_none() || start < written {
                    (written, failure) = (start.min(written), Some(error));
                }
            }
        }
        assert!(written <= data.len() as u64, "no more is written than was given");
        match failure {
            Some(error) if written == 0 => Err(error),
            _ => Ok(written as usize),
        }
    }
}

/// The bytes of one request, from a buffer that starts at `offset` of the file.
fn gather(chunk: &ObjectRange, offset: u64, data: &Bytes) -> Bytes {
    let part = |piece: layout::Piece| {
        let start = (piece.file_offset - offset) as usize;
        start..start + piece.bytes as usize
    };
    let mut pieces = chunk.pieces();
    let first = pieces.next().expect("a range is never empty");
    if first.bytes == chunk.bytes {
        return data.slice(part(first));
    }
    let mut gathered = BytesMut::with_capacity(chunk.bytes as usize);
    gathered.extend_from_slice(&data[part(first)]);
    pieces.for_each(|piece| gathered.extend_from_slice(&data[part(piece)]));
    assert_eq!(gathered.len() as u64, chunk.bytes, "the pieces of a request are all of it");
    gathered.freeze()
}

#[cfg(test)]
mod tests {
    use layout::{PlainLayout, StripeSpec};
    use types::{Generation, OstIndex};

    use super::*;

    #[test]
    fn one_piece_is_not_copied_and_several_are_gathered_in_order() {
        const STRIPE: usize = 65536;
        let plain = PlainLayout { stripe_bytes: STRIPE as u64, osts: (0..2).map(OstIndex).collect() };
        let layout = Layout::plain(Generation(1), plain, StripeSpec::default());
        let data: Bytes = (0..4 * STRIPE).map(|index| (index / STRIPE) as u8).collect();
        let chunks: Vec<_> = layout.ranges(0, data.len() as u64).collect();
        let second = gather(&chunks[1], 0, &data);
        assert_eq!(second.len(), 2 * STRIPE);
        assert!(second[..STRIPE].iter().all(|byte| *byte == 1) && second[STRIPE..].iter().all(|byte| *byte == 3));
        let single: Vec<_> = layout.ranges(10, 20).collect();
        assert_eq!(gather(&single[0], 10, &data.slice(..20)).as_ptr(), data.as_ptr());
    }
}
