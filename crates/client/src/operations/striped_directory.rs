//! Striped directories: their attributes and their names are those of their shards
//! (docs/decisions/0058-striped-directories.md).

use std::{sync::Arc, time::Duration};

use rpc::{
    Answered, ImportState,
    message::{
        MdtReply, MdtRequest,
        mdt::{COOKIE_PARENT, COOKIE_SELF, Entry},
        mdt_peer::SplitDirectory,
        session::feature,
    },
};
use rt::clock;
use types::{
    Attributes, Credentials, DirectoryMap, FileKind, FsError, FsResult, InodeNumber, MdtIndex, Stripes,
    striping::SHARD_COOKIE_BITS,
};

use crate::{
    DirectoryItem, DirectoryPage, EntryAttributes, FileSystem, OpenFile,
    directory_maps::merged,
    join::join_all,
    name_places::NamePlaces,
    operations::read_directory::NamesMove,
    targets::{
        awaited_mdts::Pauses,
        connection::{entry, stale_if_evicted, unexpected},
    },
};

/// How long a shard's MDT has to answer for attributes: an MDT that is silent must not keep others
/// from passing through the directory, since the kernel asks for attributes on the way.
const SHARD_WAIT: Duration = Duration::from_millis(500);

/// The shard and the position in it of a cookie.
fn place_of(cookie: u64) -> (usize, u64) {
    let index = usize::try_from(cookie >> SHARD_COOKIE_BITS).unwrap_or(usize::MAX);
    (index, cookie & ((1 << SHARD_COOKIE_BITS) - 1))
}

/// The cookie of a position in a shard.
fn cookie_of(index: usize, position: u64) -> u64 {
    (index as u64) << SHARD_COOKIE_BITS | position & ((1 << SHARD_COOKIE_BITS) - 1)
}

impl FileSystem {
    /// Whether the answer was that a directory is striped, and the request is to be sent again to
    /// the shard. `learned`: the number of maps before it was sent
    /// ([`DirectoryMaps::learned`](crate::directory_maps::DirectoryMaps::learned)); `None`: what it
    /// is sent to is up to the caller.
    pub(crate) fn learns_map(&self, outcome: &FsResult<Answered<MdtReply>>, learned: Option<u64>) -> FsResult<bool> {
        let Ok(Answered { reply: MdtReply::Striped(map), .. }) = outcome else { return Ok(false) };
        if map.shards.is_empty() {
            // The name is in the directory, whose map is known.
            return Ok(false);
        }
        let is_news = self.directory_maps.learn(map.clone())?;
        match learned {
            None => Ok(false),
            // Another request at the same time may have learned it.
            Some(learned) if is_news || self.directory_maps.learned() != learned => Ok(true),
            // It was asked for the shard, and the MDT does not know that.
            Some(_) => Err(FsError::Stale),
        }
    }

    /// As [`FileSystem::call`], for a name in `parent`: once more if the first answer of all is
    /// that this is striped. (With several MDTs, `call` does that.)
    pub(crate) async fn call_for_name(
        &self,
        parent: InodeNumber,
        request: impl Fn() -> MdtRequest,
    ) -> FsResult<Answered<MdtReply>> {
        match self.call(parent, request()).await? {
            Answered { reply: MdtReply::Striped(_), .. } => self.call(parent, request()).await,
            answered => Ok(answered),
        }
    }

    /// Whether there may be striped directories.
    pub(crate) fn may_be_striped(&self) -> bool {
        self.targets.has_several_mdts() || self.directory_maps.is_used()
    }

    /// The map of a directory; `None`: it is not striped. Asks for it if it is not known.
    pub(crate) async fn directory_map(&self, directory: InodeNumber) -> FsResult<Option<Arc<DirectoryMap>>> {
        if let Some(map) = self.directory_maps.get(directory) {
            return Ok(Some(map));
        }
        if let Some(map) = self.layout_info(directory).await?.map {
            self.directory_maps.learn(map)?;
        }
        Ok(self.directory_maps.get(directory))
    }

    /// The directory itself if it is on this MDT, or its shard there.
    pub(crate) async fn part_on(&self, directory: InodeNumber, mdt: MdtIndex) -> FsResult<Option<InodeNumber>> {
        if directory.mdt() == mdt {
            return Ok(Some(directory));
        }
        let map = self.directory_map(directory).await?;
        Ok(map.and_then(|map| map.shards.iter().copied().find(|shard| shard.mdt() == mdt)))
    }

    /// Attributes as stat shows them: those of a striped directory with what its shards add.
    pub(crate) async fn with_shards(&self, (found, is_striped): (Attributes, bool)) -> FsResult<Attributes> {
        match is_striped && found.links > 0 {
            // Boxed: hardly any inode is striped.
            true => Box::pin(self.merged_with_shards(found)).await,
            false => Ok(found),
        }
    }

    async fn merged_with_shards(&self, found: Attributes) -> FsResult<Attributes> {
        let Some(map) = self.directory_map(found.inode).await? else { return Ok(found) };
        let shards = join_all(map.shards.iter().map(|shard| self.shard_attributes(*shard)).collect()).await;
        if shards.contains(&Err(FsError::Stale)) && self.is_still(&map).await == Ok(false) {
            // What they had is in the directory, or elsewhere by now.
            let now = entry(self.call(found.inode, MdtRequest::GetAttributes(found.inode)).await?)?;
            return self.with_shards((now.attributes, now.map_version > 0)).await;
        }
        let known = map.shards.iter().zip(shards);
        let known = known.filter_map(|(shard, found)| found.unwrap_or_else(|_| self.directory_maps.seen(*shard)));
        Ok(merged(found, &known.collect::<Vec<_>>()))
    }

    /// An entry of a directory says that this is striped: its map is needed for its attributes.
    pub(crate) async fn note_striped(&self, entry: &Entry) -> FsResult<()> {
        if entry.map_version == 0 {
            return Ok(());
        }
        self.directory_map(entry.attributes.inode).await.map(drop)
    }

    /// What is known of a shard: now, or as last seen if its MDT does not answer. `Stale`: there is
    /// no such shard.
    async fn shard_attributes(&self, shard: InodeNumber) -> FsResult<Option<Attributes>> {
        let known = self.cached(shard, |cache, opens| cache.attributes(shard, |inode| opens.is_written(inode)));
        let is_there = self.targets.mdt_of(shard).is_ok_and(|target| match target.import().state() {
            // A mount that has just begun, or found the MDT again, is connected in a moment.
            ImportState::New | ImportState::Recover | ImportState::Full => true,
            ImportState::Connecting => self.directory_maps.seen(shard).is_none(),
            _ => false,
        });
        let asked = match known {
            Some(known) => Some(known),
            None if is_there => {
                let until = self.seams.clock.now() + SHARD_WAIT;
                let ask = self.call(shard, MdtRequest::GetAttributes(shard));
                match clock::timeout_at(&*self.seams.clock, until, ask).await {
                    Some(Err(FsError::Stale)) => return Err(FsError::Stale),
                    answer => answer.and_then(|answer| answer.and_then(entry).ok()).map(|entry| entry.attributes),
                }
            }
            None => None,
        };
        Ok(match asked {
            Some(asked) => {
                self.directory_maps.saw(asked);
                Some(asked)
            }
            None => self.directory_maps.seen(shard),
        })
    }

    /// Whether a directory has the shards of this map, or none because it is gone. It may also have
    /// none because its MDT has lost power at the moment at which it got them.
    async fn is_still(&self, map: &DirectoryMap) -> FsResult<bool> {
        let is_still = match self.layout_info(map.master).await {
            Ok(info) => info.map.is_some_and(|now| now == *map),
            Err(FsError::Stale) => true,
            Err(error) => return Err(error),
        };
        if !is_still {
            map.shards.iter().for_each(|shard| self.directory_maps.forget_shard(map.master, *shard));
        }
        Ok(is_still)
    }

    /// `NotSupported`: one of these MDTs is of an earlier release, which takes several shards on
    /// one MDT for an impossible request. Of one that is not there that is not known.
    pub(crate) fn can_overstripe(&self, mdts: impl IntoIterator<Item = MdtIndex>) -> FsResult<()> {
        for mdt in mdts {
            let import = self.targets.mdt(mdt)?.import();
            if import.state() == ImportState::Full && !import.supports(feature::OVERSTRIPED_DIRECTORIES) {
                return Err(FsError::NotSupported);
            }
        }
        Ok(())
    }

    /// Gives a directory shards on these MDTs, and waits until its names are there; with its own
    /// MDT alone, until they are back in the directory (root only).
    pub async fn split_directory(&self, who: &Credentials, directory: InodeNumber, stripes: Stripes) -> FsResult<()> {
        for mdt in &stripes.mdts {
            self.targets.mdt(*mdt)?;
        }
        if stripes.is_overstriped() {
            self.can_overstripe(stripes.mdts.iter().copied().chain([directory.mdt()]))?;
        }
        loop {
            let split = SplitDirectory { directory, stripes: stripes.clone() };
            let request = MdtRequest::SplitDirectory(who.clone(), split);
            // It may have to be asked again with one MDT, too.
            let asked = self.call_placed(directory, request.into(), &mut NamePlaces::default()).await;
            match asked.map_err(stale_if_evicted)?.reply {
                MdtReply::Waiting => {}
                MdtReply::Done => return Ok(()),
                reply => return Err(unexpected(reply)),
            }
        }
    }

    /// Names of a striped directory after the cookie `after` of its shards, without those that the
    /// listing has shown elsewhere: shard after shard. Cookies have the index of the shard in their
    /// upper bits. `None`: it goes on in the directory itself. `cookie`: that of the listing.
    pub(super) async fn read_striped(
        &self,
        directory: &OpenFile,
        map: &DirectoryMap,
        (cookie, after, entries_max): (u64, u64, u32),
        attributes: EntryAttributes,
    ) -> FsResult<Option<DirectoryPage>> {
        let (mut items, mut pauses) = (Vec::new(), Pauses::default());
        let needed = directory.listing.lock().needed();
        if after < COOKIE_PARENT {
            let above = self.lookup(&Credentials::root(), map.master, b"..").await?;
            let dots = [(&b"."[..], map.master, COOKIE_SELF), (b"..", above.inode, COOKIE_PARENT)];
            let dot = |(name, inode, cookie): (&[u8], _, _)| DirectoryItem {
                name: name.to_vec(),
                inode,
                kind: FileKind::Directory,
                cookie,
                attributes: None,
            };
            items.extend(dots.into_iter().filter(|dot| dot.2 > after).take(entries_max as usize).map(dot));
        }
        let (mut index, mut position) = place_of(after);
        directory.listing.lock().forget_after(index, position);
        let is_end = loop {
            let Some(shard) = map.shards.get(index) else { break true };
            let room = entries_max.saturating_sub(items.len() as u32);
            if room == 0 {
                break false;
            }
            let (page, names_move) = match self.read_part(directory, *shard, (position, room), attributes).await {
                Err(FsError::Stale) if directory.open.check().is_ok() => {
                    if self.is_still(map).await? {
                        // The directory was removed while it was open.
                        break true;
                    }
                    // Its names are in the directory.
                    directory.listing.lock().all_gone(index);
                    break true;
                }
                page => page?,
            };
            let gone = match names_move {
                NamesMove::No => None,
                NamesMove::Back(places) => places.first().map(|(_, place)| *place),
                NamesMove::ToShards(place) if place < needed => {
                    let listing = &directory.listing;
                    if after <= COOKIE_PARENT && index == 0 && listing.lock().is_first() {
                        // What is left in the directory comes first.
                        listing.lock().begin(None, cookie, 0)?;
                        return Ok(None);
                    }
                    self.pause(&mut pauses, shard.mdt()).await;
                    continue;
                }
                NamesMove::ToShards(_) => None,
            };
            let last = page.items.last().map_or(position, |last| last.cookie);
            let has_more = !page.end && !page.items.is_empty();
            let of_shard = |item: DirectoryItem| DirectoryItem { cookie: cookie_of(index, item.cookie), ..item };
            let mut listing = directory.listing.lock();
            listing.gave(index, (position, last), gone);
            items.extend(page.items.into_iter().filter(|item| !listing.has_shown(&item.name)).map(of_shard));
            position = last;
            if !has_more {
                (index, position) = (index + 1, 0);
            }
        };
        let mut listing = directory.listing.lock();
        let goes_on = is_end && listing.has_gone();
        if goes_on && items.iter().all(|item| item.cookie <= COOKIE_PARENT) {
            // Also `.` and `..`, which the directory shows.
            listing.begin(None, cookie, 0)?;
            return Ok(None);
        }
        Ok(Some(DirectoryPage { items, end: is_end && !goes_on, span: None }))
    }
}

#[cfg(test)]
mod tests {
    use types::limits::SHARDS_MAX;

    use super::*;

    #[test]
    fn cookies_say_shard_and_position_and_grow_along_the_directory() {
        let last = (1 << SHARD_COOKIE_BITS) - 1;
        for (index, position) in [(0, 3), (0, last), (1, 128), (SHARDS_MAX - 1, last)] {
            let cookie = cookie_of(index, position);
            assert_eq!(place_of(cookie), (index, position));
            assert!(i64::try_from(cookie).is_ok(), "a positive offset");
        }
        assert!(cookie_of(1, 128) > cookie_of(0, last));
        assert_eq!(place_of(COOKIE_PARENT), (0, COOKIE_PARENT));
    }
}
