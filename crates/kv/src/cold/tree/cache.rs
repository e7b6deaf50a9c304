//! Nodes in memory, so that a look-up reads one page at most, mostly none.
//!
//! First in, first out; parents apart from leaves, of which there are hundreds for each parent. Not
//! more than this: the store above keeps the entries that are used.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::node::{Node, Reference};

/// Nodes of one kind.
#[derive(Debug)]
struct Kind {
    nodes: HashMap<u64, (u64, Arc<Node>)>,
    order: VecDeque<Reference>,
    nodes_max: usize,
}

impl Kind {
    fn new(nodes_max: usize) -> Kind {
        Kind { nodes: HashMap::new(), order: VecDeque::new(), nodes_max }
    }

    fn insert(&mut self, at: Reference, node: Arc<Node>) {
        if self.nodes.insert(at.number, (at.commit, node)).is_none_or(|(commit, _)| commit != at.commit) {
            self.order.push_back(at);
        }
        while self.order.len() > self.nodes_max {
            let Some(oldest) = self.order.pop_front() else { return };
            if self.nodes.get(&oldest.number).is_some_and(|(commit, _)| *commit == oldest.commit) {
                self.nodes.remove(&oldest.number);
            }
        }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Cache {
    parents: Kind,
    leaves: Kind,
}

impl Cache {
    /// Of about so many bytes, of nodes of this size.
    pub fn new(bytes: usize, node_bytes: usize) -> Cache {
        let nodes = (bytes / node_bytes / 2).max(4);
        Cache { parents: Kind::new(nodes), leaves: Kind::new(nodes) }
    }

    fn kind(&mut self, level: u8) -> &mut Kind {
        if level == 0 { &mut self.leaves } else { &mut self.parents }
    }

    /// The node there, if it is in memory.
    pub fn get(&mut self, at: Reference, level: u8) -> Option<Arc<Node>> {
        let (commit, node) = self.kind(level).nodes.get(&at.number)?;
        (*commit == at.commit && node.level == level).then(|| node.clone())
    }

    /// Keeps a node.
    pub fn insert(&mut self, at: Reference, node: Arc<Node>) {
        self.kind(node.level).insert(at, node);
    }

    /// The tree has this node no more: its number may be another one's.
    pub fn remove(&mut self, number: u64) {
        self.parents.nodes.remove(&number);
        self.leaves.nodes.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(level: u8) -> Arc<Node> {
        Arc::new(Node { level, entries: Vec::new() })
    }

    #[test]
    fn the_newest_nodes_of_each_kind_are_kept() {
        let mut cache = Cache::new(0, 4096);
        let at = |number, commit| Reference { number, commit };
        cache.insert(at(100, 1), node(1));
        for number in 0..10 {
            cache.insert(at(number, 1), node(0));
        }
        let kept: Vec<u64> = (0..10).filter(|number| cache.get(at(*number, 1), 0).is_some()).collect();
        assert_eq!(kept, [6, 7, 8, 9]);
        assert!(cache.get(at(100, 1), 1).is_some() && cache.get(at(100, 1), 0).is_none());
        assert!(cache.get(at(9, 2), 0).is_none(), "another node had its number");
        cache.insert(at(9, 2), node(0));
        assert!(cache.get(at(9, 2), 0).is_some());
        cache.remove(9);
        assert!(cache.get(at(9, 2), 0).is_none());
    }
}
