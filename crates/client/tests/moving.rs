//! Moving a file in the background: when it gives up, and what it does not do twice.

use crate::support;

use std::{sync::Arc, time::Duration};

use client::{
    FileSystem, OpenFile,
    migration::{Background, Rest, Restraint, Throttle},
};
use layout::LayoutSpec;
use parking_lot::Mutex;
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::BoxFuture;
use support::{READ_WRITE, create, read, real::RealCluster, write};
use types::{Credentials, FsError, FsResult, InodeNumber};

/// Three pieces.
const BYTES: u64 = 12 << 20;
const PIECES: usize = 3;
/// No test waits so often.
const PAUSES: [Duration; 1000] = [Duration::from_millis(1); 1000];

fn root() -> Credentials {
    Credentials::root()
}

/// A file, and two clients.
struct Fixture {
    cluster: RealCluster,
    mover: Arc<FileSystem>,
    other: Arc<FileSystem>,
    inode: InodeNumber,
    /// Where each piece began that was asked for, and where the tries to swap again did.
    asked: Mutex<Vec<u64>>,
}

impl Fixture {
    async fn new() -> Self {
        let cluster = RealCluster::automatic(2).await;
        let (mover, other) = (cluster.mount().await, cluster.mount().await);
        let file = create(&mover, "file", READ_WRITE).await;
        let inode = file.inode();
        for piece in 0..BYTES >> 20 {
            write(&mover, &file, piece << 20, &vec![piece as u8; 1 << 20]).await;
        }
        mover.close(file, None).await.unwrap();
        Self { cluster, mover, other, inode, asked: Mutex::default() }
    }

    async fn open(&self, flags: u32) -> Arc<OpenFile> {
        self.other.open(&root(), self.inode, OpenFlags(flags)).await.unwrap()
    }

    /// Moves the file. `allowance` is told how often it was asked before.
    async fn migrate<'a>(&'a self, allowance: impl Fn(usize) -> BoxFuture<'a, u64> + Send + Sync) -> FsResult<u64> {
        let restraint = Asked { places: &self.asked, allowance };
        let throttle = Throttle::default();
        let mut background = Background { throttle, restraint: &restraint, swap_pauses: &PAUSES };
        self.mover.migrate(&root(), self.inode, LayoutSpec::Automatic, false, Some(&mut background)).await
    }

    /// The data are there, and nothing of what the move had open.
    async fn check(&self) {
        let file = self.open(open_flag::READ).await;
        for piece in 0..BYTES >> 20 {
            assert_eq!(read(&self.other, &file, piece << 20, 1 << 20).await, vec![piece as u8; 1 << 20]);
        }
        self.other.close(file, None).await.unwrap();
        assert_eq!(self.cluster.open_files(), 0);
    }
}

/// Notes what is asked.
struct Asked<'a, F> {
    places: &'a Mutex<Vec<u64>>,
    allowance: F,
}

impl<'a, F: Fn(usize) -> BoxFuture<'a, u64> + Send + Sync> Restraint for Asked<'a, F> {
    fn allowance(&self, rest: Rest) -> BoxFuture<'_, u64> {
        assert_eq!(rest.size, BYTES);
        let asked = {
            let mut places = self.places.lock();
            places.push(rest.start);
            places.len() - 1
        };
        // Once a swap was tried, its layout is doubtful.
        if rest.start < BYTES {
            assert_eq!(rest.osts.is_empty(), asked == 0, "{rest:?}");
        }
        (self.allowance)(asked)
    }
}

#[tokio::test]
async fn an_allowance_of_nothing_ends_a_move_under_way() {
    let fixture = Fixture::new().await;
    let moved = fixture.migrate(|asked| Box::pin(async move { if asked == 1 { 0 } else { u64::MAX } })).await;
    assert_eq!(moved, Err(FsError::Interrupted));
    assert_eq!(*fixture.asked.lock(), [0, 4 << 20]);
    fixture.check().await;
}

#[tokio::test]
async fn a_move_of_a_file_that_is_written_to_copies_nothing_more() {
    let fixture = Fixture::new().await;
    let writer = Mutex::new(None);
    let (fixture_of, writer_of) = (&fixture, &writer);
    let moved = fixture.migrate(|asked| {
        Box::pin(async move {
            if asked == 1 {
                let opened = fixture_of.open(open_flag::WRITE).await;
                *writer_of.lock() = Some(opened);
            }
            u64::MAX
        })
    });
    assert_eq!(moved.await, Err(FsError::Busy));
    assert_eq!(fixture.asked.lock().len(), 2);
    let writer = writer.lock().take().unwrap();
    fixture.other.close(writer, None).await.unwrap();
    fixture.check().await;
}

#[tokio::test]
async fn a_copy_is_kept_while_somebody_reads_the_file() {
    let fixture = Fixture::new().await;
    let reader = Mutex::new(Some(fixture.open(open_flag::READ).await));
    const TRIES: usize = 3;
    let (fixture_of, reader_of) = (&fixture, &reader);
    let moved = fixture.migrate(|asked| {
        Box::pin(async move {
            let reader = if asked == PIECES + TRIES { reader_of.lock().take() } else { None };
            if let Some(reader) = reader {
                fixture_of.other.close(reader, None).await.unwrap();
            }
            u64::MAX
        })
    });
    assert_eq!(moved.await, Ok(BYTES));
    let asked = fixture.asked.lock().clone();
    assert_eq!(asked[..PIECES], [0, 4 << 20, 8 << 20]);
    assert_eq!(asked[PIECES..], [BYTES; TRIES + 1], "only the swap was tried again");
    fixture.check().await;
}

#[tokio::test]
async fn a_copy_is_given_up_when_somebody_writes_before_it_is_swapped() {
    let fixture = Fixture::new().await;
    let reader = fixture.open(open_flag::READ).await;
    let writer = Mutex::new(None);
    let (fixture_of, writer_of) = (&fixture, &writer);
    let moved = fixture.migrate(|asked| {
        Box::pin(async move {
            if asked == PIECES {
                let opened = fixture_of.open(open_flag::WRITE).await;
                *writer_of.lock() = Some(opened);
            }
            u64::MAX
        })
    });
    assert_eq!(moved.await, Err(FsError::Busy));
    assert_eq!(fixture.asked.lock().len(), PIECES + 1, "at once");
    let writer = writer.lock().take().unwrap();
    for file in [reader, writer] {
        fixture.other.close(file, None).await.unwrap();
    }
    fixture.check().await;
}
