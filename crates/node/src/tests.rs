//! The life cycle of a whole process, within the process of the test.

use bytes::Bytes;
use client::{NewFile, NewNode};
use kv::{FjallCold, cold::fjall::FjallOptions};
use layout::LayoutSpec;
use rpc::message::mdt_peer::MakeDirectory;
use types::{Credentials, InodeNumber, NodeKind};

use super::*;

/// A client holds the way to the targets of its process, and with it the targets.
#[test]
fn a_stopped_process_has_let_go_of_its_directories_although_somebody_has_its_client() {
    let place = tempfile::tempdir().unwrap();
    let options = NodeOptions::up(place.path().join("data"), 1, 1);
    options.format_missing().unwrap();
    let cores = Cores::start(2).unwrap();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let node = cores.block_on(Node::start(cores.clone(), options.clone())).unwrap();
        clients.push(cores.block_on(node.mount_client()).unwrap());
        cores.block_on(node.stop()).unwrap();
        for target in &options.targets {
            DirectoryLock::take(&target.dir).unwrap();
            FjallCold::open(&target.dir.join("cold"), FjallOptions::default()).unwrap();
        }
    }
    cores.shutdown();
}

/// The first process had no address of its own, the second one has.
#[test]
fn targets_that_went_are_missed_wherever_their_process_was() {
    let target = |index: u16, address: &str| MapTarget {
        role: TargetRole::Ost(OstIndex(index)),
        uuid: String::new(),
        addresses: address.split(',').map(str::to_owned).collect(),
        state: TargetState::Active,
    };
    let here = ["host:7000".to_owned(), "host-ib:7000".to_owned()];
    let targets = vec![
        target(0, "host:7000"),
        target(1, "host-ib:7000,old:7000"),
        target(2, LOCAL_ADDRESS),
        target(3, "other:7000"),
    ];
    let map = ClusterMap { version: 1, fsname: "stria".to_owned(), targets, parameters: Vec::new(), pools: Vec::new() };
    let own = BTreeSet::from([TargetRole::Ost(OstIndex(0))]);
    assert_eq!(missing_targets(&map, &own, &here), ["stria-OST0001", "stria-OST0002"]);
}

/// What the client's own interface can do works over several metadata targets, too.
#[test]
fn a_client_goes_from_mdt_to_mdt() {
    let place = tempfile::tempdir().unwrap();
    let options = NodeOptions::up(place.path().join("data"), 3, 2);
    options.format_missing().unwrap();
    let cores = Cores::start(2).unwrap();
    let node = cores.block_on(Node::start(cores.clone(), options)).unwrap();
    cores.block_on(async {
        let (client, root) = (node.mount_client().await.unwrap(), Credentials::root());
        let one = make_directory(&client, InodeNumber::ROOT, "one", 1).await;
        let two = make_directory(&client, one, "two", 2).await;
        assert_eq!((one.mdt(), two.mdt()), (MdtIndex(1), MdtIndex(2)));
        let file = NewFile { parent: two, name: b"file".to_vec(), mode: 0o644, umask: 0 };
        client.create_with_data(&root, file, Bytes::from_static(b"text")).await.unwrap();
        let path: [&[u8]; 3] = [b"one", b"two", b"file"];
        let found = client.walk(&root, InodeNumber::ROOT, &path).await.unwrap();
        assert_eq!((found.inode.mdt(), found.size), (MdtIndex(2), 4));
        let (_, data) = client.open_and_read(&root, InodeNumber::ROOT, &path, 100).await.unwrap();
        assert_eq!(data.into_bytes(), "text");
        assert_eq!(client.paths(&root, found.inode).await.unwrap(), [b"one/two/file".to_vec()]);
        assert_eq!(client.paths(&root, two).await.unwrap(), [b"one/two".to_vec()]);
        client.link(&root, found.inode, two, b"link").await.unwrap();
        let mut paths = client.paths(&root, found.inode).await.unwrap();
        paths.sort();
        assert_eq!(paths, [b"one/two/file".to_vec(), b"one/two/link".to_vec()]);
        assert_eq!(client.link(&root, found.inode, one, b"link").await.unwrap().links, 3);
        assert_eq!(client.lookup(&root, one, b"link").await.unwrap().inode, found.inode);
        client.unlink(&root, one, b"link").await.unwrap();
        assert_eq!(client.get_attributes(found.inode, None).await.unwrap().links, 2);
        client.migrate(&root, found.inode, LayoutSpec::Automatic, false, None).await.unwrap();
        let (_, data) = client.open_and_read(&root, two, &[b"link"], 100).await.unwrap();
        assert_eq!(data.into_bytes(), "text", "also after it was moved to another layout");
        // Names are seen at once, in a directory of which this client knows all names, too.
        let new = client.create(&root, new_directory(one, "new")).await.unwrap().inode;
        assert_eq!(client.lookup(&root, new, b"below").await, Err(FsError::NotFound));
        let below = make_directory(&client, new, "below", 0).await;
        assert_eq!(client.lookup(&root, new, b"below").await.unwrap().inode, below);
        let other = node.mount_client().await.unwrap();
        assert_eq!(other.lookup(&root, new, b"below").await.unwrap().links, 2);
        other.remove_directory(&root, new, b"below").await.unwrap();
        assert_eq!(client.lookup(&root, new, b"below").await, Err(FsError::NotFound));
        let links = client.get_attributes(below, None).await.map_or(0, |kept| kept.links);
        assert_eq!(links, 0, "it may be kept for a second without a name, but not cached as it was");
        assert_eq!(client.get_attributes(new, None).await.unwrap().links, 2);
        let none = MakeDirectory { parent: one, name: b"x".to_vec(), mode: 0o755, umask: 0, mdt: MdtIndex(9) };
        assert_eq!(client.make_directory(&root, none).await, Err(FsError::NoDevice));
    });
    cores.block_on(node.stop()).unwrap();
    cores.shutdown();
}

async fn make_directory(client: &FileSystem, parent: InodeNumber, name: &str, mdt: u16) -> InodeNumber {
    let (name, mdt) = (name.as_bytes().to_vec(), MdtIndex(mdt));
    let make = MakeDirectory { parent, name, mode: 0o755, umask: 0, mdt };
    for _ in 0..1000 {
        match client.make_directory(&Credentials::root(), make.clone()).await {
            // The MDT that has the name has not heard of the other one yet.
            Err(FsError::NoDeviceOrAddress) => tokio::time::sleep(Duration::from_millis(10)).await,
            made => return made.unwrap(),
        }
    }
    panic!("an MDT has not heard of another one for 10 s");
}

fn new_directory(parent: InodeNumber, name: &str) -> NewNode {
    let (name, kind) = (name.as_bytes().to_vec(), NodeKind::Directory);
    NewNode { parent, name, kind, mode: 0o755, umask: 0, layout: None }
}
