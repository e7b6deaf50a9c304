//! Sizes of files that only their objects know.
//!
//! While a file may be open for writing anywhere, its size, blocks and modification time come from
//! its objects. One `Glimpse` request is sent to each target, to all targets at once, whatever the
//! number of files and stripes.

use std::collections::BTreeMap;

use layout::Layout;
use rpc::message::{OstReply, OstRequest, mdt::Entry, mgs::TargetRole, ost::ObjectAttributes};
use rt::BoxFuture;
use types::{Attributes, FsError, FsResult, InodeNumber, ObjectId, limits::OBJECTS_PER_REQUEST_MAX};

use crate::{
    FileSystem,
    join::join_all,
    objects::{data_attributes::DataAttributes, object::holder_of},
    open_state::open_inode::verified,
    targets::connection::{done, unexpected},
};

/// What one target is asked.
#[derive(Default)]
struct Question {
    /// File (index) and slot of each object.
    places: Vec<(usize, u32)>,
    objects: Vec<ObjectId>,
}

impl FileSystem {
    /// Attributes of objects of one target, in order.
    async fn glimpse_target(&self, role: TargetRole, objects: Vec<ObjectId>) -> FsResult<Vec<ObjectAttributes>> {
        let target = self.targets.get(role)?;
        let mut attributes = Vec::with_capacity(objects.len());
        for batch in objects.chunks(OBJECTS_PER_REQUEST_MAX) {
            let mut outcome = target.call(OstRequest::Glimpse(batch.to_vec())).await;
            if matches!(outcome, Err(FsError::Evicted)) {
                // Looking changes nothing: once more, in the new session.
                outcome = target.call(OstRequest::Glimpse(batch.to_vec())).await;
            }
            match outcome?.reply {
                OstReply::Attributes(found) if found.len() == batch.len() => attributes.extend(found),
                reply => return Err(unexpected(reply)),
            }
        }
        Ok(attributes)
    }

    /// DataAttributes of files from the given slots of each. A file fails if a target that holds
    /// one of its objects does.
    fn glimpse_slots<'a>(
        &'a self,
        files: &'a [(InodeNumber, &'a Layout, Vec<u32>)],
    ) -> BoxFuture<'a, Vec<FsResult<DataAttributes>>> {
        Box::pin(self.glimpse_slots_inner(files))
    }

    async fn glimpse_slots_inner(&self, files: &[(InodeNumber, &Layout, Vec<u32>)]) -> Vec<FsResult<DataAttributes>> {
        let mut by_target: BTreeMap<TargetRole, Question> = BTreeMap::new();
        for (index, (inode, layout, slots)) in files.iter().enumerate() {
            for &slot in slots {
                let Some(location) = layout.location(slot) else { continue };
                let question = by_target.entry(holder_of(*inode, location)).or_default();
                question.places.push((index, slot));
                question.objects.push(layout.object(*inode, slot));
            }
        }
        let ask = |(role, question): (&TargetRole, &Question)| self.glimpse_target(*role, question.objects.clone());
        let answers = join_all(by_target.iter().map(ask).collect()).await;
        let mut data_attributes: Vec<FsResult<DataAttributes>> =
            files.iter().map(|_| Ok(DataAttributes::default())).collect();
        for (Question { places, .. }, answer) in by_target.values().zip(answers) {
            match answer {
                Ok(attributes) => {
                    for (&(index, slot), object) in places.iter().zip(&attributes) {
                        if let Ok(data_attributes) = &mut data_attributes[index] {
                            data_attributes.add(files[index].1, slot, object);
                        }
                    }
                }
                Err(error) => places.iter().for_each(|&(index, _)| data_attributes[index] = Err(error.clone())),
            }
        }
        data_attributes
    }

    /// DataAttributes of a file from some of its slots.
    pub(crate) async fn glimpse_some(
        &self,
        inode: InodeNumber,
        layout: &Layout,
        slots: Vec<u32>,
    ) -> FsResult<DataAttributes> {
        let mut data_attributes = self.glimpse_slots(&[(inode, layout, slots)]).await;
        data_attributes.pop().expect("one answer for one file")
    }

    /// DataAttributes of a file.
    pub(crate) async fn glimpse(&self, inode: InodeNumber, layout: &Layout) -> FsResult<DataAttributes> {
        self.glimpse_some(inode, layout, layout.objects().map(|(slot, _)| slot).collect()).await
    }

    /// Attributes with the size as of now.
    pub(crate) async fn complete(&self, entry: &Entry) -> FsResult<Attributes> {
        let Some(layout) = &entry.size_unknown else { return Ok(entry.attributes) };
        let data_attributes = self.glimpse(entry.attributes.inode, verified(layout)?).await?;
        self.report_found(entry, data_attributes).await;
        Ok(data_attributes.complete(entry))
    }

    /// As [`FileSystem::complete`], but without asking the objects of a file that this client alone
    /// writes. `begun`: changes begun before the MDT was asked ([`FileSystem::changes_begun`]).
    pub(crate) async fn complete_since(&self, entry: &Entry, begun: Option<u64>) -> FsResult<Attributes> {
        let open = self.client_state.opens.find(entry.attributes.inode);
        if let (Some(_), Some(epoch), Some(begun), Some(open)) = (&entry.size_unknown, entry.epoch, begun, open) {
            let alone = open.state().tracker.alone(epoch, begun);
            if let Some(known) = alone {
                return Ok(entry.completed(known.size, known.blocks, &known.data_changes()));
            }
        }
        self.complete(entry).await
    }

    /// Attributes of a file that this client alone has open for writing, without any request, if
    /// the lock on its attributes is held. If it is being closed, the MDT is asked instead: the
    /// close goes along, and a cache above may keep the attributes.
    pub(crate) fn own_attributes(&self, inode: InodeNumber) -> Option<Attributes> {
        let open = self.client_state.opens.find(inode).filter(|open| !open.is_closing())?;
        // Before the lock is looked at: changes by others come after it.
        let begun = open.state().tracker.begun();
        let base = self.cached(inode, |cache, _| cache.base(inode))?;
        let known = open.state().tracker.alone(base.write_epoch, begun)?;
        Some(base.entry.completed(known.size, known.blocks, &known.data_changes()))
    }

    /// Changes that this client began of a file that it has open; `None`: it has not.
    pub(crate) fn changes_begun(&self, inode: InodeNumber) -> Option<u64> {
        Some(self.client_state.opens.find(inode)?.state().tracker.begun())
    }

    /// Tells the MDT what the objects say about a file that no client writes and whose size it does
    /// not know: a writer that died leaves such files. The next client that looks asks the MDT
    /// alone.
    async fn report_found(&self, entry: &Entry, data_attributes: DataAttributes) {
        let Some(epoch) = entry.quiet else { return };
        let inode = entry.attributes.inode;
        if let Err(error) = self.call(inode, data_attributes.report(inode, epoch)).await.and_then(done) {
            tracing::debug!(%inode, %error, "the MDT did not accept the reported size");
        }
    }

    /// As [`FileSystem::complete`] for many inodes at once.
    pub(crate) async fn complete_all(&self, entries: &[&Entry]) -> Vec<FsResult<Attributes>> {
        let mut completed: Vec<FsResult<Attributes>> = entries.iter().map(|entry| Ok(entry.attributes)).collect();
        let mut places = Vec::new();
        let mut files = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            match entry.size_unknown.as_deref().map(verified) {
                None => {}
                Some(Err(error)) => completed[index] = Err(error),
                Some(Ok(layout)) => {
                    places.push(index);
                    files.push((entry.attributes.inode, layout, layout.objects().map(|(slot, _)| slot).collect()));
                }
            }
        }
        let found = self.glimpse_slots(&files).await;
        let known = places
            .iter()
            .zip(&found)
            .filter_map(|(index, data_attributes)| Some((entries[*index], data_attributes.clone().ok()?)));
        join_all(known.map(|(entry, data_attributes)| self.report_found(entry, data_attributes)).collect()).await;
        for (index, data_attributes) in places.into_iter().zip(found) {
            completed[index] = data_attributes.map(|data_attributes| data_attributes.complete(entries[index]));
        }
        completed
    }
}
