//! What mkdir(2) and link(2) say of inodes on other metadata targets than their names, and what
//! makes them durable.

use crate::common;

use std::sync::Arc;

use client::{FileSystem, NewNode, control};
use common::{on, with_options};
use lab::{
    cluster::{Cluster, ClusterOptions, client_host},
    drawn::settings,
    server::Role,
};
use rpc::message::control::{ControlReply, ControlRequest};
use rt::BoxFuture;
use types::{Attributes, Credentials, DirectoryDefault, FsResult, InodeNumber, MdtIndex, NodeKind};

const ROOT: InodeNumber = InodeNumber::ROOT;

/// All directories below one are on MDT 1.
const ON_1: DirectoryDefault =
    DirectoryDefault { count: Some(1), first: Some(MdtIndex(1)), hash: None, levels: None, spread_levels: Some(0) };
/// Their names are on all MDTs, from MDT 1 on.
const STRIPED: DirectoryDefault = DirectoryDefault { count: None, ..ON_1 };

fn with_two_mdts<T: Send + 'static>(
    seed: u64,
    scenario: impl for<'c> FnOnce(&'c Cluster) -> BoxFuture<'c, Result<T, String>> + Send + 'static,
) -> T {
    let options = ClusterOptions { mdts: 2, osts: 1, osts_per_server: 1, clients: 2, settings: settings(seed) };
    with_options(seed, options, scenario).unwrap_or_else(|reason| panic!("{reason}"))
}

async fn set_default(file_system: &FileSystem, default: DirectoryDefault) {
    let request = ControlRequest::SetDirectoryDefault(Some(default));
    let reply = control::execute(file_system, &Credentials::root(), (ROOT, None), request).await;
    assert_eq!(reply, ControlReply::Done);
}

async fn mkdir(file_system: &FileSystem, parent: InodeNumber, name: &str) -> FsResult<Attributes> {
    make(file_system, parent, name, NodeKind::Directory).await
}

async fn make(file_system: &FileSystem, parent: InodeNumber, name: &str, kind: NodeKind) -> FsResult<Attributes> {
    let node = NewNode { parent, name: name.as_bytes().to_vec(), kind, mode: 0o750, umask: 0, layout: None };
    file_system.create(&Credentials::root(), node).await
}

/// The MDT of the inode does not answer the client: what has happened is no error for that.
#[test]
fn what_was_decided_succeeds_without_the_mdt_of_the_inode() {
    with_two_mdts(1, |cluster| {
        Box::pin(async move {
            let file = on(cluster, 0, |file_system: Arc<FileSystem>| async move {
                set_default(&file_system, ON_1).await;
                let far = mkdir(&file_system, ROOT, "far").await?;
                make(&file_system, far.inode, "file", NodeKind::Fifo).await
            })
            .await?;
            assert_eq!((file.inode.mdt(), file.links), (MdtIndex(1), 1));
            cluster.network().cut(&client_host(0), &Role::Mds(1).host());
            let [far, striped, link] = on(cluster, 0, move |file_system| async move {
                let far = mkdir(&file_system, ROOT, "d").await?;
                let link = file_system.link(&Credentials::root(), file.inode, ROOT, b"link").await?;
                set_default(&file_system, STRIPED).await;
                FsResult::Ok([far, mkdir(&file_system, ROOT, "striped").await?, link])
            })
            .await?;
            for made in [far, striped] {
                assert_eq!((made.inode.mdt(), made.mode, made.links), (MdtIndex(1), 0o750, 2));
            }
            assert_eq!((link.inode, link.links), (file.inode, 2));
            cluster.network().heal();
            on(cluster, 0, move |file_system| async move {
                for made in [far, striped] {
                    assert_eq!(file_system.get_attributes(made.inode, None).await?, made);
                }
                FsResult::Ok(())
            })
            .await
        })
    });
}
