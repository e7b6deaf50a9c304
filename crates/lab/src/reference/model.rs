//! The reference model: POSIX in the simplest form, everything in two maps. Errors and their
//! precedence are those of Linux.

use std::collections::BTreeMap;

use types::{FileKind, FsError, mode::S_ISGID};

use super::operation::{Facts, Operation, Outcome, RenameFlag, pattern};

type NodeId = u64;
type Fallible<T> = Result<T, FsError>;

#[derive(Clone, Debug)]
enum Contents {
    File(Vec<u8>),
    Directory(BTreeMap<String, NodeId>),
    Symlink(String),
    Fifo,
}

#[derive(Clone, Debug)]
struct Node {
    contents: Contents,
    mode: u32,
    links: u32,
    xattrs: BTreeMap<String, Vec<u8>>,
}

/// A file system in memory.
#[derive(Clone, Debug)]
pub struct Model {
    nodes: BTreeMap<NodeId, Node>,
    next: NodeId,
}

const ROOT: NodeId = 1;

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// An empty file system.
    pub fn new() -> Self {
        let root =
            Node { contents: Contents::Directory(BTreeMap::new()), mode: 0o755, links: 2, xattrs: BTreeMap::new() };
        Self { nodes: BTreeMap::from([(ROOT, root)]), next: ROOT }
    }

    /// Does one operation.
    pub fn apply(&mut self, operation: &Operation) -> Outcome {
        self.execute(operation).unwrap_or_else(Outcome::Failed)
    }

    /// Paths of everything, parents first.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        let mut pending = vec![(String::new(), ROOT)];
        while let Some((prefix, id)) = pending.pop() {
            if let Contents::Directory(entries) = &self.nodes[&id].contents {
                for (name, child) in entries {
                    let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
                    paths.push(path.clone());
                    pending.push((path, *child));
                }
            }
        }
        paths
    }

    fn execute(&mut self, operation: &Operation) -> Fallible<Outcome> {
        match operation {
            Operation::Create { path, mode, exclusive } => self.create(path, *mode, *exclusive)?,
            Operation::MakeDirectory { path, mode } => self.make(path, Contents::Directory(BTreeMap::new()), *mode)?,
            Operation::Symlink { path, target } => self.make(path, Contents::Symlink(target.clone()), 0o777)?,
            Operation::MakeFifo { path, mode } => self.make(path, Contents::Fifo, *mode)?,
            Operation::ReadLink { path } => return self.read_link(path),
            Operation::Unlink { path } => self.unlink(path)?,
            Operation::RemoveDirectory { path } => self.remove_directory(path)?,
            Operation::Rename { from, to, flag } => self.rename(from, to, *flag)?,
            Operation::Link { from, to } => self.link(from, to)?,
            Operation::Write { path, offset, bytes, seed } => {
                let data = self.file(path)?;
                write(data, *offset, &pattern(*seed, *offset, *bytes));
            }
            Operation::Append { path, bytes, seed } => {
                let data = self.file(path)?;
                let offset = data.len() as u64;
                write(data, offset, &pattern(*seed, offset, *bytes));
            }
            Operation::Read { path, offset, bytes } => {
                let data = self.file(path)?;
                let start = (*offset as usize).min(data.len());
                let end = start.saturating_add(*bytes).min(data.len());
                return Ok(Outcome::Data(data[start..end].to_vec()));
            }
            Operation::Truncate { path, size } => self.truncate_target(path)?.resize(*size as usize, 0),
            Operation::Allocate { path, offset, bytes } => {
                let data = self.file(path)?;
                let end = (offset + bytes) as usize;
                data.resize(data.len().max(end), 0);
            }
            Operation::Punch { path, offset, bytes } => zero(self.file(path)?, *offset, *bytes),
            Operation::Zero { path, offset, bytes } => {
                let data = self.file(path)?;
                let end = (offset + bytes) as usize;
                data.resize(data.len().max(end), 0);
                zero(data, *offset, *bytes);
            }
            Operation::Split { path } | Operation::Move { path } => drop(self.resolve(path)?),
            Operation::Stat { path } => return Ok(Outcome::Facts(self.facts(self.resolve(path)?))),
            Operation::List { path } => return self.list(path),
            Operation::SetMode { path, mode } => {
                let id = self.resolve_following(path)?;
                self.node(id).mode = *mode;
            }
            Operation::SetXattr { path, name, value } => {
                let id = self.resolve_following(path)?;
                self.user_xattrs(id, true)?.insert(name.clone(), value.clone());
            }
            Operation::GetXattr { path, name } => {
                let id = self.resolve_following(path)?;
                let value = self.user_xattrs(id, false)?.get(name).cloned().ok_or(FsError::NoData)?;
                return Ok(Outcome::Data(value));
            }
            Operation::RemoveXattr { path, name } => {
                let id = self.resolve_following(path)?;
                self.user_xattrs(id, true)?.remove(name).ok_or(FsError::NoData)?;
            }
            Operation::Sync { path } | Operation::Migrate { path, .. } => {
                self.file(path)?;
            }
        }
        Ok(Outcome::Done)
    }

    fn node(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).expect("entries name existing nodes")
    }

    fn entries(&self, id: NodeId) -> Fallible<&BTreeMap<String, NodeId>> {
        match &self.nodes[&id].contents {
            Contents::Directory(entries) => Ok(entries),
            // A symbolic link in the middle of a path leads nowhere.
            Contents::Symlink(_) => Err(FsError::NotFound),
            _ => Err(FsError::NotDirectory),
        }
    }

    fn entries_mut(&mut self, id: NodeId) -> &mut BTreeMap<String, NodeId> {
        match &mut self.node(id).contents {
            Contents::Directory(entries) => entries,
            _ => unreachable!("resolved as a directory before"),
        }
    }

    /// The node a path names, the last name not followed.
    fn resolve(&self, path: &str) -> Fallible<NodeId> {
        let mut id = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            id = *self.entries(id)?.get(name).ok_or(FsError::NotFound)?;
        }
        Ok(id)
    }

    /// As `resolve`, following a link at the end, which leads nowhere.
    fn resolve_following(&self, path: &str) -> Fallible<NodeId> {
        let id = self.resolve(path)?;
        match self.nodes[&id].contents {
            Contents::Symlink(_) => Err(FsError::NotFound),
            _ => Ok(id),
        }
    }

    /// Directory and last name of a path; the directory exists and is one.
    fn resolve_parent<'p>(&self, path: &'p str) -> Fallible<(NodeId, &'p str)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let id = self.resolve(parent)?;
        self.entries(id)?;
        Ok((id, name))
    }

    fn file(&mut self, path: &str) -> Fallible<&mut Vec<u8>> {
        let id = self.resolve_following(path)?;
        match &mut self.node(id).contents {
            Contents::File(data) => Ok(data),
            Contents::Directory(_) => Err(FsError::IsDirectory),
            // Opening a pipe for writing without a reader.
            _ => Err(FsError::NoDeviceOrAddress),
        }
    }

    fn truncate_target(&mut self, path: &str) -> Fallible<&mut Vec<u8>> {
        match self.file(path) {
            Err(FsError::NoDeviceOrAddress) => Err(FsError::Invalid),
            other => other,
        }
    }

    fn create(&mut self, path: &str, mode: u32, exclusive: bool) -> Fallible<()> {
        let (parent, name) = self.resolve_parent(path)?;
        let Some(id) = self.entries(parent)?.get(name).copied() else {
            return self.make(path, Contents::File(Vec::new()), mode);
        };
        match self.nodes[&id].contents {
            _ if exclusive => Err(FsError::Exists),
            Contents::Symlink(_) => Err(FsError::NotFound),
            Contents::Directory(_) => Err(FsError::IsDirectory),
            Contents::Fifo => Err(FsError::NoDeviceOrAddress),
            Contents::File(_) => Ok(()),
        }
    }

    fn make(&mut self, path: &str, contents: Contents, mode: u32) -> Fallible<()> {
        let (parent, name) = self.resolve_parent(path)?;
        if self.entries(parent)?.contains_key(name) {
            return Err(FsError::Exists);
        }
        self.next += 1;
        let id = self.next;
        let (mut mode, mut links) = (mode, 1);
        if matches!(contents, Contents::Directory(_)) {
            self.node(parent).links += 1;
            links = 2;
            mode |= self.nodes[&parent].mode & S_ISGID;
        }
        self.nodes.insert(id, Node { contents, mode, links, xattrs: BTreeMap::new() });
        self.entries_mut(parent).insert(name.to_owned(), id);
        Ok(())
    }

    fn read_link(&self, path: &str) -> Fallible<Outcome> {
        match &self.nodes[&self.resolve(path)?].contents {
            Contents::Symlink(target) => Ok(Outcome::Target(target.clone())),
            _ => Err(FsError::Invalid),
        }
    }

    fn is_directory(&self, id: NodeId) -> bool {
        matches!(self.nodes[&id].contents, Contents::Directory(_))
    }

    fn unlink(&mut self, path: &str) -> Fallible<()> {
        let (parent, name) = self.resolve_parent(path)?;
        let id = *self.entries(parent)?.get(name).ok_or(FsError::NotFound)?;
        if self.is_directory(id) {
            return Err(FsError::IsDirectory);
        }
        self.entries_mut(parent).remove(name);
        self.drop_link(id);
        Ok(())
    }

    fn drop_link(&mut self, id: NodeId) {
        self.node(id).links -= 1;
        if self.nodes[&id].links == 0 {
            self.nodes.remove(&id);
        }
    }

    fn remove_directory(&mut self, path: &str) -> Fallible<()> {
        let (parent, name) = self.resolve_parent(path)?;
        let id = *self.entries(parent)?.get(name).ok_or(FsError::NotFound)?;
        if !self.is_directory(id) {
            return Err(FsError::NotDirectory);
        }
        if !self.entries(id)?.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.entries_mut(parent).remove(name);
        self.nodes.remove(&id);
        self.node(parent).links -= 1;
        Ok(())
    }

    fn link(&mut self, from: &str, to: &str) -> Fallible<()> {
        let id = self.resolve(from)?;
        let (parent, name) = self.resolve_parent(to)?;
        if self.entries(parent)?.contains_key(name) {
            return Err(FsError::Exists);
        }
        if self.is_directory(id) {
            return Err(FsError::NotPermitted);
        }
        self.node(id).links += 1;
        self.entries_mut(parent).insert(name.to_owned(), id);
        Ok(())
    }

    /// Whether `directory` is in the tree below `ancestor`, or is `ancestor`.
    fn is_below(&self, directory: NodeId, ancestor: NodeId) -> bool {
        let mut pending = vec![ancestor];
        while let Some(id) = pending.pop() {
            if id == directory {
                return true;
            }
            if let Contents::Directory(entries) = &self.nodes[&id].contents {
                pending.extend(entries.values());
            }
        }
        false
    }

    fn rename(&mut self, from: &str, to: &str, flag: RenameFlag) -> Fallible<()> {
        let (old_parent, old_name) = self.resolve_parent(from)?;
        let (new_parent, new_name) = self.resolve_parent(to)?;
        let moved = *self.entries(old_parent)?.get(old_name).ok_or(FsError::NotFound)?;
        let target = self.entries(new_parent)?.get(new_name).copied();
        match (flag, target) {
            (RenameFlag::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameFlag::Exchange, None) => return Err(FsError::NotFound),
            _ => {}
        }
        if self.is_directory(moved) && self.is_below(new_parent, moved) {
            return Err(FsError::Invalid);
        }
        if let Some(target) = target.filter(|target| self.is_directory(*target) && self.is_below(old_parent, *target)) {
            debug_assert_ne!(target, ROOT);
            return Err(if flag == RenameFlag::Exchange { FsError::Invalid } else { FsError::NotEmpty });
        }
        if target == Some(moved) {
            return Ok(());
        }
        match (flag, target) {
            (RenameFlag::Exchange, Some(target)) => {
                self.exchange(old_parent, old_name, moved, new_parent, new_name, target);
                Ok(())
            }
            _ => self.replace(old_parent, old_name, moved, new_parent, new_name, target),
        }
    }

    fn exchange(
        &mut self,
        old_parent: NodeId,
        old: &str,
        moved: NodeId,
        new_parent: NodeId,
        new: &str,
        target: NodeId,
    ) {
        self.entries_mut(old_parent).insert(old.to_owned(), target);
        self.entries_mut(new_parent).insert(new.to_owned(), moved);
        for (id, source, destination) in [(moved, old_parent, new_parent), (target, new_parent, old_parent)] {
            if self.is_directory(id) {
                self.node(source).links -= 1;
                self.node(destination).links += 1;
            }
        }
    }

    fn replace(
        &mut self,
        old_parent: NodeId,
        old_name: &str,
        moved: NodeId,
        new_parent: NodeId,
        new_name: &str,
        target: Option<NodeId>,
    ) -> Fallible<()> {
        if let Some(target) = target {
            match (self.is_directory(moved), self.is_directory(target)) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if !self.entries(target)?.is_empty() => return Err(FsError::NotEmpty),
                (true, true) => {
                    self.nodes.remove(&target);
                    self.node(new_parent).links -= 1;
                }
                (false, false) => self.drop_link(target),
            }
        }
        self.entries_mut(old_parent).remove(old_name);
        self.entries_mut(new_parent).insert(new_name.to_owned(), moved);
        if self.is_directory(moved) {
            self.node(old_parent).links -= 1;
            self.node(new_parent).links += 1;
        }
        Ok(())
    }

    fn facts(&self, id: NodeId) -> Facts {
        let node = &self.nodes[&id];
        let (kind, size) = match &node.contents {
            Contents::File(data) => (FileKind::Regular, data.len() as u64),
            Contents::Directory(_) => (FileKind::Directory, 0),
            Contents::Symlink(target) => (FileKind::Symlink, target.len() as u64),
            Contents::Fifo => (FileKind::Fifo, 0),
        };
        Facts { kind, mode: node.mode, links: node.links, size }
    }

    fn list(&self, path: &str) -> Fallible<Outcome> {
        let id = self.resolve_following(path)?;
        Ok(Outcome::Names(self.entries(id)?.keys().cloned().collect()))
    }

    /// `user.` attributes exist on files and directories only.
    fn user_xattrs(&mut self, id: NodeId, write: bool) -> Fallible<&mut BTreeMap<String, Vec<u8>>> {
        let node = self.node(id);
        match node.contents {
            Contents::File(_) | Contents::Directory(_) => Ok(&mut node.xattrs),
            _ if write => Err(FsError::NotPermitted),
            _ => Err(FsError::NoData),
        }
    }
}

fn write(data: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    data.resize(data.len().max(end), 0);
    data[start..end].copy_from_slice(bytes);
}

fn zero(data: &mut [u8], offset: u64, bytes: u64) {
    let start = (offset as usize).min(data.len());
    let end = ((offset + bytes) as usize).min(data.len());
    data[start..end].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(path: &str) -> Operation {
        Operation::Create { path: path.into(), mode: 0o644, exclusive: true }
    }

    #[test]
    fn renaming_a_directory_into_itself_is_refused() {
        let mut model = Model::new();
        for path in ["a", "a/b"] {
            assert_eq!(model.apply(&Operation::MakeDirectory { path: path.into(), mode: 0o755 }), Outcome::Done);
        }
        let into_itself = Operation::Rename { from: "a".into(), to: "a/b/c".into(), flag: RenameFlag::Replace };
        assert_eq!(model.apply(&into_itself), Outcome::Failed(FsError::Invalid));
        let over_ancestor = Operation::Rename { from: "a/b".into(), to: "a".into(), flag: RenameFlag::Replace };
        assert_eq!(model.apply(&over_ancestor), Outcome::Failed(FsError::NotEmpty));
    }

    #[test]
    fn links_are_counted() {
        let mut model = Model::new();
        model.apply(&create("f"));
        model.apply(&Operation::Link { from: "f".into(), to: "g".into() });
        model.apply(&Operation::Unlink { path: "f".into() });
        let Outcome::Facts(facts) = model.apply(&Operation::Stat { path: "g".into() }) else { panic!("g is there") };
        assert_eq!(facts.links, 1);
    }
}
