//! Changing the size of a file: under the exclusive data lock, all objects at once.

use std::sync::Arc;

use layout::{Layout, Location};
use rpc::message::{
    mdt::{ExclusiveBegin, ExclusivePurpose, SizeUpdate},
    ost::SpaceChange,
};
use types::{Attributes, Credentials, FsError, FsResult, InodeNumber, limits::FILE_BYTES_MAX};

use crate::{
    FileSystem, Interruption, OpenFile,
    cancellation::finish::finish,
    join::join_all,
    locks::exclusive::Section,
    objects::{data_attributes::DataAttributes, object::Object},
    open_state::open_inode::{OpenInode, verified},
    statistics::Operation,
};

/// The layout that came with the lock, verified and known to what this client has open. It is
/// claimed with the lock from each new start of the MDT, so it is as good as a current one.
pub(crate) fn adopted<'a>(open: Option<&OpenInode>, told: &'a Layout) -> FsResult<&'a Layout> {
    let layout = verified(told)?;
    if let Some(open) = open {
        open.adopt(layout, || true)?;
    }
    Ok(layout)
}

/// What the end of a truncation tells the MDT: the data attributes, unless this client has the file
/// open for writing and tells them at its close.
pub(crate) fn report(
    open: Option<&OpenInode>,
    epoch: u64,
    size: u64,
    outcome: &FsResult<DataAttributes>,
) -> Option<SizeUpdate> {
    let written_here = open.is_some_and(|open| open.state().has_writers());
    let data_attributes = outcome.as_ref().ok().filter(|_| !written_here)?;
    Some(DataAttributes { size, ..*data_attributes }.update(epoch))
}

/// Objects and their new sizes.
type Truncated = Vec<((u32, Location), u64)>;

impl FileSystem {
    /// Sets the size; through a file open for writing if there is one, else write permission is
    /// checked.
    pub async fn truncate(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        file: Option<&Arc<OpenFile>>,
        size: u64,
    ) -> FsResult<Attributes> {
        self.truncate_unless(credentials, inode, file, size, Interruption::default()).await
    }

    /// As [`FileSystem::truncate`]; a wait for others ends with `Interrupted` when the interruption
    /// is raised.
    pub async fn truncate_unless(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        file: Option<&Arc<OpenFile>>,
        size: u64,
        interruption: Interruption,
    ) -> FsResult<Attributes> {
        self.count(Operation::Truncate);
        if size > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        if let Some(file) = file {
            file.check_writable()?;
        }
        let begin =
            ExclusiveBegin { inode, open: file.map(|file| file.id()), purpose: ExclusivePurpose::Truncate(size) };
        let (this, credentials, file) = (self.clone(), credentials.clone(), file.cloned());
        finish(&self.seams.spawn, move |abandoned| async move {
            let _change = file.as_deref().map(OpenFile::begin_change).transpose()?;
            this.begin(inode, &abandoned).await?;
            let interruption = interruption.or_abandoned(abandoned);
            this.truncate_locked(&credentials, begin, size, &interruption).await
        })
        .await
    }

    async fn truncate_locked(
        &self,
        credentials: &Credentials,
        begin: ExclusiveBegin,
        size: u64,
        interruption: &Interruption,
    ) -> FsResult<Attributes> {
        let (section, granted) = self.begin_exclusive(credentials, &begin, interruption).await?;
        let inode = begin.inode;
        let open = self.client_state.opens.find(inode);
        // Nothing returns before the lock is given back.
        let outcome = match adopted(open.as_deref(), &granted.layout) {
            Ok(layout) => self.truncate_objects(inode, open.as_deref(), layout, size, &section).await,
            Err(error) => Err(error),
        };
        let update = report(open.as_deref(), section.epoch, size, &outcome);
        self.end_exclusive(section, update).await;
        let data_attributes = outcome?;
        Ok(DataAttributes { size, ..data_attributes }.complete(&granted.entry))
    }

    /// Truncates objects to their shares of `size`, within a section of the exclusive data lock:
    /// `Stale` once the incarnation of the mount in which the lock was taken is over, because
    /// others may have taken it since. The attributes are exact if no client writes meanwhile.
    ///
    /// Objects of components that end before `size` keep what they have: nothing of it is cut off,
    /// and what follows them in the file holds its size. Such a component may have been extended
    /// since the layout was told, and another client may write there: its share of `size` by this
    /// layout would cut that off. Where nothing follows that has objects, one of them keeps the
    /// length ([`Layout::keeper_of_length`]).
    pub(crate) async fn truncate_objects(
        &self,
        inode: InodeNumber,
        open: Option<&OpenInode>,
        layout: &Layout,
        size: u64,
        section: &Section,
    ) -> FsResult<DataAttributes> {
        let mut outcome = self.truncate_by(inode, open, layout, size, section).await;
        let mut generation = layout.generation;
        while outcome == Err(FsError::LayoutChanged) {
            let layout = self.newer_layout(inode, open, generation).await?;
            outcome = self.truncate_by(inode, open, &layout, size, section).await;
            generation = layout.generation;
        }
        outcome
    }

    /// One attempt under this layout.
    async fn truncate_by(
        &self,
        inode: InodeNumber,
        open: Option<&OpenInode>,
        layout: &Layout,
        size: u64,
        section: &Section,
    ) -> FsResult<DataAttributes> {
        // Until all objects are truncated, their size is not known.
        let begun = open.map_or(0, |open| {
            let mut state = open.state();
            state.tracker.forget();
            state.tracker.begun()
        });
        let object = |found| {
            let object = Object::new(inode, layout, found, open).within(section.incarnation);
            section.owner.map_or(object, |owner| object.owned_by(owner))
        };
        let outcome = match self.to_truncate(inode, layout, size).await {
            Ok((kept, truncated)) => {
                let expected = begun + truncated.len() as u64;
                let truncated = truncated.into_iter().map(|(one, object_size)| (object(one), object_size)).collect();
                let kept = DataAttributes { size, ..kept };
                self.truncate_each(layout, truncated, kept).await.map(|data_attributes| (data_attributes, expected))
            }
            Err(error) => Err(error),
        };
        if let Some(open) = open {
            let mut state = open.state();
            match &outcome {
                Ok((data_attributes, expected)) => state.tracker.truncated(section.epoch, data_attributes, *expected),
                Err(_) => state.tracker.forget(),
            }
        }
        outcome.map(|(data_attributes, _)| data_attributes)
    }

    /// The data attributes of objects that keep what they have, and the others with their new
    /// sizes.
    async fn to_truncate(
        &self,
        inode: InodeNumber,
        layout: &Layout,
        size: u64,
    ) -> FsResult<(DataAttributes, Truncated)> {
        let keeper = layout.keeper_of_length(size);
        let ends_before = |&(slot, _): &(u32, Location)| layout.extent_of(slot).end < size && keeper != Some(slot);
        let (before, affected): (Vec<_>, Vec<_>) = layout.objects().partition(ends_before);
        let share = |slot: u32| if keeper == Some(slot) { size } else { layout.object_size(slot, size) };
        let mut truncated: Truncated = affected.into_iter().map(|object| (object, share(object.0))).collect();
        let data_attributes = self.glimpse_some(inode, layout, before.iter().map(|(slot, _)| *slot).collect()).await?;
        if data_attributes.size <= size {
            return Ok((data_attributes, truncated));
        }
        // One of them was truncated to a size after its end: it kept the file's length, or that
        // part was left out of its component since.
        let mut kept = DataAttributes::default();
        for object in before {
            let own = self.glimpse_some(inode, layout, vec![object.0]).await?;
            if own.size <= size {
                kept = kept.and(own);
            } else {
                truncated.push((object, layout.object_position(object.0, size)));
            }
        }
        Ok((kept, truncated))
    }

    async fn truncate_each<'a>(
        &'a self,
        layout: &'a Layout,
        truncated: Vec<(Object<'a>, u64)>,
        kept: DataAttributes,
    ) -> FsResult<DataAttributes> {
        let truncate = |(object, object_size): (Object<'a>, u64)| {
            self.space_object(object, layout, SpaceChange::Truncate { size: object_size })
        };
        let outcomes = join_all(truncated.into_iter().map(truncate).collect()).await;
        let mut data_attributes = kept;
        for outcome in outcomes {
            let after = outcome?.after;
            data_attributes.blocks = data_attributes.blocks.saturating_add(after.blocks);
            data_attributes.add_changes(&after);
        }
        Ok(data_attributes)
    }
}
