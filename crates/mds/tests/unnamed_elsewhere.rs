//! Files without a name (`O_TMPFILE`) that get their first one in a directory of another MDT.

use rpc::{
    Role,
    message::{
        MdtReply, MdtRequest,
        mdt::{self, Close, CreateUnnamed, OpenFlags, OpenId, open_flag},
        mdt_peer::{AddLink, OperationId, Part, Prepare},
    },
};
use types::{FsError, FsResult, InodeNumber, MdtIndex};

use super::{
    absent_mdts::{FAULTS, Fault, happen, in_time},
    common::{created, root, several::call},
    distant_names::Tree,
};

const OPEN: OpenId = OpenId(77);

async fn unnamed(tree: &Tree, more: u32) -> InodeNumber {
    let open = (OPEN, OpenFlags(open_flag::WRITE | more));
    let request = CreateUnnamed { parent: tree.on(1), mode: 0o600, umask: 0, open };
    let reply = tree.cluster.0[1].call(MdtRequest::CreateUnnamed(root(), request)).await.unwrap();
    created(reply).entry.attributes.inode
}

fn close(inode: InodeNumber) -> MdtRequest {
    MdtRequest::Close(Close { open: OPEN, inode, update: None, flock_owner: None })
}

fn link(tree: &Tree, inode: InodeNumber) -> MdtRequest {
    MdtRequest::Link(root(), mdt::Link { inode, parent: tree.on(0), name: b"name".to_vec() })
}

/// Nobody has it open any more: it has its name and one link, or neither.
async fn check(case: &str, tree: &Tree, inode: InodeNumber, answered: &FsResult<MdtReply>) -> bool {
    in_time(case, tree.cluster.at_rest()).await;
    let named = in_time(case, tree.lookup((tree.on(0), "name"))).await;
    let links = in_time(case, tree.links(inode)).await;
    match &named {
        Ok(found) => assert_eq!((*found, links), (inode, Ok(1)), "{case}: {answered:?}"),
        Err(error) => assert_eq!((error, links), (&FsError::NotFound, Err(FsError::Stale)), "{case}: {answered:?}"),
    }
    named.is_ok()
}

#[tokio::test]
async fn a_file_without_a_name_gets_its_first_one_on_another_mdt() {
    let tree = Tree::new(2).await;
    let file = unnamed(&tree, 0).await;
    assert_eq!(tree.links(file).await, Ok(0));
    let answered = tree.cluster.0[0].call(link(&tree, file)).await;
    assert!(matches!(&answered, Ok(MdtReply::Decided(decided)) if decided.entry.attributes.links == 1), "{answered:?}");
    in_time("it is made", tree.cluster.at_rest()).await;
    tree.cluster.0[1].call(close(file)).await.unwrap();
    assert!(check("named", &tree, file, &answered).await);
    tree.cluster.0[0].remove(tree.on(0), "name", false).await.unwrap();
    in_time("it is removed", tree.cluster.at_rest()).await;
    assert_eq!(tree.links(file).await, Err(FsError::Stale));
    let exclusive = unnamed(&tree, open_flag::EXCLUSIVE).await;
    let answered = tree.cluster.0[0].call(link(&tree, exclusive)).await;
    assert_eq!(answered, Err(FsError::NotFound), "as on one MDT");
    tree.cluster.0[1].call(close(exclusive)).await.unwrap();
    assert!(!check("exclusive", &tree, exclusive, &answered).await);
    tree.cluster.end().await;
}

/// The last close comes after so many steps of the link; false if that was over by then.
async fn close_after_steps(steps: usize) -> bool {
    let case = format!("close after {steps} steps");
    let tree = Tree::new(2).await;
    let file = unnamed(&tree, 0).await;
    let (linker, closer) = (tree.cluster.0[0].import.clone(), tree.cluster.0[1].import.clone());
    let request = link(&tree, file);
    tree.cluster.1.allow(steps);
    let asked = tokio::spawn(async move { call(&linker, request).await });
    in_time(&case, tree.cluster.1.used_up()).await;
    let pending = tree.cluster.0.iter().map(|node| node.mdt.pending_of_several()).sum::<usize>();
    let is_over = asked.is_finished() && pending == 0;
    let closed = tokio::spawn(async move { call(&closer, close(file)).await });
    tokio::task::yield_now().await;
    tree.cluster.1.go_on();
    in_time(&case, closed).await.unwrap().unwrap();
    let answered = in_time(&case, asked).await.unwrap();
    let is_named = check(&case, &tree, file, &answered).await;
    assert_eq!(is_named, answered.is_ok(), "{case}: {answered:?}");
    tree.cluster.end().await;
    !is_over
}

#[tokio::test]
async fn its_last_close_may_come_at_each_step() {
    let mut steps = 0;
    while close_after_steps(steps).await {
        steps += 1;
    }
    assert!(steps > 10, "a link takes some steps, not {steps}");
}

async fn fault_after_steps(fault: Fault, steps: usize) -> bool {
    let case = format!("{fault:?} after {steps} steps");
    let mut tree = Tree::new(2).await;
    let file = unnamed(&tree, 0).await;
    for node in &tree.cluster.0 {
        node.call(MdtRequest::Commit).await.unwrap();
    }
    let import = tree.cluster.0[0].import.clone();
    let request = link(&tree, file);
    tree.cluster.1.allow(steps);
    let asked = tokio::spawn(async move { call(&import, request).await });
    in_time(&case, tree.cluster.1.used_up()).await;
    let pending = tree.cluster.0.iter().map(|node| node.mdt.pending_of_several()).sum::<usize>();
    let is_over = asked.is_finished() && pending == 0;
    happen(&mut tree.cluster, fault, 0).await;
    let answered = in_time(&case, asked).await.unwrap();
    let gone = matches!(answered, Err(FsError::Stale | FsError::NotFound));
    assert!(gone || matches!(answered, Ok(MdtReply::Decided(_))), "{case}: {answered:?}");
    // An MDT that was restarted has heard that the client has nothing open.
    in_time(&case, tree.cluster.0[1].call(close(file))).await.unwrap();
    let is_named = check(&case, &tree, file, &answered).await;
    let may_be_undone = matches!(fault, Fault::LosesPower(nodes) if nodes.contains(&0));
    assert!(is_named == answered.is_ok() || may_be_undone && !is_named, "{case}: {answered:?}");
    tree.cluster.end().await;
    !is_over
}

#[tokio::test]
async fn it_is_named_or_gone_whatever_happens_at_each_step() {
    for fault in FAULTS {
        let mut steps = 0;
        while fault_after_steps(fault, steps).await {
            steps += 1;
        }
        assert!(steps > 10, "a link takes some steps, not {steps}");
    }
}

/// It is closed while another MDT has in doubt whether it gets a name: that is no damage.
#[tokio::test]
async fn a_check_waits_for_its_name() {
    let tree = Tree::new(2).await;
    let file = unnamed(&tree, 0).await;
    let (mdt, tool) = (tree.cluster.0[1].connect(5, Role::Mdt), tree.cluster.0[1].connect(6, Role::Tool));
    let operation = OperationId { coordinator: MdtIndex(3), start: 1 << 40, number: 1 };
    let part = Part::AddLink(AddLink { inode: file, parent: tree.on(0), name: b"name".to_vec() });
    call(&mdt, MdtRequest::Prepare(Prepare { operation, part })).await.unwrap();
    tree.cluster.0[1].call(close(file)).await.unwrap();
    let check = async || in_time("a check", call(&tool, MdtRequest::Check(root(), false))).await;
    assert_eq!(check().await, Ok(MdtReply::Findings(Vec::new())));
    call(&mdt, MdtRequest::Abort(operation)).await.unwrap();
    assert_eq!(tree.links(file).await, Err(FsError::Stale));
    assert_eq!(check().await, Ok(MdtReply::Findings(Vec::new())));
    tree.cluster.end().await;
}
