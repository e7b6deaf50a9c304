//! What locks cost the MDT in a listing: pages of 1000 files without and with locks on each, and
//! the removal of all locks of a client. Everything is in memory.
//!
//! `cargo run --release -p stria-mds --example listing_locks [-- FILES]`

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use kv::MemoryCold;
use mds::{Mdt, MdtOptions, NewRoot};
use rpc::{
    Call, Clients, Handler, Parked, Role, SessionEvent,
    message::{
        ClientReply, ClientRequest, MdtReply, MdtRequest, Reply, Request, RequestExtension,
        lock::{CacheMode, Enqueue, InodeBits, Resource, inode_bit},
        mdt::{Create, Open, OpenFlags, OpenId, ReadDirectory, open_flag},
    },
};
use rt::{
    BoxFuture,
    memory::{HostClock, MemoryDevice, MemoryTransport, seams},
};
use types::{ClientId, Credentials, FsResult, InodeNumber, MdtIndex, NodeKind, Slot, Xid};

const PAGE: u32 = 1000;
const CLIENT: ClientId = ClientId(1);
const OPEN: OpenId = OpenId(1);

/// Clients that are never asked.
struct Quiet;

impl Clients for Quiet {
    fn call_back(&self, _: ClientId, _: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        Box::pin(std::future::ready(Ok(ClientReply::Done)))
    }

    fn evict(&self, _: ClientId) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(false))
    }

    fn lease_end(&self, _: ClientId) -> Option<rt::Instant> {
        None
    }

    fn stopped(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn park(&self, _: &'static str) -> Option<Parked> {
        None
    }
}

struct Driver {
    mdt: Arc<Mdt>,
    xid: u64,
}

impl Driver {
    async fn call(&mut self, request: MdtRequest, extension: RequestExtension) -> MdtReply {
        self.xid += 1;
        let call = Call::plain(CLIENT, Slot(1), Xid(self.xid), Request::Mdt(request), Bytes::new());
        match self.mdt.clone().handle(Call { extension, ..call }).await.reply {
            Ok(Reply::Mdt(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Lists the root in pages; the time of a page, and the locks that came with them.
    async fn list(&mut self, bits: u32) -> (Duration, usize) {
        let (mut cookie, mut pages, mut locks, start) = (0, 0, 0, Instant::now());
        loop {
            let (inode, open) = (InodeNumber::ROOT, OPEN);
            let read = ReadDirectory { inode, open, cookie, entries_max: PAGE, attributes: true, unasked: None };
            let resource = Resource::Inode(inode, InodeBits(bits));
            let wanted = Some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true });
            let extension = RequestExtension { wanted, ..RequestExtension::default() };
            let reply = self.call(MdtRequest::ReadDirectory(read), extension).await;
            let MdtReply::Directory(page, complete) = reply else { panic!("{reply:?}") };
            pages += 1;
            locks += page.iter().filter(|found| !found.locks.is_empty()).count();
            cookie = page.last().map_or(cookie, |found| found.cookie);
            if complete {
                return (start.elapsed() / pages, locks);
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files: u64 = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse())?;
    let seams = rt::Seams { clock: Arc::new(HostClock { boot: 1 }), ..seams(&MemoryTransport::new(), 7) };
    let (device, cold) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryCold::new()));
    let options = MdtOptions::new("stria", MdtIndex(0));
    let (config, root) = (options.store.clone(), Credentials::root());
    Mdt::format(&seams, device.clone(), cold.clone(), config, "stria", MdtIndex(0), &NewRoot::of(root.clone())).await?;
    let mdt = Mdt::open(seams, device, cold, options).await?;
    mdt.update_map(&[(types::OstIndex(0), rpc::Endpoint::Remote("127.0.0.1:9".into()), true)]);
    mdt.served(Arc::new(Quiet));
    let opened = SessionEvent::Opened { client: CLIENT, resumed: false, in_process: false, role: Role::Client };
    mdt.clone().session_event(opened).await;
    let mut driver = Driver { mdt: mdt.clone(), xid: 0 };
    for file in 0..files {
        let (name, kind) = (format!("file-{file}").into_bytes(), NodeKind::Regular);
        let create = Create { parent: InodeNumber::ROOT, name, kind, mode: 0o644, umask: 0, layout: None, open: None };
        driver.call(MdtRequest::Create(root.clone(), create), RequestExtension::default()).await;
    }
    let open = Open { inode: InodeNumber::ROOT, open: OPEN, flags: OpenFlags(open_flag::READ) };
    driver.call(MdtRequest::Open(root, open), RequestExtension::default()).await;
    let all = inode_bit::DIRECTORY | inode_bit::LOOKUP | inode_bit::ATTRIBUTES | inode_bit::XATTRS;
    for (what, bits) in [("no locks", 0), ("no locks again", 0), ("locks", all), ("locks that are held", all)] {
        let (page, locks) = driver.list(bits).await;
        println!("a page of {PAGE} with {what}: {page:?}; {locks} locks granted");
    }
    let start = Instant::now();
    mdt.connection_begun(CLIENT);
    println!("a step of the removal of {} locks: {:?}", files + 1, start.elapsed());
    while mdt.cache_locks().0 > 0 {
        tokio::task::yield_now().await;
    }
    println!("all of it: {:?}", start.elapsed());
    Ok(())
}
