//! Space elsewhere: what happens when an OST refuses a change for lack of space.
//!
//! The MDT is told, so that it asks the OST and new files avoid it. If the object was never
//! created, it may as well be on another OST: the MDT changes the layout, and the change is tried
//! again. So a new file fails only when no OST has space. An object that exists stays where it is;
//! the refused range goes elsewhere if the layout is automatic or grows in steps (see
//! [`crate::placement::leave_out`]), otherwise the caller gets `NoSpace`.
//!
//! The old layout must not be in use when an object moves. The MDT knows about other clients;
//! within this one, the steps are:
//!
//! 1. the exclusive data lock: no truncation is in progress;
//! 2. [`OpenInode::changing`], alone: no other change is in progress;
//! 3. the file's data attributes are known exactly: no change of this client has an unknown
//!    outcome, and no other client changes the file (see [`crate::open_state::size_tracker`]);
//! 4. the objects do not exist;
//! 5. the request to the MDT. If its outcome is unknown, the client asks for the layout before it
//!    uses it again.
//!
//! Downside: if this client has a file open for writing twice, its data attributes are not known
//! exactly, and its objects stay where they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use layout::{Layout, Location, ObjectRange, extension, limits::COMPONENTS_MAX};
use rpc::message::{
    LeaveStep, MdtRequest, Relocation,
    mdt::{ExclusiveBegin, ExclusivePurpose},
};
use rt::BoxFuture;
use types::{Credentials, DataChanges, FsError, FsResult, Generation, OstIndex};

use crate::{
    FileSystem, Interruption, OpenFile, cancellation::finish::finish, locks::exclusive::Section,
    open_state::open_inode::OpenInode, targets::connection::done,
};

/// A change that an OST refused for lack of space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub slot: u32,
    pub ost: OstIndex,
    /// Its first byte, in the file.
    pub offset: u64,
    /// After its last byte.
    pub end: u64,
}

/// Why the changes of one attempt were refused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals {
    /// By slot, the first byte of each.
    full: BTreeMap<u32, Refused>,
    /// The layout is too old for an object.
    outdated: Option<Generation>,
}

impl Refusals {
    /// Notes how a change by `layout` came out.
    pub fn note<T>(&mut self, layout: &Layout, range: &ObjectRange, outcome: &FsResult<T>) {
        match (range.location, outcome) {
            (Location::Ost(ost), Err(FsError::NoSpace)) => {
                let offset = range.file_offset();
                let end = range.pieces().last().map_or(offset, |piece| piece.file_offset + piece.bytes);
                assert!(offset < end, "a change that is refused has bytes");
                let refused = Refused { slot: range.slot, ost, offset, end };
                let first = self.full.entry(range.slot).or_insert(refused);
                if offset < first.offset {
                    *first = refused;
                }
            }
            (_, Err(FsError::LayoutChanged)) => self.outdated = Some(layout.generation),
            _ => {}
        }
    }

    /// Whether nothing was refused that could go elsewhere.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty() && self.outdated.is_none()
    }

    /// The slots that are still where they were refused.
    fn present(&self, layout: &Layout) -> Vec<u32> {
        let present = |one: &&Refused| layout.location(one.slot) == Some(Location::Ost(one.ost));
        self.full.values().filter(present).map(|one| one.slot).collect()
    }

    /// The first one in the file.
    fn first(&self) -> Option<Refused> {
        self.full.values().min_by_key(|one| one.offset).copied()
    }
}

/// How often the first byte without room may go to an OST that refused it: the MDT asks an OST that
/// is said to be full, but one that has room, if not for so much, gets the byte again; and what
/// leaves the byte out may find that another client changed the layout meanwhile, which does not
/// move it.
const REFUSALS_OF_BYTE_MAX: u32 = 8;
/// Turns in which only OSTs refuse that did so before: as many as the parts that a layout takes.
const TURNS_REPEATED_MAX: usize = COMPONENTS_MAX;

/// One operation's search for space. It ends: a turn in which no other OST refuses than before is
/// one of a number, and an OST refuses a byte a number of times. A change that is refused because
/// its layout is too old waits for another search, which ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    /// OSTs that refused.
    refused: BTreeSet<OstIndex>,
    /// How often which OST refused which byte, of the first ones of each turn.
    first: BTreeMap<(OstIndex, u64), u32>,
    turns_repeated: usize,
}

impl Search {
    /// Notes what was refused; the OSTs of which the MDT should hear, or `None` if the search is
    /// over.
    fn turn(&mut self, refusals: &Refusals) -> Option<Vec<OstIndex>> {
        let first = refusals.first()?;
        let of_byte = self.first.entry((first.ost, first.offset)).or_default();
        *of_byte += 1;
        let of_byte = *of_byte;
        let in_vain = of_byte > REFUSALS_OF_BYTE_MAX;
        let refused: BTreeSet<OstIndex> = refusals.full.values().map(|one| one.ost).collect();
        let mut news: Vec<OstIndex> = refused.difference(&self.refused).copied().collect();
        self.refused.extend(&news);
        assert!(self.turns_repeated <= TURNS_REPEATED_MAX, "a search that is over does not go on");
        self.turns_repeated += usize::from(news.is_empty());
        if of_byte > 1 && !news.contains(&first.ost) {
            // What the MDT was told of it meanwhile is not so any more.
            news.push(first.ost);
        }
        (!in_vain && self.turns_repeated <= TURNS_REPEATED_MAX).then_some(news)
    }
}

impl FileSystem {
    /// Whether what was refused should be tried again, because it has another place now. `section`:
    /// of the caller, if it has the exclusive data lock.
    pub(crate) fn find_space<'a>(
        self: &'a Arc<Self>,
        file: &'a Arc<OpenFile>,
        refusals: Refusals,
        search: &'a mut Search,
        section: Option<&'a Section>,
    ) -> BoxFuture<'a, bool> {
        Box::pin(self.find_space_inner(file, refusals, search, section))
    }

    async fn find_space_inner(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        refusals: Refusals,
        search: &mut Search,
        section: Option<&Section>,
    ) -> bool {
        let open = &file.open;
        if let Some(generation) = refusals.outdated {
            return self
                .newer_layout(open.inode(), Some(open), generation)
                .await
                .map_err(|error| tracing::warn!(inode = %open.inode(), %error, "cannot get a newer layout"))
                .is_ok();
        }
        let Some(full) = search.turn(&refusals) else { return false };
        for ost in full {
            if let Err(error) = self.call(file.inode(), MdtRequest::ReportFull(ost)).await.and_then(done) {
                tracing::debug!(%ost, %error, "cannot tell the MDT that an OST is full");
            }
        }
        let moved = match section {
            Some(section) => self.place_or_leave_out(file, &refusals, search, section).await,
            None => {
                let (this, file, search) = (self.clone(), file.clone(), search.clone());
                finish(&self.seams.spawn, move |abandoned| async move {
                    let _change = file.begin_change()?;
                    let interruption = Interruption::default().or_abandoned(abandoned);
                    this.place_alone(&file, &refusals, &search, &interruption).await
                })
                .await
            }
        };
        moved.unwrap_or_else(|error| {
            tracing::warn!(inode = %file.inode(), %error, "cannot place refused objects on another OST");
            false
        })
    }

    /// Takes the exclusive data lock, if that is not in vain.
    async fn place_alone(
        &self,
        file: &OpenFile,
        refusals: &Refusals,
        search: &Search,
        interruption: &Interruption,
    ) -> FsResult<bool> {
        let layout = self.layout_of(&file.open).await?;
        let position = refusals.first().and_then(|first| layout.position_at(first.offset));
        let possible = position.is_some_and(|position| extension::may_leave_out(&layout, position))
            || self.are_missing(&file.open, &layout, refusals.present(&layout)).await?;
        if !possible {
            return Ok(false);
        }
        let begin = ExclusiveBegin { inode: file.inode(), open: Some(file.id()), purpose: ExclusivePurpose::Append };
        // The open file was checked when it was opened.
        let (section, _) = self.begin_exclusive(&Credentials::root(), &begin, interruption).await?;
        let moved = self.place_or_leave_out(file, refusals, search, &section).await;
        self.end_exclusive(section, None).await;
        moved
    }

    async fn place_or_leave_out(
        &self,
        file: &OpenFile,
        refusals: &Refusals,
        search: &Search,
        section: &Section,
    ) -> FsResult<bool> {
        if self.place_elsewhere(file, refusals, search, section).await? {
            return Ok(true);
        }
        match refusals.first() {
            Some(refused) => self.leave_out(file, refused, section).await,
            None => Ok(false),
        }
    }

    /// See the module documentation.
    async fn place_elsewhere(
        &self,
        file: &OpenFile,
        refusals: &Refusals,
        search: &Search,
        _section: &Section,
    ) -> FsResult<bool> {
        let open = &*file.open;
        let _alone = open.changing.write().await;
        open.check()?;
        let layout = self.layout_of(open).await?;
        let slots = refusals.present(&layout);
        if slots.is_empty() {
            return Ok(true);
        }
        let Some(exact) = open.state().tracker.update() else { return Ok(false) };
        if !self.are_missing(open, &layout, slots.clone()).await? {
            return Ok(false);
        }
        let refused = search.refused.iter().copied().collect();
        let relocation = LeaveStep::Relocate(Relocation { epoch: exact.epoch, slots, refused });
        match self.leave_full_ost(file, layout.generation, relocation).await {
            Ok(layout) => {
                // Durable: no start of the MDT can have lost it.
                open.adopt(&layout, || true)?;
                Ok(true)
            }
            Err(FsError::NoSpace) => Ok(false),
            Err(error) => {
                open.outdate_layout();
                Err(error)
            }
        }
    }

    /// Whether none of these objects exists. One that does has a time at least.
    async fn are_missing(&self, open: &OpenInode, layout: &Layout, slots: Vec<u32>) -> FsResult<bool> {
        let data_attributes = self.glimpse_some(open.inode(), layout, slots).await?;
        Ok(data_attributes.blocks == 0 && data_attributes.changes == DataChanges::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_at(ost: u16, offset: u64) -> Refusals {
        let refused = Refused { slot: 0, ost: OstIndex(ost), offset, end: offset + 1 };
        Refusals { full: BTreeMap::from([(0, refused)]), outdated: None }
    }

    #[test]
    fn a_byte_that_an_ost_refuses_again_and_again_ends_the_search() {
        let mut search = Search::default();
        assert_eq!(search.turn(&refused_at(1, 7)), Some(vec![OstIndex(1)]));
        assert_eq!(search.turn(&refused_at(2, 7)), Some(vec![OstIndex(2)]));
        for _ in 1..REFUSALS_OF_BYTE_MAX {
            assert_eq!(search.turn(&refused_at(1, 7)), Some(vec![OstIndex(1)]), "the MDT asks it again");
        }
        assert_eq!(search.turn(&refused_at(1, 8)), Some(Vec::new()), "it took some bytes");
        assert_eq!(search.turn(&refused_at(1, 7)), None);
        assert_eq!(search.turn(&Refusals::default()), None, "nothing was refused for want of space");
    }

    #[test]
    fn a_search_that_goes_on_by_a_byte_each_time_ends() {
        let mut search = Search::default();
        let turns = (0..).take_while(|offset| search.turn(&refused_at(1, *offset)).is_some()).count();
        assert_eq!(turns, 1 + TURNS_REPEATED_MAX);
    }

    #[test]
    fn all_osts_are_tried_however_many_they_are() {
        let mut search = Search::default();
        let osts = 4 * TURNS_REPEATED_MAX as u16;
        assert!((0..osts).all(|ost| search.turn(&refused_at(ost, 0)).is_some()));
    }
}
