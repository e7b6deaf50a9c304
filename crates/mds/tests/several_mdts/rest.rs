//! What must hold when nothing more happens by itself.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    reference::{Reference, Seen, explains},
    vocabulary::{Ino, Place, ROOT, Request},
    world::{Asked, Fixed, Server, World},
};

impl World {
    /// Checks a state in which nothing more happens by itself.
    pub fn check_rest(&self, fixed: &Fixed) -> Result<(), String> {
        let require = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
        require(self.asked.iter().all(|asked| asked.answer.is_some()), "somebody waits for ever")?;
        if self.absent.is_some() {
            return Ok(());
        }
        require(self.network.is_empty(), "a message waits for ever")?;
        let mut inodes = BTreeMap::new();
        let mut shards = BTreeSet::new();
        for Server { node, .. } in &self.servers {
            require(node.running.is_empty() && node.joining.is_empty(), "an operation waits for ever")?;
            require(node.tables.prepared.is_empty(), "something stays prepared")?;
            require(node.holds.is_empty(), "something stays locked")?;
            require(node.ending.is_empty(), "an attempt that was given up does not end")?;
            require(node.tables.log.is_empty(), "a decision stays in a log")?;
            for at in node.tables.entries.keys() {
                require(at.target() == node.me && node.tables.shards.contains(&at.0), "a name is out of place")?;
            }
            require(node.tables.inodes.keys().all(|ino| ino.home() == node.me), "an inode is out of place")?;
            inodes.extend(node.tables.inodes.clone());
            shards.extend(node.tables.shards.iter().map(|directory| (*directory, node.me)));
        }
        let end = self.reference();
        let mut places: BTreeMap<Ino, BTreeSet<Place>> = BTreeMap::from([(ROOT, BTreeSet::from([Place(ROOT, 0)]))]);
        end.entries.iter().for_each(|(at, ino)| {
            places.entry(*ino).or_default().insert(*at);
        });
        for (ino, places) in &places {
            let Some(inode) = inodes.remove(ino) else { return Err(format!("a name without an inode: {ino:?}")) };
            require(usize::from(inode.links) == places.len(), "a link count is wrong")?;
            require(inode.places == *places, "an inode does not know its names")?;
            require(!ino.is_directory() || places.len() == 1, "a directory has two names")?;
            if ino.is_directory() {
                let mut has_shards = ino.shards().into_iter();
                require(has_shards.all(|target| shards.remove(&(*ino, target))), "a shard is missing")?;
                require(reaches_root(&end, *ino), "a loop of directories")?;
            }
        }
        require(inodes.is_empty(), "an inode without a name")?;
        require(shards.is_empty(), "a shard without a directory")?;
        let seen = |(asked, request): (&Asked, &Request)| {
            let answer = asked.answer?;
            let may_be_undone = asked.may_be_undone || self.lost && !asked.changed;
            Some(Seen { request: *request, answer, after: asked.after, may_be_undone })
        };
        let seen: Vec<Seen> = self.asked.iter().zip(&fixed.requests).filter_map(seen).collect();
        require(explains(&fixed.start, &seen, &end), "no order of the operations explains answers and names")
    }
}

fn reaches_root(end: &Reference, mut directory: Ino) -> bool {
    for _ in 0..=end.entries.len() {
        if directory == ROOT {
            return true;
        }
        match end.entries.iter().find(|(_, ino)| **ino == directory) {
            Some((at, _)) => directory = at.0,
            None => return false,
        }
    }
    false
}
