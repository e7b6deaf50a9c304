//! Random operations against a model of a directory tree: same results, same errors, and a clean
//! check at the end; the same after a crash.

use crate::common;

use std::collections::BTreeMap;

use common::*;
use proptest::prelude::*;
use rpc::message::mdt::{RenameMode, Unlink};
use types::{FsError, FsResult, InodeNumber, NodeKind};

/// Names are few, so that operations meet.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Operation {
    Create(usize, usize),
    Mkdir(usize, usize),
    Unlink(usize, usize, bool),
    Link(usize, usize, usize),
    Rename((usize, usize), (usize, usize), RenameMode),
    Crash,
}

fn operation() -> impl Strategy<Value = Operation> {
    let (directory, name) = (0..5usize, 0..NAMES.len());
    let place = || (0..5usize, 0..NAMES.len());
    let mode = prop_oneof![Just(RenameMode::Replace), Just(RenameMode::NoReplace), Just(RenameMode::Exchange)];
    prop_oneof![
        4 => (directory.clone(), name.clone()).prop_map(|(d, n)| Operation::Create(d, n)),
        4 => (directory.clone(), name.clone()).prop_map(|(d, n)| Operation::Mkdir(d, n)),
        4 => (directory.clone(), name.clone(), any::<bool>()).prop_map(|(d, n, r)| Operation::Unlink(d, n, r)),
        3 => (0..8usize, directory, name).prop_map(|(i, d, n)| Operation::Link(i, d, n)),
        8 => (place(), place(), mode).prop_map(|(from, to, mode)| Operation::Rename(from, to, mode)),
        1 => Just(Operation::Crash),
    ]
}

/// A tree of names. Nodes are numbered by their inode.
#[derive(Default)]
struct Model {
    /// Directories by inode: parent, and names.
    directories: BTreeMap<InodeNumber, (InodeNumber, BTreeMap<String, InodeNumber>)>,
    /// Files by inode: names that lead there.
    files: BTreeMap<InodeNumber, u32>,
}

impl Model {
    fn new() -> Self {
        let mut model = Self::default();
        model.directories.insert(ROOT, (ROOT, BTreeMap::new()));
        model
    }

    /// The directory a number of the operation stands for.
    fn directory(&self, number: usize) -> InodeNumber {
        *self.directories.keys().nth(number % self.directories.len()).expect("there is the root")
    }

    fn file(&self, number: usize) -> Option<InodeNumber> {
        let count = self.files.len().max(1);
        self.files.keys().nth(number % count).copied()
    }

    fn find(&self, directory: InodeNumber, name: &str) -> Option<InodeNumber> {
        self.directories[&directory].1.get(name).copied()
    }

    fn is_directory(&self, inode: InodeNumber) -> bool {
        self.directories.contains_key(&inode)
    }

    fn names(&mut self, directory: InodeNumber) -> &mut BTreeMap<String, InodeNumber> {
        &mut self.directories.get_mut(&directory).expect("a directory of the model").1
    }

    fn drop_file(&mut self, inode: InodeNumber) {
        let links = self.files.get_mut(&inode).expect("a file of the model");
        *links -= 1;
        if *links == 0 {
            self.files.remove(&inode);
        }
    }

    fn unlink(&mut self, directory: InodeNumber, name: &str, as_directory: bool) -> FsResult<()> {
        let inode = self.find(directory, name).ok_or(FsError::NotFound)?;
        match (as_directory, self.is_directory(inode)) {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => return Err(FsError::IsDirectory),
            (true, true) if !self.directories[&inode].1.is_empty() => return Err(FsError::NotEmpty),
            (true, true) => {
                self.directories.remove(&inode);
            }
            (false, false) => self.drop_file(inode),
        }
        self.names(directory).remove(name);
        Ok(())
    }

    fn is_below(&self, mut inode: InodeNumber, ancestor: InodeNumber) -> bool {
        loop {
            if inode == ancestor {
                return true;
            }
            if inode == ROOT {
                return false;
            }
            inode = self.directories[&inode].0;
        }
    }

    fn rename(&mut self, from: (InodeNumber, &str), to: (InodeNumber, &str), mode: RenameMode) -> FsResult<()> {
        let source = self.find(from.0, from.1).ok_or(FsError::NotFound)?;
        let target = self.find(to.0, to.1);
        let exchange = mode == RenameMode::Exchange;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            _ => {}
        }
        if self.is_directory(source) && self.is_below(to.0, source) {
            return Err(FsError::Invalid);
        }
        if let Some(target) = target
            && self.is_directory(target)
            && self.is_below(from.0, target)
        {
            return Err(if exchange { FsError::Invalid } else { FsError::NotEmpty });
        }
        if target == Some(source) {
            return Ok(());
        }
        if let (Some(target), false) = (target, exchange) {
            match (self.is_directory(source), self.is_directory(target)) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if !self.directories[&target].1.is_empty() => return Err(FsError::NotEmpty),
                (true, true) => {
                    self.directories.remove(&target);
                }
                (false, false) => self.drop_file(target),
            }
        }
        self.names(from.0).remove(from.1);
        if exchange {
            self.place(target.expect("an exchange has a target"), from);
        }
        self.place(source, to);
        Ok(())
    }

    fn place(&mut self, inode: InodeNumber, (directory, name): (InodeNumber, &str)) {
        self.names(directory).insert(name.to_owned(), inode);
        if let Some((parent, _)) = self.directories.get_mut(&inode) {
            *parent = directory;
        }
    }
}

async fn step(fs: &mut Fixture, model: &mut Model, operation: &Operation) {
    match operation {
        Operation::Create(directory, name) => {
            let (directory, name) = (model.directory(*directory), NAMES[*name]);
            let made = fs.create(&root(), directory, name, NodeKind::Regular, 0o644).await;
            match model.find(directory, name) {
                Some(_) => assert_eq!(made, Err(FsError::Exists)),
                None => {
                    let inode = made.expect("the name is free");
                    model.files.insert(inode, 1);
                    model.names(directory).insert(name.to_owned(), inode);
                }
            }
        }
        Operation::Mkdir(directory, name) => {
            let (directory, name) = (model.directory(*directory), NAMES[*name]);
            let made = fs.create(&root(), directory, name, NodeKind::Directory, 0o755).await;
            match model.find(directory, name) {
                Some(_) => assert_eq!(made, Err(FsError::Exists)),
                None => {
                    let inode = made.expect("the name is free");
                    model.directories.insert(inode, (directory, BTreeMap::new()));
                    model.names(directory).insert(name.to_owned(), inode);
                }
            }
        }
        Operation::Unlink(directory, name, as_directory) => {
            let (directory, name) = (model.directory(*directory), NAMES[*name]);
            let unlink = Unlink { parent: directory, name: name.as_bytes().to_vec(), directory: *as_directory };
            let removed = fs.call(ALICE, rpc::message::MdtRequest::Unlink(root(), unlink)).await;
            assert_eq!(removed.map(|_| ()), model.unlink(directory, name, *as_directory));
        }
        Operation::Link(file, directory, name) => {
            let Some(file) = model.file(*file) else { return };
            let (directory, name) = (model.directory(*directory), NAMES[*name]);
            let linked = fs.link(&root(), file, directory, name).await.map(|_| ());
            if model.find(directory, name).is_some() {
                assert_eq!(linked, Err(FsError::Exists));
                return;
            }
            assert_eq!(linked, Ok(()));
            model.names(directory).insert(name.to_owned(), file);
            *model.files.get_mut(&file).expect("it was chosen from there") += 1;
        }
        Operation::Rename(from, to, mode) => {
            let from = (model.directory(from.0), NAMES[from.1]);
            let to = (model.directory(to.0), NAMES[to.1]);
            let renamed = fs.rename(&root(), from, to, *mode).await;
            assert_eq!(renamed, model.rename(from, to, *mode), "{from:?} to {to:?} {mode:?}");
        }
        Operation::Crash => fs.restart_and_recover().await,
    }
}

async fn compare(fs: &Fixture, model: &Model) {
    for (directory, (parent, names)) in &model.directories {
        let entries = fs.list(*directory, 3).await;
        assert_eq!(entries[1].inode, *parent);
        let found: BTreeMap<String, InodeNumber> = entries[2..]
            .iter()
            .map(|entry| (String::from_utf8(entry.name.clone()).expect("a test's name"), entry.inode))
            .collect();
        assert_eq!(&found, names);
        let below = names.values().filter(|inode| model.is_directory(**inode)).count() as u32;
        assert_eq!(fs.links(*directory).await, 2 + below);
    }
    for (file, links) in &model.files {
        assert_eq!(fs.links(*file).await, *links);
    }
    assert_eq!(fs.check(false).await, []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_give_what_the_model_gives(operations in prop::collection::vec(operation(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut fs = Fixture::new().await;
            let mut model = Model::new();
            for operation in &operations {
                step(&mut fs, &mut model, operation).await;
            }
            compare(&fs, &model).await;
            fs.restart_and_recover().await;
            compare(&fs, &model).await;
        });
    }
}
