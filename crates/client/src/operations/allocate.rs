//! fallocate(2), over stripes.
//!
//! Ranges that OSTs refuse to reserve go to other OSTs if possible (see
//! [`crate::placement::no_space`]); reserved ranges are not requested again. A large request is
//! refused before anything is reserved if all OSTs together do not have enough space for it.
//!
//! Downside: space reserved by a request that fails in the end stays reserved until the file is
//! removed.

use std::{collections::BTreeMap, sync::Arc};

use layout::{Location, ObjectRange};
use rpc::message::ost::SpaceChange;
use types::{Credentials, FsError, FsResult, limits::FILE_BYTES_MAX};

use crate::{
    AllocateMode, FileSystem, Interruption, OpenFile,
    join::join_all,
    objects::object::Object,
    placement::no_space::{Refusals, Search},
    statistics::Operation,
};

/// From so many bytes on, a reservation asks all OSTs for their space first: refused half-way, it
/// would have taken all there is.
const ASKING_BYTES_MIN: u64 = 1 << 30;

/// What one call has done so far: parts of objects, as offset and end.
#[derive(Debug, Default)]
struct Done {
    parts: BTreeMap<(u32, Location), Vec<(u64, u64)>>,
}

impl Done {
    fn note(&mut self, range: &ObjectRange) {
        assert!(range.bytes > 0, "a part of a reservation has bytes");
        let part = (range.offset, range.offset + range.bytes);
        self.parts.entry((range.slot, range.location)).or_default().push(part);
    }

    fn covers(&self, range: &ObjectRange) -> bool {
        let parts = self.parts.get(&(range.slot, range.location));
        parts.is_some_and(|parts| {
            parts.iter().any(|(offset, end)| *offset <= range.offset && range.offset + range.bytes <= *end)
        })
    }
}

/// What a mode does to one object's part of the range.
fn object_change(mode: AllocateMode, range: &ObjectRange) -> SpaceChange {
    let (offset, bytes) = (range.offset, range.bytes);
    match mode {
        AllocateMode::Allocate { extend } => SpaceChange::Allocate { offset, bytes, extend },
        AllocateMode::Punch => SpaceChange::Punch { offset, bytes },
        AllocateMode::Zero { extend } => SpaceChange::Zero { offset, bytes, extend },
    }
}

impl FileSystem {
    /// fallocate(2). Each object gets its part of the range, which is contiguous there. After an
    /// error some parts may have been changed; what they read as is the same in any case except for
    /// `Punch` and `Zero`. As with a write, set-id bits of a caller who may not keep them go before
    /// (root may), and all users' capabilities.
    pub async fn allocate(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        mode: AllocateMode,
        offset: u64,
        bytes: u64,
    ) -> FsResult<()> {
        self.allocate_unless(&Credentials::root(), file, mode, (offset, bytes), Interruption::default()).await
    }

    /// As [`FileSystem::allocate`] by this user for `range`, offset and length. If `interruption`
    /// is raised before room is looked for elsewhere, the outcome is `Interrupted`.
    pub async fn allocate_unless(
        self: &Arc<Self>,
        credentials: &Credentials,
        file: &Arc<OpenFile>,
        mode: AllocateMode,
        range: (u64, u64),
        interruption: Interruption,
    ) -> FsResult<()> {
        let (offset, bytes) = range;
        self.count(Operation::Fallocate);
        if matches!(mode, AllocateMode::Allocate { .. }) {
            file.check_writable()?;
        } else {
            file.check_changeable()?;
        }
        if bytes == 0 {
            return Err(FsError::Invalid);
        }
        let end = offset.checked_add(bytes).ok_or(FsError::FileTooLarge)?;
        if end > FILE_BYTES_MAX && mode != AllocateMode::Punch {
            return Err(FsError::FileTooLarge);
        }
        let reserves = matches!(mode, AllocateMode::Allocate { .. });
        if reserves && bytes >= ASKING_BYTES_MIN && self.bytes_available().await.is_some_and(|free| free < bytes) {
            return Err(FsError::NoSpace);
        }
        self.drop_privileges(&file.open, credentials).await?;
        let (mut search, mut done) = (Search::default(), Done::default());
        loop {
            let (outcome, refusals) = self.allocate_once(file, mode, range, &mut done).await?;
            if outcome.is_ok() {
                return outcome;
            }
            if !refusals.is_empty() && interruption.is_raised() {
                return Err(FsError::Interrupted);
            }
            if !self.find_space(file, refusals, &mut search, None).await {
                return outcome;
            }
        }
    }

    /// One attempt under the present layout.
    async fn allocate_once(
        &self,
        file: &OpenFile,
        mode: AllocateMode,
        (offset, bytes): (u64, u64),
        done: &mut Done,
    ) -> FsResult<(FsResult<()>, Refusals)> {
        let open = &*file.open;
        let _changing = open.changing.read().await;
        // What is only emptied may stay without objects.
        let layout = if mode == AllocateMode::Punch {
            self.layout_as_of_now(open).await?
        } else {
            self.writable(file, offset, bytes).await?
        };
        let inode = open.inode();
        let change = |range: &ObjectRange| {
            let object = Object::new(inode, &layout, (range.slot, range.location), Some(open));
            self.space_object(object, &layout, object_change(mode, range))
        };
        let ranges: Vec<ObjectRange> = layout.ranges(offset, bytes).filter(|range| !done.covers(range)).collect();
        let outcomes = join_all(ranges.iter().map(change).collect()).await;
        let mut refusals = Refusals::default();
        for (range, outcome) in ranges.iter().zip(&outcomes) {
            match outcome {
                Ok(_) => done.note(range),
                Err(_) => refusals.note(&layout, range, outcome),
            }
        }
        Ok((outcomes.into_iter().try_for_each(|outcome| outcome.map(|_| ())), refusals))
    }
}

#[cfg(test)]
mod tests {
    use layout::{Layout, PlainLayout, StripeSpec};
    use types::{Generation, OstIndex};

    use super::*;

    #[test]
    fn each_object_gets_its_part() {
        let plain = PlainLayout { stripe_bytes: 65536, osts: (0..3).map(OstIndex).collect() };
        let layout = Layout::plain(Generation(1), plain, StripeSpec::default());
        let changes: Vec<_> = layout
            .ranges(65536 + 100, 2 * 65536)
            .map(|range| (range.slot, object_change(AllocateMode::Punch, &range)))
            .collect();
        let punch = |offset, bytes| SpaceChange::Punch { offset, bytes };
        assert_eq!(changes, [(1, punch(100, 65436)), (2, punch(0, 65536)), (0, punch(65536, 100))]);
    }
}
