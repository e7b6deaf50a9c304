//! An MDT that panics in the middle of a change: no reply shows the change, another target of the
//! process continues, and the next start finds what was acknowledged.

use crate::common;

use std::{sync::Arc, time::Duration};

use common::*;
use rpc::{
    Endpoint, Import, ImportOptions, Server, ServerOptions,
    message::{MdtReply, MdtRequest, mdt::Lookup},
};
use types::{ClientId, FsError, FsResult, InodeNumber, NodeKind};

const NAME: &str = "test-MDT0000";
const OTHER: &str = "other-MDT0000";

fn connect(fs: &Fixture, server: &Arc<Server>, target: &str, client: ClientId) -> Import {
    let options = ImportOptions { timeout: Duration::from_millis(300), ..ImportOptions::default() };
    Import::new(fs.seams.clone(), target, Endpoint::Local(server.clone()), principal(client), options, None)
}

async fn ask(import: &Import, request: MdtRequest) -> FsResult<MdtReply> {
    Ok(import.call(request).await?.reply)
}

async fn mkdir(import: &Import, parent: InodeNumber, name: &str) -> FsResult<MdtReply> {
    ask(import, MdtRequest::Create(root(), create_request(parent, name, NodeKind::Directory, 0o755, None))).await
}

#[tokio::test]
async fn half_a_change_is_shown_to_nobody_and_gone_with_the_next_start() {
    let (mut fs, other_fs) = (Fixture::new().await, Fixture::new().await);
    let gate = fs.restart_behind_a_gate().await;
    fs.recover().await;
    let server = Server::new(fs.seams.clone(), ServerOptions::new(rpc::Keyring::of_test()));
    server.add_target(NAME, fs.mdt.clone(), Duration::from_secs(3600));
    server.add_target(OTHER, other_fs.mdt.clone(), Duration::from_secs(3600));
    let (one, two) = (connect(&fs, &server, NAME, BOB), connect(&fs, &server, NAME, ClientId(0xc)));
    let other = connect(&fs, &server, OTHER, BOB);
    mkdir(&one, ROOT, "before").await.unwrap();
    mkdir(&other, ROOT, "before").await.unwrap();
    ask(&two, MdtRequest::Ping).await.unwrap();

    // The namespace has the change, and the journal has not.
    gate.panic_once();
    let error = mkdir(&one, ROOT, "half").await.unwrap_err();
    assert!(matches!(&error, FsError::Device { target, .. } if target == NAME), "{error}");
    assert_eq!((server.panics(NAME), server.panics(OTHER)), (1, 0));
    let lookup = MdtRequest::Lookup(root(), Lookup { parent: ROOT, name: b"half".to_vec() });
    for import in [&one, &two] {
        let shown = ask(import, lookup.clone()).await;
        assert!(matches!(shown, Err(FsError::Unreachable { .. })), "{shown:?}");
    }
    mkdir(&other, ROOT, "after").await.expect("the other target of the process");
    assert_eq!(other_fs.names(ROOT).await, ["after", "before"]);

    fs.restart().await;
    assert_eq!(fs.names(ROOT).await, ["before"], "what was acknowledged, and nothing half done");
    assert_eq!(fs.check(false).await, []);
}
