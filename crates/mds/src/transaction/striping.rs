//! Striped directories within a transaction: their names are in shards
//! (docs/decisions/0058-striped-directories.md).

use rpc::message::{
    mdt_peer::{DropLink, MakeDirectory, OperationId, Part},
    session::feature,
};
use types::{
    Attributes, Credentials, Damage, DirectoryMap, DirectoryPlace, FileKind, FsError, FsResult, InodeNumber, MdtIndex,
    ShardPlace, Stripes,
};

use super::{Transaction, creation::NewInode};
use crate::tables::{
    decision::{DecidedPart, Decision, Xattrs},
    inode::{Inode, InodeData, Link, Striping, map_version},
};

/// A position before those of all names.
const NO_NAMES: u64 = 1;

/// Shards whose end others have promised, with the operations.
pub(crate) struct EndingShards {
    map: DirectoryMap,
    operations: Vec<(InodeNumber, OperationId)>,
}

/// What a shard has instead of a name in its directory.
pub(crate) fn shard_link(master: InodeNumber) -> Link {
    Link { parent: master, name: Vec::new() }
}

impl Transaction<'_> {
    /// A name is made in the shard to which it belongs; in a directory whose names move, only if a
    /// shard has room for it.
    pub fn check_place(&self, directory: InodeNumber, name: &[u8]) -> FsResult<()> {
        if self.moving.get() == Some(directory) {
            return match self.find_inode(directory)?.filter(Inode::names_return) {
                Some(inode) => self.check_share(&inode, name),
                None => self.check_group(directory, name),
            };
        }
        if !directory.is_shard() {
            return Ok(());
        }
        match self.find_inode(directory)?.map(|shard| shard.striping) {
            Some(Striping::Shard(place)) if !place.has(name) => Err(FsError::Invalid),
            _ => Ok(()),
        }
    }

    /// The directory that programs see as the parent of another one, if it is known here; else the
    /// shard of it that has the name.
    pub fn visible_parent(&self, directory: &Inode) -> FsResult<InodeNumber> {
        let parent = self.parent_of(directory);
        if !parent.is_shard() || !self.is_here(parent) {
            return Ok(parent);
        }
        Ok(self.find_inode(parent)?.and_then(|shard| shard.master()).unwrap_or(parent))
    }

    /// Where a new directory is made by the default of the one above; `None`: here, without
    /// stripes. That is also what clients get that would not find its names, or not itself: they
    /// can make and use directories as before there was a default. And it is where a directory goes
    /// that may be on any MDT, if it takes long until these are known.
    pub fn default_place(&self, directory: &Inode) -> FsResult<Option<DirectoryPlace>> {
        let Some(default) = directory.directory_default else { return Ok(None) };
        if !self.context.knows(feature::SEVERAL_MDTS | feature::STRIPED_DIRECTORIES) {
            return Ok(None);
        }
        if default.may_be_anywhere() && self.volatile.peers.is_map_late() {
            return Ok(None);
        }
        let there = self.mdts_in_use()?;
        let first = if default.is_spread() { self.spread_to(&there) } else { default.first.unwrap_or(self.mdt) };
        let place = default.place(first, &there);
        if place.stripes.is_overstriped() && !self.context.knows(feature::OVERSTRIPED_DIRECTORIES) {
            return Ok(None);
        }
        Ok((place.mdt != self.mdt || !place.stripes.mdts.is_empty()).then_some(place))
    }

    /// The MDT of a directory that is spread: the next one, if no attempt has chosen yet.
    fn spread_to(&self, there: &[MdtIndex]) -> MdtIndex {
        let policy = &self.context.parameters.directory_placement;
        let chosen = self.chosen_mdt.get().or_else(|| self.volatile.spread.lock().next(there, policy));
        self.chosen_mdt.set(chosen);
        chosen.unwrap_or(self.mdt)
    }

    /// What a former attempt of the request has chosen.
    pub fn set_chosen_mdt(&self, chosen: Option<MdtIndex>) {
        self.chosen_mdt.set(chosen);
    }

    /// What the next attempt is to keep to.
    pub fn chosen_mdt(&self) -> Option<MdtIndex> {
        self.chosen_mdt.get()
    }

    /// The MDTs in use, in order. Waits until they are known.
    pub fn mdts_in_use(&self) -> FsResult<Vec<MdtIndex>> {
        self.volatile.peers.in_use(self.mdt).map_or_else(|| self.wait_for_peer(self.mdt), Ok)
    }

    /// Makes a directory on this MDT or another one, with shards if there are stripes. Its name is
    /// the caller's to make.
    pub fn make_spread(
        &mut self,
        who: &Credentials,
        directory: &Inode,
        MakeDirectory { parent, name, mode, umask, mdt, stripes }: &MakeDirectory,
    ) -> FsResult<Inode> {
        if stripes.is_overstriped() || directory.directory_default.is_some_and(|default| default.is_overstriped()) {
            self.peers_must_know(feature::OVERSTRIPED_DIRECTORIES);
        }
        let mut made = Vec::with_capacity(1 + stripes.mdts.len());
        made.push(self.number_at(*mdt, Part::MakeDirectory)?);
        for at in &stripes.mdts {
            made.push(self.number_at(*at, Part::MakeShard)?);
        }
        let link = Some(Link { parent: *parent, name: name.clone() });
        let kind = &types::NodeKind::Directory;
        let new = NewInode { who, kind, mode: *mode, umask: *umask, layout: None, link };
        let number = made[0].1;
        let (mut master, xattrs) = self.make_elsewhere(directory, &new, number)?;
        if !stripes.mdts.is_empty() {
            let shards = made[1..].iter().map(|(_, number)| *number).collect();
            (master.striping, master.map_version) = (Striping::Over(stripes.hash, shards), map_version::MADE);
        }
        let inodes = std::iter::once(master.clone()).chain(shards_of(&master, stripes));
        for ((operation, number), inode) in made.iter().zip(inodes) {
            assert_eq!(inode.number(), *number, "numbers are in the order of the inodes");
            self.store_made(*operation, &inode, &xattrs);
        }
        Ok(master)
    }

    /// A directory without stripes has shards from now on. Its names are to be moved to these.
    /// `version`: which of [`map_version`].
    pub fn begin_split(
        &mut self,
        mut master: Inode,
        stripes: &Stripes,
        (version, lists): (u64, &Xattrs),
    ) -> FsResult<()> {
        if stripes.is_overstriped() || master.is_overstriped() {
            self.peers_must_know(feature::OVERSTRIPED_DIRECTORIES);
        }
        let made: Vec<_> =
            stripes.mdts.iter().map(|at| self.number_at(*at, Part::MakeShard)).collect::<FsResult<_>>()?;
        let shards = made.iter().map(|(_, number)| *number).collect();
        (master.striping, master.map_version) = (Striping::Over(stripes.hash, shards), version);
        let copied = self.with_default(&master)?;
        for ((operation, _), shard) in made.into_iter().zip(shards_of(&copied, stripes)) {
            self.store_made(operation, &shard, lists);
        }
        self.put_inode(&master);
        Ok(())
    }

    /// A directory as its shards have it: also with the layout for new files that it inherits,
    /// which other MDTs do not know.
    pub fn with_default(&self, master: &Inode) -> FsResult<Inode> {
        Ok(Inode { data: InodeData::Directory(self.stored_default(master)?), ..master.clone() })
    }

    /// A shard of a directory as it is made, without names; not stored. `Invalid`: it is none of
    /// its shards.
    pub fn lost_shard(&self, master: &Inode, shard: InodeNumber) -> FsResult<Inode> {
        let Striping::Over(hash, _) = master.striping else { return Err(FsError::Invalid) };
        let (copied, stripes) = (self.with_default(master)?, Stripes { hash, mdts: Vec::new() });
        let found = shards_of(&copied, &stripes).find(|made| made.number() == shard);
        found.ok_or(FsError::Invalid)
    }

    /// A new number of an MDT, and the operation if it is another one.
    fn number_at(&mut self, mdt: MdtIndex, part: Part) -> FsResult<(Option<OperationId>, InodeNumber)> {
        let is_shard = part == Part::MakeShard;
        if mdt == self.mdt {
            let number = self.new_number();
            return Ok((None, if is_shard { number.as_shard() } else { number }));
        }
        let (operation, prepared) = self.prepared(mdt, part)?;
        match prepared.inode.mdt() == mdt && prepared.inode.is_shard() == is_shard {
            true => Ok((Some(operation), prepared.inode)),
            false => Err(FsError::Invalid),
        }
    }

    fn store_made(&mut self, operation: Option<OperationId>, inode: &Inode, xattrs: &Xattrs) {
        match operation {
            Some(operation) => {
                let part = DecidedPart::Make { record: inode.encode_at(1), xattrs: xattrs.clone() };
                self.decide(inode.number().mdt(), Decision { operation, inode: inode.number(), part });
            }
            None => {
                xattrs.iter().for_each(|(name, value)| self.put_xattr(inode.number(), name, value));
                self.put_inode(inode);
            }
        }
    }

    /// The shards of a striped directory that goes: empty, and locked at other MDTs until the
    /// decision. To be asked last, when all else permits it.
    pub fn promise_shards(&mut self, map: DirectoryMap) -> FsResult<EndingShards> {
        if !map.is_possible() {
            return Err(Damage::new("map of a striped directory", "impossible shards").into());
        }
        for shard in map.shards.iter().filter(|shard| self.is_here(**shard)) {
            if let Some(inode) = self.shard_here(*shard)?
                && !self.is_empty_directory(inode.number())?
            {
                return Err(FsError::NotEmpty);
            }
        }
        let mut others: Vec<InodeNumber> = map.shards.iter().copied().filter(|shard| !self.is_here(*shard)).collect();
        others.sort();
        let mut operations = Vec::with_capacity(others.len());
        for inode in others {
            let (who, parent) = (Credentials::root(), Attributes::zeroed(map.master, FileKind::Directory));
            let part = DropLink { inode, parent, name: Vec::new(), directory: true, who };
            operations.push((inode, self.prepared(inode.mdt(), Part::DropLink(part))?.0));
        }
        Ok(EndingShards { map, operations })
    }

    /// A shard of this MDT, if it exists; waits if it may become one.
    fn shard_here(&self, shard: InodeNumber) -> FsResult<Option<Inode>> {
        match self.inode(shard) {
            Ok(inode) => self.has_all_names(&inode).map(|()| Some(inode)),
            // Damage, which fsck reports: it must not keep the directory from being removed.
            Err(FsError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The shards go with the batch.
    pub fn end_shards(&mut self, EndingShards { map, operations }: EndingShards) -> FsResult<()> {
        let link = shard_link(map.master);
        let here: Vec<InodeNumber> = map.shards.iter().copied().filter(|shard| self.is_here(*shard)).collect();
        for shard in here {
            if let Some(mut inode) = self.shard_here(shard)? {
                self.drop_link(&mut inode, &link)?;
            }
        }
        for (inode, operation) in operations {
            let part = DecidedPart::DropLink(link.clone());
            self.decide(inode.mdt(), Decision { operation, inode, part });
        }
        Ok(())
    }
}

/// The shards of a directory, as it makes them.
fn shards_of<'a>(master: &'a Inode, stripes: &'a Stripes) -> impl Iterator<Item = Inode> + 'a {
    let numbers = match &master.striping {
        Striping::Over(_, shards) => &shards[..],
        Striping::None | Striping::Shard(_) => &[],
    };
    let count = numbers.len() as u16;
    numbers.iter().zip(0..).map(move |(number, index)| Inode {
        attributes: Attributes { inode: *number, links: 2, ..master.attributes },
        version: 0,
        map_version: if master.names_move() { NO_NAMES } else { 0 },
        xattrs: false,
        striping: Striping::Shard(ShardPlace { hash: stripes.hash, index, count }),
        first_link: Some(shard_link(master.number())),
        ..master.clone()
    })
}
