//! Sizes of files whose objects are the only ones to know them.
//!
//! While a file may be open for writing anywhere, its size, blocks and modification time are those of its objects: one
//! `Glimpse` request to each target, all at once, whatever the number of files and stripes.

use std::collections::BTreeMap;

use bytes::Bytes;
use layout::Layout;
use rpc::message::{
    MdtRequest, OstReply, OstRequest,
    mdt::{Entry, Settle, SizeUpdate},
    mgs::TargetRole,
    ost::ObjectAttributes,
};
use types::{Attributes, FsError, FsResult, InodeNumber, ObjectId, Timestamp};

use crate::{FileSystem, join::join_all, objects::holder_of, open_inode::verified, target::unexpected};

/// Objects asked about in one request: far below the limits of a message's length.
const GLIMPSE_OBJECTS_MAX: usize = 8192;

/// Figures of a file, from its objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub size: u64,
    pub blocks: u64,
    /// Of the object changed last.
    pub mtime: Timestamp,
}

impl Figures {
    /// Adds what one object says.
    fn add(&mut self, layout: &Layout, slot: u32, object: &ObjectAttributes) {
        self.size = self.size.max(layout.file_size(slot, object.size));
        self.blocks = self.blocks.saturating_add(object.blocks);
        self.mtime = self.mtime.max(object.mtime);
    }

    /// Of these objects and others.
    pub fn and(self, others: Figures) -> Figures {
        let blocks = self.blocks.saturating_add(others.blocks);
        Figures { size: self.size.max(others.size), blocks, mtime: self.mtime.max(others.mtime) }
    }

    /// The report of all objects' figures to the MDT.
    pub fn settle(self, inode: InodeNumber, epoch: u64) -> MdtRequest {
        let update = SizeUpdate { epoch, size: self.size, blocks: self.blocks, mtime: Some(self.mtime) };
        MdtRequest::Settle(Settle { inode, update })
    }
}

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
        for batch in objects.chunks(GLIMPSE_OBJECTS_MAX) {
            let mut outcome = target.objects(OstRequest::Glimpse(batch.to_vec()), Bytes::new()).await;
            if outcome == Err(FsError::Evicted) {
                // Looking changes nothing: once more, in the new session.
                outcome = target.objects(OstRequest::Glimpse(batch.to_vec()), Bytes::new()).await;
            }
            match outcome?.0 {
                OstReply::Attributes(found) if found.len() == batch.len() => attributes.extend(found),
                reply => return Err(unexpected(reply)),
            }
        }
        Ok(attributes)
    }

    /// Figures of files from the given slots of each. A file fails if a target that holds one of its objects does.
    async fn glimpse_slots(&self, files: &[(InodeNumber, &Layout, Vec<u32>)]) -> Vec<FsResult<Figures>> {
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
        let mut figures: Vec<FsResult<Figures>> = files.iter().map(|_| Ok(Figures::default())).collect();
        for (Question { places, .. }, answer) in by_target.values().zip(answers) {
            match answer {
                Ok(attributes) => {
                    for (&(index, slot), object) in places.iter().zip(&attributes) {
                        if let Ok(figures) = &mut figures[index] {
                            figures.add(files[index].1, slot, object);
                        }
                    }
                }
                Err(error) => places.iter().for_each(|&(index, _)| figures[index] = Err(error.clone())),
            }
        }
        figures
    }

    /// Figures of a file from some of its slots.
    pub(crate) async fn glimpse_some(&self, inode: InodeNumber, layout: &Layout, slots: Vec<u32>) -> FsResult<Figures> {
        let mut figures = self.glimpse_slots(&[(inode, layout, slots)]).await;
        figures.pop().expect("one answer for one file")
    }

    /// Figures of a file.
    pub(crate) async fn glimpse(&self, inode: InodeNumber, layout: &Layout) -> FsResult<Figures> {
        self.glimpse_some(inode, layout, layout.objects().map(|(slot, _)| slot).collect()).await
    }

    /// Attributes with the size as of now.
    pub(crate) async fn complete(&self, entry: &Entry) -> FsResult<Attributes> {
        let Some(layout) = &entry.unsettled else { return Ok(entry.attributes) };
        let figures = self.glimpse(entry.attributes.inode, verified(layout)?).await?;
        self.settle_found(entry, figures).await;
        Ok(combine(entry, figures))
    }

    /// Tells the MDT what the objects say of a file that nobody writes to and whose size it does not know: who died while
    /// writing leaves such files. The next to look asks the MDT alone.
    async fn settle_found(&self, entry: &Entry, figures: Figures) {
        let Some(epoch) = entry.quiet else { return };
        let inode = entry.attributes.inode;
        if let Err(error) = self.mdt_done(inode, figures.settle(inode, epoch)).await {
            tracing::debug!(%inode, %error, "the size that was found was not settled");
        }
    }

    /// As [`FileSystem::complete`] for many inodes at once.
    pub(crate) async fn complete_all(&self, entries: &[&Entry]) -> Vec<FsResult<Attributes>> {
        let mut completed: Vec<FsResult<Attributes>> = entries.iter().map(|entry| Ok(entry.attributes)).collect();
        let mut places = Vec::new();
        let mut files = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            match entry.unsettled.as_ref().map(verified) {
                None => {}
                Some(Err(error)) => completed[index] = Err(error),
                Some(Ok(layout)) => {
                    places.push(index);
                    files.push((entry.attributes.inode, layout, layout.objects().map(|(slot, _)| slot).collect()));
                }
            }
        }
        let found = self.glimpse_slots(&files).await;
        let known =
            places.iter().zip(&found).filter_map(|(index, figures)| Some((entries[*index], figures.clone().ok()?)));
        join_all(known.map(|(entry, figures)| self.settle_found(entry, figures)).collect()).await;
        for (index, figures) in places.into_iter().zip(found) {
            completed[index] = figures.map(|figures| combine(entries[index], figures));
        }
        completed
    }
}

/// What the MDT knows of an unsettled file, with what its objects know; times as the MDT will settle them.
fn combine(entry: &Entry, figures: Figures) -> Attributes {
    let mut attributes = Attributes { size: figures.size, blocks: figures.blocks, ..entry.attributes };
    if figures.mtime > entry.accounted {
        attributes.mtime = figures.mtime;
        attributes.ctime = attributes.ctime.max(figures.mtime);
    }
    attributes
}
