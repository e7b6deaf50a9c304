//! One OST that is ten times as slow as the others, in virtual time: how many of the new files are
//! placed there.

use crate::common;

use std::sync::Arc;

use bytes::Bytes;
use client::{FileSystem, WriteOptions};
use common::{READ_WRITE, with_cluster};
use lab::{cluster::Cluster, seed::set_default_layout, server::Role};
use layout::{LayoutSpec, Location};
use rt::parameters::ParameterTree;
use types::{Credentials, FsResult, InodeNumber, OstIndex};

const OSTS: u16 = 8;
const SLOW: OstIndex = OstIndex(3);
const FILE_BYTES: u64 = 1 << 20;
const REQUEST_BYTES: u64 = 128 << 10;

/// Writes a file with one stripe; returns its OST.
async fn write_file(file_system: Arc<FileSystem>, name: String) -> FsResult<OstIndex> {
    let root = Credentials::root();
    let file = file_system.create_open(&root, InodeNumber::ROOT, name.as_bytes(), 0o644, 0, READ_WRITE).await?.file;
    for offset in (0..FILE_BYTES).step_by(REQUEST_BYTES as usize) {
        let data = Bytes::from(vec![0; REQUEST_BYTES as usize]);
        file_system.write(&file, offset, data, WriteOptions::default()).await?;
    }
    let layout = file_system.layout_info(file.inode()).await?.layout.expect("a file has a layout");
    file_system.close(file, None).await?;
    let osts = layout.objects().filter_map(|(_, location)| match location {
        Location::Ost(ost) => Some(ost),
        Location::Mdt => None,
    });
    Ok(osts.last().expect("a file of this size has an object"))
}

/// Files on the slow OST, of all that so many writers wrote one after the other each, from the
/// second half on.
async fn share(cluster: &Cluster, writers: u16, files: u16) -> Result<(usize, usize), String> {
    set_default_layout(cluster, LayoutSpec::Automatic).await?;
    for ost in 0..OSTS {
        let mbps = if OstIndex(ost) == SLOW { "1" } else { "10" };
        let tree = ParameterTree::new();
        let limited = cluster.inspect(Role::Oss(ost), |serving| {
            let target = serving.osts.first().expect("an OSS has a target");
            target.register_parameters(&tree).expect("a new tree");
            tree.set(&format!("obdfilter.{}.limit_mbps", target.name()), mbps).is_ok()
        });
        assert_eq!(limited, Some(true));
    }
    let mut all = Vec::new();
    for writer in 0..writers {
        let (file_system, _) = cluster.file_system(writer % 2).ok_or("the client is not mounted")?;
        all.push(cluster.begin_on_client(writer % 2, async move {
            let mut osts = Vec::new();
            for number in 0..files {
                osts.push(write_file(file_system.clone(), format!("{writer}.{number}")).await);
            }
            osts
        }));
    }
    let (mut slow, mut count) = (0, 0);
    for one in all {
        let osts = one.await.ok_or("the client died")?;
        for ost in osts.into_iter().skip(usize::from(files / 2)) {
            count += 1;
            slow += usize::from(ost.map_err(|error| error.to_string())? == SLOW);
        }
    }
    Ok((slow, count))
}

/// By its share it would be one of eight.
#[test]
fn a_slow_ost_gets_few_of_the_new_files() {
    for (writers, files, of_share) in [(1, 120, 1), (8, 16, 2)] {
        let (slow, all) = with_cluster(1, (OSTS, 2), move |cluster| Box::pin(share(cluster, writers, files))).unwrap();
        assert!(slow * usize::from(OSTS) * of_share < all, "{writers} writers: {slow} of {all}");
    }
}
