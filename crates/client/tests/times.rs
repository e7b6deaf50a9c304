//! Times of a file whose MDT and OSTs have clocks that differ by up to 75 seconds: whatever order
//! things happen in, each change of the data shows in mtime and ctime, and nothing else changes
//! mtime.

use crate::support;

use std::sync::Arc;

use client::{FileSystem, OpenFile};
use proptest::prelude::*;
use rpc::message::mdt::{OpenFlags, open_flag};
use support::{READ_WRITE, append, create, real::RealCluster, script::STRIPE, write};
use types::{Attributes, Credentials, InodeNumber, SetAttributes, SetTime, Timestamp};

const OLD: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };
const FUTURE: Timestamp = Timestamp { seconds: 1 << 33, nanoseconds: 0 };

fn root() -> Credentials {
    Credentials::root()
}

async fn look(fs: &FileSystem, inode: InodeNumber) -> Attributes {
    fs.get_attributes(inode, None).await.unwrap()
}

async fn set(fs: &FileSystem, inode: InodeNumber, time: SetTime) -> Attributes {
    let changes = SetAttributes { mtime: Some(time), ..SetAttributes::default() };
    fs.set_attributes(&root(), inode, changes, None).await.unwrap()
}

/// `touch -d old f`, then an append, on an OST whose clock is 30 seconds behind.
#[tokio::test]
async fn an_append_after_an_old_time_was_set_shows_whatever_the_clocks_say() {
    let cluster = RealCluster::new(STRIPE, 1).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&fs, "file", READ_WRITE).await;
    let inode = file.inode();
    append(&fs, &file, b"before").await;
    fs.close(file, None).await.unwrap();
    set(&fs, inode, SetTime::To(OLD)).await;
    let file = other.open(&root(), inode, OpenFlags(open_flag::WRITE | open_flag::APPEND)).await.unwrap();
    append(&other, &file, b"after").await;
    let open = look(&fs, inode).await;
    assert!(open.mtime > OLD);
    other.close(file, None).await.unwrap();
    let closed = look(&fs, inode).await;
    assert_eq!((closed.mtime, closed.ctime), (open.mtime, open.ctime));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A client writes to this stripe; it opens the file if it has not.
    Write(usize, u64),
    Truncate(usize, u64, bool),
    Close(usize),
    Set(usize, SetTime),
    /// Somebody changes the mode.
    Mode(usize),
    Nothing,
}

fn steps() -> impl Strategy<Value = Step> {
    let client = || 0..2usize;
    let time = prop_oneof![Just(SetTime::Now), Just(SetTime::To(OLD)), Just(SetTime::To(FUTURE))];
    prop_oneof![
        8 => (client(), 0..6u64).prop_map(|(client, stripe)| Step::Write(client, stripe)),
        2 => (client(), 0..6 * STRIPE, any::<bool>()).prop_map(|(client, size, path)| Step::Truncate(client, size, path)),
        4 => client().prop_map(Step::Close),
        3 => (client(), time).prop_map(|(client, time)| Step::Set(client, time)),
        2 => client().prop_map(Step::Mode),
        1 => Just(Step::Nothing),
    ]
}

struct World {
    clients: [Arc<FileSystem>; 2],
    open: [Option<Arc<OpenFile>>; 2],
    inode: InodeNumber,
}

impl World {
    async fn opened(&mut self, client: usize) -> Arc<OpenFile> {
        if let Some(file) = &self.open[client] {
            return file.clone();
        }
        let file = self.clients[client].open(&root(), self.inode, OpenFlags(READ_WRITE)).await.unwrap();
        self.open[client].insert(file).clone()
    }

    async fn play(&mut self, step: Step) {
        match step {
            Step::Write(client, stripe) => {
                let file = self.opened(client).await;
                write(&self.clients[client], &file, stripe * STRIPE, b"data").await;
            }
            Step::Truncate(client, size, by_path) => {
                let file = if by_path { None } else { Some(self.opened(client).await) };
                self.clients[client].truncate(&root(), self.inode, file.as_ref(), size).await.unwrap();
            }
            Step::Close(client) => {
                if let Some(file) = self.open[client].take() {
                    self.clients[client].close(file, None).await.unwrap();
                }
            }
            Step::Set(client, time) => {
                set(&self.clients[client], self.inode, time).await;
            }
            Step::Mode(client) => {
                let changes = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
                self.clients[client].set_attributes(&root(), self.inode, changes, None).await.unwrap();
            }
            Step::Nothing => {}
        }
    }
}

/// What `step` may have done to the times.
fn judge(step: Step, before: &Attributes, after: &Attributes) {
    let (mtime, ctime) = ((before.mtime, after.mtime), (before.ctime, after.ctime));
    match step {
        Step::Write(..) | Step::Truncate(..) => {
            assert!(ctime.1 > ctime.0, "ctime {ctime:?}");
            // A time to come that somebody set gives way to the present.
            assert!(mtime.1 > mtime.0 || mtime.0 >= FUTURE && mtime.1 < FUTURE, "mtime {mtime:?}");
        }
        Step::Set(_, time) => {
            assert!(ctime.1 > ctime.0, "ctime {ctime:?}");
            match time {
                SetTime::To(time) => assert_eq!(mtime.1, time),
                SetTime::Now => assert!(mtime.1 > mtime.0 || mtime.0 >= FUTURE, "mtime {mtime:?}"),
            }
        }
        Step::Mode(_) => {
            assert_eq!(mtime.0, mtime.1);
            assert!(ctime.1 > ctime.0, "ctime {ctime:?}");
        }
        Step::Close(_) | Step::Nothing => assert_eq!((mtime.0, ctime.0), (mtime.1, ctime.1)),
    }
}

async fn play(cluster: &RealCluster, script: &[Step]) {
    let clients = [cluster.mount().await, cluster.mount().await];
    let looker = cluster.mount().await;
    let file = create(&clients[0], "file", READ_WRITE).await;
    let inode = file.inode();
    let mut world = World { clients, open: [Some(file), None], inode };
    let mut before = look(&looker, inode).await;
    for &step in script {
        world.play(step).await;
        let after = look(&looker, inode).await;
        judge(step, &before, &after);
        before = after;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn each_change_shows_and_nothing_else(osts in 0u16..=3, script in prop::collection::vec(steps(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // None: as shipped, with the beginning of the file on the MDT.
            let cluster = if osts == 0 { RealCluster::automatic(2).await } else { RealCluster::new(STRIPE, osts).await };
            play(&cluster, &script).await;
        });
    }
}
