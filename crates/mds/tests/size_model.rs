//! Random histories of one file: several clients open, write, append, truncate, close, stat,
//! glimpse late, die and come back after a crash or a power loss of the MDT, in any order. Whenever
//! the MDT says that the size is exact, it is the size of the data; and when all clients have left
//! cleanly, it says so.

use crate::common;

use std::collections::BTreeMap;

use common::*;
use proptest::prelude::*;
use rpc::{
    SessionEvent,
    message::{
        MdtReply, MdtRequest,
        mdt::{
            ExclusiveBegin, ExclusiveEnd, ExclusiveGranted, ExclusivePurpose, OpenFlags, OpenId, Opened, Reclaim,
            ReportSize, open_flag,
        },
    },
};
use types::{ClientId, FsError, InodeNumber};

/// Clients take part by number.
const CLIENTS: u64 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Open for writing; with truncation.
    Open(u64, bool),
    /// Write up to this offset through one of the opens.
    Write(usize, u64),
    /// Append this many bytes through one of the opens.
    Append(usize, u64),
    /// Truncate through one of the opens.
    TruncateOpen(usize, u64),
    /// Begin a truncation by path; it takes effect and ends with later steps.
    BeginTruncate(u64, u64),
    /// The begun truncation reaches the objects.
    Cut,
    /// The begun truncation ends.
    EndTruncate,
    /// Close one of the opens; if the MDT asks for a glimpse, it is taken at once but told later.
    Close(usize),
    /// Look at the file: if the MDT says that it is quiet, a glimpse is taken at once but told
    /// later.
    Look,
    /// Tell a glimpse taken earlier.
    ReportSize(usize),
    /// Make everything the MDT knows durable.
    Commit,
    /// Stop and start the MDT; all clients come back. With its power, what was not durable is lost.
    Crash { power: bool },
    /// A client dies; its OSTs never hear of it, so its writes may arrive at any time.
    Evict(u64),
    /// A write of a dead client arrives.
    LateWrite(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let size = || 0..1000u64;
    prop_oneof![
        6 => (0..CLIENTS, prop::bool::weighted(0.2)).prop_map(|(client, truncate)| Step::Open(client, truncate)),
        6 => (any::<usize>(), size()).prop_map(|(open, end)| Step::Write(open, end)),
        3 => (any::<usize>(), size()).prop_map(|(open, bytes)| Step::Append(open, bytes)),
        2 => (any::<usize>(), size()).prop_map(|(open, size)| Step::TruncateOpen(open, size)),
        2 => (0..CLIENTS, size()).prop_map(|(client, size)| Step::BeginTruncate(client, size)),
        2 => Just(Step::Cut),
        2 => Just(Step::EndTruncate),
        8 => any::<usize>().prop_map(Step::Close),
        2 => Just(Step::Look),
        4 => any::<usize>().prop_map(Step::ReportSize),
        2 => Just(Step::Commit),
        2 => any::<bool>().prop_map(|power| Step::Crash { power }),
        1 => (0..CLIENTS).prop_map(Step::Evict),
        1 => size().prop_map(Step::LateWrite),
    ]
}

/// What a writer believes: the epoch it was given, and the size if it started from an exact one.
#[derive(Clone, Copy)]
struct Writer {
    client: ClientId,
    epoch: u64,
    size: Option<u64>,
}

struct World {
    fs: Fixture,
    file: InodeNumber,
    /// The size of the data on the OSTs.
    truth: u64,
    writers: BTreeMap<OpenId, Writer>,
    /// Client, epoch, wanted size, whether it has reached the objects.
    truncation: Option<(ClientId, u64, u64, bool)>,
    /// Who was told to report what under which epoch.
    glimpses: Vec<(ClientId, u64, u64)>,
    /// Names of the clients now: a dead one comes back under a new one.
    clients: Vec<ClientId>,
    dead: bool,
}

impl World {
    async fn new() -> Self {
        let fs = Fixture::new().await.with_plain_files();
        let clients: Vec<ClientId> = (0..CLIENTS).map(|number| ClientId(100 + number)).collect();
        for client in &clients {
            fs.begin(*client).await;
        }
        fs.event(SessionEvent::Closed(ALICE)).await;
        fs.begin(ALICE).await;
        let file = fs.file(ROOT, "f").await;
        fs.commit().await;
        let (writers, glimpses) = (BTreeMap::new(), Vec::new());
        Self { fs, file, truth: 0, writers, truncation: None, glimpses, clients, dead: false }
    }

    fn client(&self, number: u64) -> ClientId {
        self.clients[(number % CLIENTS) as usize]
    }

    fn writer(&self, number: usize) -> Option<OpenId> {
        self.writers.keys().nth(number % self.writers.len().max(1)).copied()
    }

    async fn exclusive(&self, client: ClientId, open: Option<OpenId>, purpose: ExclusivePurpose) -> ExclusiveGranted {
        let begin = ExclusiveBegin { inode: self.file, open, purpose };
        match self.fs.call(client, MdtRequest::ExclusiveBegin(root(), begin)).await.expect("it may") {
            MdtReply::ExclusiveGranted(granted) => *granted,
            other => panic!("the lock is free, but: {other:?}"),
        }
    }

    async fn end(&self, client: ClientId, update: Option<rpc::message::mdt::SizeUpdate>) {
        let end = ExclusiveEnd { inode: self.file, update };
        done(self.fs.call(client, MdtRequest::ExclusiveEnd(end)).await.expect("it ends")).expect("done");
    }

    /// Steps that take the exclusive lock wait for a truncation in progress, and for the locks of
    /// the dead.
    fn locked(&self) -> bool {
        self.truncation.is_some() || self.dead
    }

    async fn open(&mut self, client: ClientId, truncate: bool) {
        let flags = if truncate { WRITE | open_flag::TRUNCATE } else { WRITE };
        let (open, opened): (OpenId, Opened) = self.fs.open(client, &root(), self.file, flags).await.expect("it opens");
        let exact = opened.entry.size_unknown.is_none();
        if opened.truncate {
            self.truth = 0;
            self.end(client, None).await;
        } else if exact {
            assert_eq!(opened.entry.attributes.size, self.truth, "a writer starts from what there is");
        }
        let size = exact.then_some(opened.entry.attributes.size);
        self.writers.insert(open, Writer { client, epoch: opened.epoch, size });
    }

    fn write(&mut self, open: OpenId, end: u64) {
        self.truth = self.truth.max(end);
        let writer = self.writers.get_mut(&open).expect("it was chosen from there");
        writer.size = writer.size.map(|size| size.max(end));
    }

    async fn append(&mut self, open: OpenId, bytes: u64) {
        let Writer { client, epoch, size } = self.writers[&open];
        let granted = self.exclusive(client, Some(open), ExclusivePurpose::Append).await;
        let end = match size {
            Some(size) if granted.epoch == epoch => size,
            _ => self.truth,
        };
        assert_eq!(end, self.truth, "an append begins at the end");
        self.write(open, end + bytes);
        self.end(client, None).await;
    }

    async fn truncate(&mut self, open: OpenId, size: u64) {
        let client = self.writers[&open].client;
        let granted = self.exclusive(client, Some(open), ExclusivePurpose::Truncate(size)).await;
        self.truth = size;
        self.writers.insert(open, Writer { client, epoch: granted.epoch, size: Some(size) });
        self.end(client, None).await;
    }

    async fn close(&mut self, open: OpenId) {
        let Writer { client, epoch, size } = self.writers.remove(&open).expect("it was chosen from there");
        let update = size.map(|size| size_update(epoch, size));
        let closed = self.fs.close(client, self.file, open, update).await.expect("a close never fails");
        self.glimpses.extend(closed.size_wanted.map(|(epoch, _)| (client, epoch, self.truth)));
    }

    async fn report_size(&mut self, number: usize) {
        if self.glimpses.is_empty() {
            return;
        }
        let (client, epoch, size) = self.glimpses.remove(number % self.glimpses.len());
        let report = ReportSize { inode: self.file, update: size_update(epoch, size) };
        let told = self.fs.call(client, MdtRequest::ReportSize(report)).await;
        // The MDT may have told the client before a restart, something else since, or ended its
        // session.
        assert!(matches!(told, Ok(MdtReply::Done) | Err(FsError::NotPermitted | FsError::Evicted)), "{told:?}");
    }

    async fn look(&mut self) {
        let entry = self.fs.stat(self.file).await.expect("the file exists");
        self.glimpses.extend(entry.quiet.map(|epoch| (ALICE, epoch, self.truth)));
    }

    async fn crash(&mut self, power: bool) {
        if power {
            self.fs.lose_power().await;
        } else {
            self.fs.restart().await;
        }
        for client in self.clients.iter().chain([&ALICE]) {
            let own = self.writers.iter().filter(|(_, writer)| writer.client == *client);
            let opens = own.map(|(open, _)| (self.file, *open, OpenFlags(WRITE))).collect();
            let held = self.truncation.filter(|(holder, ..)| holder == client);
            let exclusives = held.map(|_| (self.file, None)).into_iter().collect();
            let reclaim = Reclaim { opens, exclusives, done: true, ..Reclaim::default() };
            self.fs.reclaim(*client, reclaim).await.expect("a known client may reclaim");
        }
    }

    async fn evict(&mut self, number: u64) {
        let client = self.client(number);
        let wrote = self.writers.values().any(|writer| writer.client == client);
        let held = self.truncation.is_some_and(|(holder, ..)| holder == client);
        self.dead |= wrote || held;
        self.writers.retain(|_, writer| writer.client != client);
        if held {
            self.truncation = None;
        }
        self.fs.event(SessionEvent::Evicted(client)).await;
        let reborn = ClientId(client.0 + 1000);
        self.fs.begin(reborn).await;
        // Else a power loss might bring the session back, and the MDT would wait for its client.
        self.fs.commit().await;
        self.clients[(number % CLIENTS) as usize] = reborn;
    }

    async fn run(&mut self, step: Step) {
        match step {
            Step::Open(_, true) if self.locked() => {}
            Step::Open(client, truncate) => self.open(self.client(client), truncate).await,
            Step::Write(number, end) => {
                if let Some(open) = self.writer(number) {
                    self.write(open, end);
                }
            }
            Step::Append(number, bytes) => match self.writer(number) {
                Some(open) if !self.locked() => self.append(open, bytes).await,
                _ => {}
            },
            Step::TruncateOpen(number, size) => match self.writer(number) {
                Some(open) if !self.locked() => self.truncate(open, size).await,
                _ => {}
            },
            Step::BeginTruncate(_, _) if self.locked() => {}
            Step::BeginTruncate(number, size) => {
                let client = self.client(number);
                let granted = self.exclusive(client, None, ExclusivePurpose::Truncate(size)).await;
                self.truncation = Some((client, granted.epoch, size, false));
            }
            Step::Cut => {
                if let Some((.., size, cut)) = &mut self.truncation {
                    *cut = true;
                    self.truth = *size;
                }
            }
            Step::EndTruncate => {
                if let Some((client, epoch, size, cut)) = self.truncation.take() {
                    self.end(client, cut.then(|| size_update(epoch, size))).await;
                }
            }
            Step::Close(number) => {
                if let Some(open) = self.writer(number) {
                    self.close(open).await;
                }
            }
            Step::Look => self.look().await,
            Step::ReportSize(number) => self.report_size(number).await,
            Step::Commit => self.fs.commit().await,
            Step::Crash { power } => self.crash(power).await,
            Step::Evict(number) => self.evict(number).await,
            Step::LateWrite(end) if self.dead => self.truth = self.truth.max(end),
            Step::LateWrite(_) => {}
        }
        self.check().await;
    }

    async fn check(&self) {
        let entry = self.fs.stat(self.file).await.expect("the file exists");
        if entry.size_unknown.is_none() {
            assert_eq!(entry.attributes.size, self.truth, "a known size is exact");
        }
        let quiet = self.writers.is_empty() && self.truncation.is_none() && !self.dead;
        assert_eq!(entry.quiet.is_some(), entry.size_unknown.is_some() && quiet, "nobody can be writing");
    }

    /// Every client closes in order and tells what it is asked: the size is exact, unless the dead
    /// may still write.
    async fn finish(&mut self) {
        self.run(Step::EndTruncate).await;
        let opens: Vec<OpenId> = self.writers.keys().copied().collect();
        if opens.is_empty() {
            let client = self.client(0);
            self.open(client, false).await;
        }
        let opens = self.writers.keys().copied().collect::<Vec<_>>();
        for open in opens {
            self.close(open).await;
        }
        // The next look reports what nobody else did.
        self.look().await;
        while !self.glimpses.is_empty() {
            self.report_size(0).await;
        }
        self.check().await;
        let entry = self.fs.stat(self.file).await.expect("the file exists");
        assert_eq!(entry.size_unknown.is_some(), self.dead);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, ..ProptestConfig::default() })]

    #[test]
    fn a_known_size_is_exact(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut world = World::new().await;
            for step in &steps {
                world.run(*step).await;
            }
            world.finish().await;
        });
    }
}
