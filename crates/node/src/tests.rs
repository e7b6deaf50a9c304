//! The life cycle of a whole process, within the process of the test.

use bytes::Bytes;
use client::{EntryAttributes, NewFile, NewNode};
use kv::{FjallCold, cold::fjall::FjallOptions};
use layout::LayoutSpec;
use rpc::message::{
    mdt::{OpenFlags, RenameMode, open_flag},
    mdt_peer::MakeDirectory,
};
use types::{Credentials, InodeNumber, NameHash, NodeKind, SetAttributes, Stripes};

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
        let none = MakeDirectory {
            parent: one,
            name: b"x".to_vec(),
            mode: 0o755,
            umask: 0,
            mdt: MdtIndex(9),
            stripes: Stripes::default(),
        };
        assert_eq!(client.make_directory(&root, none).await, Err(FsError::NoDevice));
    });
    cores.block_on(node.stop()).unwrap();
    cores.shutdown();
}

/// A directory whose names are on three MDTs, through the client's own interface.
#[test]
fn a_client_uses_a_striped_directory_as_any_other() {
    let place = tempfile::tempdir().unwrap();
    let options = NodeOptions::up(place.path().join("data"), 3, 2);
    options.format_missing().unwrap();
    let cores = Cores::start(2).unwrap();
    let node = cores.block_on(Node::start(cores.clone(), options)).unwrap();
    cores.block_on(async {
        let (client, root) = (node.mount_client().await.unwrap(), Credentials::root());
        let above = make_directory(&client, InodeNumber::ROOT, "above", 2).await;
        let stripes = Stripes { hash: NameHash::Crush, mdts: [1, 2, 0].map(MdtIndex).to_vec() };
        let make = MakeDirectory {
            parent: above,
            name: b"striped".to_vec(),
            mode: 0o755,
            umask: 0,
            mdt: MdtIndex(1),
            stripes,
        };
        let striped = client.make_directory(&root, make).await.unwrap();
        // One that knows the map from its own requests, and one that does not know it yet.
        let other = node.mount_client().await.unwrap();
        let mut names: Vec<Vec<u8>> = (0..24).map(|number| format!("f{number}").into_bytes()).collect();
        for (number, name) in names.iter().enumerate() {
            let by = if number % 2 == 0 { &client } else { &other };
            let file = NewFile { parent: striped, name: name.clone(), mode: 0o644, umask: 0 };
            match number % 3 {
                0 => drop(by.create_with_data(&root, file, Bytes::from_static(b"text")).await.unwrap()),
                1 => {
                    let flags = OpenFlags(open_flag::WRITE);
                    let made = by.create_open(&root, striped, name, 0o644, 0, flags).await.unwrap();
                    by.fsync(&made.file, false).await.unwrap();
                    by.close(made.file, None).await.unwrap();
                }
                _ => drop(by.create(&root, new_directory(striped, &format!("f{number}"))).await.unwrap()),
            }
        }
        let mut mdts = BTreeSet::new();
        for name in &names {
            let [here, there] = [client.lookup(&root, striped, name), other.lookup(&root, striped, name)];
            let (here, there) = (here.await.unwrap(), there.await.unwrap());
            assert_eq!(here.inode, there.inode);
            mdts.insert(here.inode.mdt());
        }
        assert_eq!(mdts, [0, 1, 2].map(MdtIndex).into());
        assert_eq!(client.lookup(&root, striped, b"none").await, Err(FsError::NotFound));
        for by in [&client, &other] {
            assert_eq!(by.get_attributes(striped, None).await.unwrap().links, 2 + 8, "subdirectories of all shards");
            names.sort();
            for count in [2, 7, 1000] {
                assert_eq!(listed(by, striped, count).await, names, "pages of {count}");
            }
        }
        let file = client.lookup(&root, striped, b"f0").await.unwrap().inode;
        assert_eq!(client.paths(&root, file).await.unwrap(), [b"above/striped/f0".to_vec()]);
        let below = client.lookup(&root, striped, b"f2").await.unwrap().inode;
        assert_eq!(other.lookup(&root, below, b"..").await.unwrap().inode, striped);
        let far = make_directory(&client, striped, "far", 0).await;
        let near = make_directory(&client, striped, "near", 1).await;
        for directory in [far, near] {
            assert_eq!(other.lookup(&root, directory, b"..").await.unwrap().inode, striped);
        }
        assert_eq!(client.remove_directory(&root, above, b"striped").await, Err(FsError::NotEmpty));
        // A third client knows of neither directory: renames within, out of and into it.
        let third = node.mount_client().await.unwrap();
        let replace = RenameMode::Replace;
        for number in 0..24 {
            let (old, new) = (format!("f{number}"), format!("g{number}"));
            third.rename(&root, (striped, old.as_bytes()), (striped, new.as_bytes()), replace).await.unwrap();
            third.rename(&root, (striped, new.as_bytes()), (above, new.as_bytes()), replace).await.unwrap();
            client.rename(&root, (above, new.as_bytes()), (striped, old.as_bytes()), replace).await.unwrap();
        }
        let into = client.rename(&root, (above, b"striped"), (striped, b"x"), replace).await;
        assert_eq!(into, Err(FsError::Invalid));
        let over = client.rename(&root, (striped, b"f2"), (above, b"striped"), replace).await;
        assert_eq!(over, Err(FsError::NotEmpty));
        // Changed permissions are those of the shards, too, for all clients.
        let mode = SetAttributes { mode: Some(0o711), ..SetAttributes::default() };
        client.set_attributes(&root, striped, mode, None).await.unwrap();
        let user = Credentials { uid: 7, gid: 7, groups: Some(Vec::new()) };
        for by in [&client, &other] {
            let new = by.create(&user, new_directory(striped, "refused")).await;
            assert_eq!(new, Err(FsError::AccessDenied));
            assert_eq!(by.get_attributes(striped, None).await.unwrap().mode, 0o711);
        }
        let directory = client.open(&root, striped, OpenFlags(open_flag::READ)).await.unwrap();
        client.fsync(&directory, false).await.unwrap();
        client.close(directory, None).await.unwrap();
        for name in listed(&other, striped, 100).await {
            match other.unlink(&root, striped, &name).await {
                Err(FsError::IsDirectory) => client.remove_directory(&root, striped, &name).await.unwrap(),
                removed => removed.unwrap(),
            }
        }
        assert_eq!(listed(&client, striped, 100).await, Vec::<Vec<u8>>::new());
        client.remove_directory(&root, above, b"striped").await.unwrap();
        assert_eq!(other.lookup(&root, above, b"striped").await, Err(FsError::NotFound));
    });
    cores.block_on(node.stop()).unwrap();
    cores.shutdown();
}

/// How many of these files each of two MDTs has; all are as they were made.
async fn read_all(client: &std::sync::Arc<FileSystem>, files: &[[String; 3]]) -> [usize; 2] {
    let mut on = [0; 2];
    for path in files {
        let names: Vec<&[u8]> = path.iter().map(|name| name.as_bytes()).collect();
        // While the directory moves, the way to it may lead to its former number.
        let mut tries = 0;
        let (found, data) = loop {
            tries += 1;
            match client.open_and_read(&Credentials::root(), InodeNumber::ROOT, &names, 100).await {
                Err(FsError::Stale | FsError::NotFound) if tries < 20 => tokio::task::yield_now().await,
                read => break read.unwrap(),
            }
        };
        assert_eq!(data.into_bytes(), path.join("/"));
        on[usize::from(found.inode.mdt().0)] += 1;
    }
    on
}

/// An MDT was added to one that has everything: it gets its part by itself, while all is used. What
/// is open stays, with what is below it.
#[test]
fn a_further_mdt_gets_its_part_of_the_directories() {
    let place = tempfile::tempdir().unwrap();
    let options = NodeOptions::up(place.path().join("data"), 1, 1);
    options.format_missing().unwrap();
    let cores = Cores::start(2).unwrap();
    let node = cores.block_on(Node::start(cores.clone(), options)).unwrap();
    let files: Vec<[String; 3]> =
        (0..200).map(|file| [format!("a{}", file / 50), format!("b{}", file / 10), format!("f{file}")]).collect();
    cores.block_on(async {
        let (client, root) = (node.mount_client().await.unwrap(), Credentials::root());
        for path in &files {
            let mut parent = InodeNumber::ROOT;
            for name in &path[..2] {
                parent = match client.create(&root, new_directory(parent, name)).await {
                    Err(FsError::Exists) => client.lookup(&root, parent, name.as_bytes()).await.unwrap().inode,
                    made => made.unwrap().inode,
                };
            }
            let file = NewFile { parent, name: path[2].clone().into_bytes(), mode: 0o644, umask: 0 };
            client.create_with_data(&root, file, Bytes::from(path.join("/"))).await.unwrap();
        }
    });
    cores.block_on(node.stop()).unwrap();
    let options = NodeOptions::up(place.path().join("data"), 2, 1);
    options.format_missing().unwrap();
    let node = cores.block_on(Node::start(cores.clone(), options)).unwrap();
    cores.block_on(async {
        let (client, root) = (node.mount_client().await.unwrap(), Credentials::root());
        let kept = client.walk(&root, InodeNumber::ROOT, &[b"a0"]).await.unwrap().inode;
        let opened = client.open(&root, kept, OpenFlags(open_flag::READ)).await.unwrap();
        assert_eq!(read_all(&client, &files).await, [200, 0]);
        for mdt in &node.mdts {
            let mut parameters = mdt.target.parameters();
            parameters.ost_refresh = Duration::from_millis(30);
            parameters.balance = mds::BalancePolicy {
                inodes_per_second: 100_000,
                threshold_pct: 20,
                inodes_min: 20,
                idle: Duration::ZERO,
            };
            mdt.target.set_parameters(parameters);
        }
        let states = || {
            let told = |balancer: &Balancer| balancer.report().lock().to_string();
            node.balancers.iter().map(told).collect::<Vec<_>>()
        };
        let until = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let on = read_all(&client, &files).await;
            if on[1] >= 80 && states().iter().all(|state| state.contains("balanced")) {
                assert!(on[0] >= 80, "no more than its part: {on:?}");
                break;
            }
            assert!(tokio::time::Instant::now() < until, "{on:?}: {:#?}", states());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("{}", states()[0]);
        let found = client.walk(&root, InodeNumber::ROOT, &[b"a0"]).await.unwrap();
        assert_eq!(found.inode, kept, "it is open");
        client.close(opened, None).await.unwrap();
    });
    cores.block_on(node.stop()).unwrap();
    cores.shutdown();
}

/// Names besides the dots, sorted; read in pages of so many.
async fn listed(client: &std::sync::Arc<FileSystem>, directory: InodeNumber, count: u32) -> Vec<Vec<u8>> {
    let opened = client.open(&Credentials::root(), directory, OpenFlags(open_flag::READ)).await.unwrap();
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let page = client.read_directory(&opened, cookie, count, EntryAttributes::None).await.unwrap();
        assert!(page.items.iter().all(|item| item.cookie > cookie), "cookies grow");
        cookie = page.items.last().map_or(cookie, |last| last.cookie);
        names.extend(page.items.into_iter().map(|item| item.name));
        if page.end {
            break;
        }
    }
    client.close(opened, None).await.unwrap();
    assert_eq!(names.iter().filter(|name| name.starts_with(b".")).count(), 2, "dots once");
    names.retain(|name| !name.starts_with(b"."));
    names.sort();
    names
}

async fn make_directory(client: &FileSystem, parent: InodeNumber, name: &str, mdt: u16) -> InodeNumber {
    let (name, mdt) = (name.as_bytes().to_vec(), MdtIndex(mdt));
    let make = MakeDirectory { parent, name, mode: 0o755, umask: 0, mdt, stripes: Stripes::default() };
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
