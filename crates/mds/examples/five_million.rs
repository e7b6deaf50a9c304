//! More inodes than memory: creates 5 million files in an MDT whose tables may use 256 MiB, then
//! looks files up at random and counts names, and prints the rates and the memory of the process.
//!
//! `cargo run --release -p stria-mds --example five_million [-- FILES [DIRECTORY]]`

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use kv::{FjallCold, cold::fjall::FjallOptions};
use mds::{Mdt, MdtOptions, NewRoot};
use rpc::{
    Call, Handler,
    message::{
        MdtReply, MdtRequest, Reply, Request,
        mdt::{Create, Lookup},
    },
};
use rt::{
    Entropy,
    buffer::BufferPool,
    memory::SeededEntropy,
    real::{Cores, Execution, IoThreads, LocalDirectory, TcpOptions, TcpTransport},
};
use types::{ClientId, Credentials, InodeNumber, MdtIndex, NodeKind, Slot, Xid};

/// Memory for the tables: half for kv, half for the cold store.
const MEMORY_BYTES: u64 = 256 << 20;
const FILES_PER_DIRECTORY: u64 = 50_000;
const LOOKUPS: u64 = 200_000;

struct Driver {
    mdt: Arc<Mdt>,
    xid: u64,
}

impl Driver {
    async fn call(&mut self, request: MdtRequest) -> MdtReply {
        self.xid += 1;
        let call = Call::plain(ClientId(1), Slot(1), Xid(self.xid), Request::Mdt(request), Bytes::new());
        match self.mdt.clone().handle(call).await.reply {
            Ok(Reply::Mdt(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    async fn create(&mut self, parent: InodeNumber, name: String, kind: NodeKind) -> InodeNumber {
        let mode = if kind == NodeKind::Directory { 0o755 } else { 0o644 };
        let create = Create { parent, name: name.into_bytes(), kind, mode, umask: 0, layout: None, open: None };
        match self.call(MdtRequest::Create(Credentials::root(), create)).await {
            MdtReply::Created(created) => created.entry.attributes.inode,
            other => panic!("{other:?}"),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let files: u64 = arguments.next().map_or(Ok(5_000_000), |text| text.parse())?;
    let place = match arguments.next() {
        Some(directory) => tempfile::tempdir_in(directory)?,
        None => tempfile::tempdir()?,
    };
    let cores = Cores::start(1)?;
    let transport = TcpTransport::new(TcpOptions::default(), BufferPool::new(1 << 20));
    let seams = rt::real::seams(&cores, transport);
    let threads = Arc::new(IoThreads::new("flush", 2)?);
    let journal = Arc::new(LocalDirectory::open(place.path().join("journal"), Execution::Inline, threads)?);
    let cold = Arc::new(FjallCold::open(&place.path().join("cold"), FjallOptions::for_budget(MEMORY_BYTES / 2))?);
    let mut options = MdtOptions::new("stria", MdtIndex(0));
    options.store.memory_bytes = MEMORY_BYTES / 2;
    // The OST never answers, and shall not be given up for it.
    options.parameters.ost_silence = Duration::from_secs(86_400);
    options.import.timeout = Duration::from_secs(86_400);
    let config = options.store.clone();
    cores.block_on(async {
        Mdt::format(
            &seams,
            journal.clone(),
            cold.clone(),
            config,
            "stria",
            MdtIndex(0),
            &NewRoot::of(Credentials::root()),
        )
        .await?;
        let mdt = Mdt::open(seams.clone(), journal, cold, options).await?;
        // Files get no objects; one OST that nobody connects to is enough for their layouts.
        mdt.update_map(&[(types::OstIndex(0), rpc::Endpoint::Remote("127.0.0.1:9".into()), true)]);
        run(Driver { mdt: mdt.clone(), xid: 0 }, files).await;
        let statistics = mdt.store_statistics();
        println!("{statistics:?}");
        mdt.stop().await?;
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    cores.shutdown();
    Ok(())
}

async fn run(mut driver: Driver, files: u64) {
    let mut directories = Vec::new();
    let start = Instant::now();
    for file in 0..files {
        if file % FILES_PER_DIRECTORY == 0 {
            let name = format!("d{}", directories.len());
            directories.push(driver.create(InodeNumber::ROOT, name, NodeKind::Directory).await);
            if file % 500_000 == 0 {
                report("created", file, start);
            }
        }
        let parent = directories[directories.len() - 1];
        driver.create(parent, format!("file-{file}"), NodeKind::Regular).await;
    }
    report("created", files, start);
    let (start, random) = (Instant::now(), SeededEntropy::new(7));
    for _ in 0..LOOKUPS {
        let file = random.below(files);
        let parent = directories[(file / FILES_PER_DIRECTORY) as usize];
        let name = format!("file-{file}").into_bytes();
        driver.call(MdtRequest::Lookup(Credentials::root(), Lookup { parent, name })).await;
    }
    report("looked up at random", LOOKUPS, start);
}

fn report(what: &str, count: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) / 1024
    };
    println!(
        "{what} {count}: {seconds:.0} s, {:.0} per second, resident {} MiB, at most {} MiB",
        count as f64 / seconds.max(1e-9),
        memory("VmRSS:"),
        memory("VmHWM:")
    );
}
