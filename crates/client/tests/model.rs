//! Random operations of two clients on one striped file, against a vector of bytes.

mod support;

use std::sync::Arc;

use client::{AllocateMode, FileSystem, OpenFile};
use proptest::prelude::*;
use rpc::message::mdt::{OpenFlags, open_flag};
use support::{Cluster, READ_WRITE, append, create, read, size, write};
use types::{Credentials, InodeNumber};

const STRIPE: u64 = 65536;
/// Offsets stay below this: a few rounds of stripes.
const SPAN: u64 = 8 * STRIPE;

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, bytes: u64 },
    Append { bytes: u64 },
    Truncate { size: u64, by_path: bool },
    Punch { offset: u64, bytes: u64 },
    Zero { offset: u64, bytes: u64, extend: bool },
    Read { offset: u64, bytes: u64 },
    Reopen { truncate: bool },
}

/// Offsets near stripe boundaries, and anywhere.
fn offsets() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..SPAN,
        (0..SPAN / STRIPE, 0u64..20).prop_map(|(stripe, behind)| (stripe * STRIPE + behind).saturating_sub(10)),
    ]
}

fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![1..200u64, 1..3 * STRIPE]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (offsets(), lengths()).prop_map(|(offset, bytes)| Step::Write { offset, bytes }),
        1 => lengths().prop_map(|bytes| Step::Append { bytes }),
        2 => (offsets(), any::<bool>()).prop_map(|(size, by_path)| Step::Truncate { size, by_path }),
        1 => (offsets(), lengths()).prop_map(|(offset, bytes)| Step::Punch { offset, bytes }),
        1 => (offsets(), lengths(), any::<bool>())
            .prop_map(|(offset, bytes, extend)| Step::Zero { offset, bytes, extend }),
        5 => (offsets(), lengths()).prop_map(|(offset, bytes)| Step::Read { offset, bytes }),
        1 => prop::bool::weighted(0.2).prop_map(|truncate| Step::Reopen { truncate }),
    ]
}

fn put(model: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if model.len() < end {
        model.resize(end, 0);
    }
    model[offset as usize..end].copy_from_slice(data);
}

fn clear(model: &mut [u8], offset: u64, bytes: u64) {
    let end = (offset + bytes).min(model.len() as u64);
    if offset < end {
        model[offset as usize..end as usize].fill(0);
    }
}

struct Client {
    fs: Arc<FileSystem>,
    file: Arc<OpenFile>,
}

impl Client {
    async fn apply(&mut self, step: &Step, mark: u8, model: &mut Vec<u8>) {
        let Client { fs, file } = self;
        let inode = file.inode();
        match *step {
            Step::Write { offset, bytes } => {
                write(fs, file, offset, &vec![mark; bytes as usize]).await;
                put(model, offset, &vec![mark; bytes as usize]);
            }
            Step::Append { bytes } => {
                append(fs, file, &vec![mark; bytes as usize]).await;
                model.extend(vec![mark; bytes as usize]);
            }
            Step::Truncate { size, by_path } => {
                let through = (!by_path).then_some(&*file);
                let shown = fs.truncate(&Credentials::root(), inode, through, size).await.unwrap();
                assert_eq!(shown.size, size);
                model.resize(size as usize, 0);
            }
            Step::Punch { offset, bytes } => {
                fs.allocate(file, AllocateMode::Punch, offset, bytes).await.unwrap();
                clear(model, offset, bytes);
            }
            Step::Zero { offset, bytes, extend } => {
                fs.allocate(file, AllocateMode::Zero { extend }, offset, bytes).await.unwrap();
                clear(model, offset, bytes);
                if extend && model.len() < (offset + bytes) as usize {
                    model.resize((offset + bytes) as usize, 0);
                }
            }
            Step::Read { offset, bytes } => {
                let end = (offset + bytes).min(model.len() as u64).max(offset);
                let start = offset.min(model.len() as u64);
                let expected = &model[start as usize..end.min(model.len() as u64).max(start) as usize];
                assert!(read(fs, file, offset, bytes as usize).await == expected, "read of {bytes} at {offset}");
            }
            Step::Reopen { truncate } => {
                let flags = READ_WRITE | if truncate { open_flag::TRUNCATE } else { 0 };
                let again = fs.open(&Credentials::root(), inode, OpenFlags(flags)).await.unwrap();
                fs.close(std::mem::replace(file, again), None).await.unwrap();
                if truncate {
                    model.clear();
                }
            }
        }
    }
}

async fn run(stripe_count: u16, script: Vec<(bool, Step)>) {
    let cluster = Cluster::new(STRIPE, stripe_count);
    let first = cluster.mount().await;
    let file = create(&first, "file", READ_WRITE).await;
    let inode: InodeNumber = file.inode();
    let second = cluster.mount().await;
    let other = second.open(&Credentials::root(), inode, OpenFlags(READ_WRITE)).await.unwrap();
    let mut clients = [Client { fs: first, file }, Client { fs: second, file: other }];
    let mut model = Vec::new();
    for (index, (who, step)) in script.iter().enumerate() {
        clients[usize::from(*who)].apply(step, index as u8 + 1, &mut model).await;
        let other = &clients[usize::from(!*who)].fs;
        assert_eq!(size(other, inode).await, model.len() as u64, "after {step:?}");
    }
    let [one, two] = clients;
    let whole = read(&one.fs, &one.file, 0, 3 * SPAN as usize + model.len()).await;
    assert!(whole == model);
    one.fs.close(one.file, None).await.unwrap();
    two.fs.close(two.file, None).await.unwrap();
    assert!(cluster.mdt.settled(inode));
    assert_eq!(size(&one.fs, inode).await, model.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn two_clients_see_one_file(
        stripe_count in 1u16..=5,
        script in prop::collection::vec((any::<bool>(), steps()), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(stripe_count, script));
    }

    #[test]
    fn a_sole_writer_knows_the_size_at_close(
        stripe_count in 1u16..=3,
        script in prop::collection::vec(steps(), 1..15),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = Cluster::new(STRIPE, stripe_count);
            let fs = cluster.mount().await;
            let file = create(&fs, "file", READ_WRITE).await;
            let inode = file.inode();
            let mut client = Client { fs, file };
            let mut model = Vec::new();
            let mut sole = true;
            for step in &script {
                // A second open of the same client, and a truncation by path, count as strangers.
                sole &= !matches!(step, Step::Reopen { .. } | Step::Truncate { by_path: true, .. });
                client.apply(step, 1, &mut model).await;
            }
            let expected = client.fs.get_attributes(inode, None).await.unwrap();
            let before = cluster.requests();
            client.fs.close(client.file, None).await.unwrap();
            if sole {
                assert_eq!(cluster.requests_since(&before).len(), 1, "the close alone");
            }
            assert!(cluster.mdt.settled(inode));
            let settled = client.fs.get_attributes(inode, None).await.unwrap();
            assert_eq!((settled.size, settled.blocks), (model.len() as u64, expected.blocks));
        });
    }
}
