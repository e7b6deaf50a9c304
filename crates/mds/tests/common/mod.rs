//! An MDT on devices in memory, driven directly through its handler.

#![allow(dead_code, missing_docs)]

pub mod caching;
pub mod explorer;
pub mod gate;
pub mod holders;
pub mod log;
pub mod names_model;
pub mod ost;
pub mod several;
pub mod steps;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use gate::{Gate, Gated};
use kv::MemoryCold;
use mds::{Mdt, MdtOptions, NewRoot};
use parking_lot::Mutex;
use rpc::{
    Call, Endpoint, Handler, Role, SessionEvent,
    message::{
        MdtReply, MdtRequest, Reply, Request,
        mdt::{
            Close, Closed, Create, Created, DirectoryEntry, Entry, Finding, Link, Lookup, Open, OpenFlags, OpenId,
            Opened, ReadDirectory, Reclaim, Rename, RenameMode, SizeUpdate, SourceData, Unlink, open_flag,
        },
    },
};
use rt::{
    Seams,
    memory::{HostClock, MemoryDevice, MemoryTransport, SeededEntropy, Unflushed, seams},
};
use types::{ClientId, Credentials, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, OstIndex, Slot, Xid};

/// A client in the process of the MDT, under this id.
pub fn principal(client: ClientId) -> rpc::Principal {
    rpc::Principal::of_test(1, rpc::Role::Client).claiming(client)
}

pub const ROOT: InodeNumber = InodeNumber::ROOT;
pub const READ: u32 = open_flag::READ;
pub const WRITE: u32 = open_flag::WRITE;

/// The client most tests use.
pub const ALICE: ClientId = ClientId(0xa);
/// Another one.
pub const BOB: ClientId = ClientId(0xb);

pub struct Fixture {
    pub seams: Seams,
    pub device: MemoryDevice,
    pub cold: MemoryCold,
    pub mdt: Arc<Mdt>,
    pub options: MdtOptions,
    boot: u64,
    osts: Vec<(OstIndex, Endpoint, bool)>,
    xids: Mutex<BTreeMap<ClientId, u64>>,
    next_open: AtomicU64,
}

pub fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Some(Vec::new()) }
}

pub fn root() -> Credentials {
    Credentials::root()
}

/// `count` OSTs that nobody serves.
pub fn absent_osts(count: u16) -> Vec<(OstIndex, Endpoint, bool)> {
    (0..count).map(|index| (OstIndex(index), Endpoint::Remote("nowhere:1".into()), true)).collect()
}

impl Fixture {
    pub async fn new() -> Self {
        Self::with_osts(absent_osts(4)).await
    }

    /// The same, whose files have objects from the start, as without automatic layouts.
    pub fn with_plain_files(mut self) -> Self {
        self.options.parameters.default_layout.automatic = false;
        let mut parameters = self.mdt.parameters();
        parameters.default_layout.automatic = false;
        self.mdt.set_parameters(parameters);
        self
    }

    /// One whose store commits by itself, and soon tries again what failed.
    pub async fn that_commits() -> Self {
        let mut fixture = Self::new().await;
        fixture.options.store.commit_interval = Duration::from_millis(20);
        fixture.restart_and_recover().await;
        fixture
    }

    pub async fn with_osts(osts: Vec<(OstIndex, Endpoint, bool)>) -> Self {
        Self::on_network(&MemoryTransport::new(), osts).await
    }

    pub async fn on_network(network: &MemoryTransport, osts: Vec<(OstIndex, Endpoint, bool)>) -> Self {
        let boot = 1;
        let seams = Seams { clock: Arc::new(HostClock { boot }), ..seams(network, 7) };
        let (device, cold) = (MemoryDevice::new(), MemoryCold::new());
        let mut options = MdtOptions::new("test", MdtIndex(0));
        options.keys = rpc::Keyring::of_test();
        options.store = kv::Config::small();
        // Tests say what is durable, and when.
        options.store.commit_interval = Duration::from_secs(3600);
        options.recovery_window = Duration::from_secs(600);
        options.audits = true;
        // What is removed is gone at once, unless a test is about that.
        options.parameters.removal_grace = Duration::ZERO;
        Mdt::format(
            &seams,
            Arc::new(device.clone()),
            Arc::new(cold.clone()),
            options.store.clone(),
            "test",
            MdtIndex(0),
            &NewRoot::of(Credentials::root()),
        )
        .await
        .expect("an empty store is formatted");
        let mdt = open(&seams, &device, &cold, &options).await;
        mdt.update_map(&osts);
        let fixture = Self {
            seams,
            device,
            cold,
            mdt,
            options,
            boot,
            osts,
            xids: Mutex::default(),
            next_open: AtomicU64::new(1),
        };
        fixture.begin(ALICE).await;
        fixture
    }

    /// Lets a client begin a session.
    pub async fn begin(&self, client: ClientId) {
        self.event(SessionEvent::Opened { client, resumed: false, in_process: false, role: Role::Client }).await;
    }

    /// As [`Fixture::begin`], for one in the MDT's process.
    pub async fn begin_in_process(&self, client: ClientId) {
        self.event(SessionEvent::Opened { client, resumed: false, in_process: true, role: Role::Client }).await;
    }

    pub async fn event(&self, event: SessionEvent) {
        self.mdt.clone().session_event(event).await;
    }

    /// The process dies and is started again; the clients' sessions are expected back.
    pub async fn restart(&mut self) {
        self.restart_without_map().await;
        self.update_map();
    }

    /// As [`Fixture::restart`], and the cluster map does not arrive before [`Fixture::update_map`].
    pub async fn restart_without_map(&mut self) {
        self.device = self.device.crash();
        self.cold = self.cold.crash();
        self.mdt = open(&self.seams, &self.device, &self.cold, &self.options).await;
    }

    pub fn update_map(&self) {
        self.mdt.update_map(&self.osts);
    }

    /// As [`Fixture::restart`], on a device whose writes the gate lets through.
    pub async fn restart_behind_a_gate(&mut self) -> Arc<Gate> {
        self.device = self.device.crash();
        self.cold = self.cold.crash();
        let gate: Arc<Gate> = Arc::default();
        let device = Arc::new(Gated { device: self.device.clone(), gate: gate.clone() });
        self.mdt = Mdt::open(self.seams.clone(), device, Arc::new(self.cold.clone()), self.options.clone())
            .await
            .expect("a formatted store opens");
        self.mdt.update_map(&self.osts);
        gate
    }

    /// The host loses power: everything since the last flush is gone.
    pub async fn lose_power(&mut self) {
        let entropy = SeededEntropy::new(1);
        self.boot += 1;
        self.seams.clock = Arc::new(HostClock { boot: self.boot });
        self.device = self.device.power_loss(&entropy, Unflushed::Lost);
        self.cold = self.cold.power_loss(&entropy);
        self.mdt = open(&self.seams, &self.device, &self.cold, &self.options).await;
        self.mdt.update_map(&self.osts);
    }

    /// Makes everything durable.
    pub async fn commit(&self) {
        done(self.call(ALICE, MdtRequest::Commit).await.expect("a commit succeeds")).expect("done");
    }

    /// ALICE comes back with nothing; if nobody else is expected, recovery is over.
    pub async fn recover(&self) {
        self.reclaim(ALICE, Reclaim { done: true, ..Reclaim::default() }).await.expect("a known client may reclaim");
    }

    /// As [`Fixture::restart`], and ALICE comes back with nothing.
    pub async fn restart_and_recover(&mut self) {
        self.restart().await;
        self.recover().await;
    }

    /// A call with the client's next transaction number, in slot 0.
    pub async fn call(&self, client: ClientId, request: MdtRequest) -> FsResult<MdtReply> {
        let xid = self.next_xid(client);
        self.call_as(client, Slot(0), xid, request).await
    }

    pub async fn call_as(&self, client: ClientId, slot: Slot, xid: Xid, request: MdtRequest) -> FsResult<MdtReply> {
        Ok(self.call_with(client, slot, xid, request, Bytes::new()).await?.0)
    }

    /// A call with bulk data in the request and in the answer.
    pub async fn call_with(
        &self,
        client: ClientId,
        slot: Slot,
        xid: Xid,
        request: MdtRequest,
        bulk: Bytes,
    ) -> FsResult<(MdtReply, Bytes)> {
        let call = Call::plain(client, slot, xid, Request::Mdt(request), bulk);
        let answer = self.mdt.clone().handle(call).await;
        match answer.reply? {
            Reply::Mdt(reply) => Ok((reply, answer.bulk)),
            other => panic!("an MDT answered {other:?}"),
        }
    }

    /// The client's next transaction number.
    pub fn next_xid(&self, client: ClientId) -> Xid {
        let mut xids = self.xids.lock();
        let xid = xids.entry(client).or_insert(0);
        *xid += 1;
        Xid(*xid)
    }

    pub fn open_id(&self) -> OpenId {
        OpenId(self.next_open.fetch_add(1, Ordering::Relaxed))
    }

    pub async fn lookup(&self, who: &Credentials, parent: InodeNumber, name: &str) -> FsResult<Entry> {
        let lookup = Lookup { parent, name: name.as_bytes().to_vec() };
        match self.call(ALICE, MdtRequest::Lookup(who.clone(), lookup)).await? {
            MdtReply::Absent => Err(FsError::NotFound),
            reply => entry(reply),
        }
    }

    pub async fn stat(&self, inode: InodeNumber) -> FsResult<Entry> {
        entry(self.call(ALICE, MdtRequest::GetAttributes(inode)).await?)
    }

    pub async fn links(&self, inode: InodeNumber) -> u32 {
        self.stat(inode).await.expect("the inode exists").attributes.links
    }

    pub async fn create(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &str,
        kind: NodeKind,
        mode: u32,
    ) -> FsResult<InodeNumber> {
        let create = create_request(parent, name, kind, mode, None);
        Ok(created(self.call(ALICE, MdtRequest::Create(who.clone(), create)).await?).entry.attributes.inode)
    }

    pub async fn file(&self, parent: InodeNumber, name: &str) -> InodeNumber {
        self.create(&root(), parent, name, NodeKind::Regular, 0o644).await.expect("a file is made")
    }

    pub async fn mkdir(&self, parent: InodeNumber, name: &str) -> InodeNumber {
        self.create(&root(), parent, name, NodeKind::Directory, 0o755).await.expect("a directory is made")
    }

    /// Creates and opens, as open(2) with O_CREAT.
    pub async fn create_open(
        &self,
        client: ClientId,
        parent: InodeNumber,
        name: &str,
        flags: u32,
    ) -> FsResult<(OpenId, Created)> {
        let open = self.open_id();
        let request = create_request(parent, name, NodeKind::Regular, 0o644, Some((open, OpenFlags(flags))));
        Ok((open, created(self.call(client, MdtRequest::Create(root(), request)).await?)))
    }

    pub async fn open(
        &self,
        client: ClientId,
        who: &Credentials,
        inode: InodeNumber,
        flags: u32,
    ) -> FsResult<(OpenId, Opened)> {
        let open = self.open_id();
        let request = Open { inode, open, flags: OpenFlags(flags) };
        match self.call(client, MdtRequest::Open(who.clone(), request)).await? {
            MdtReply::Opened(opened) => Ok((open, *opened)),
            other => panic!("an open was answered {other:?}"),
        }
    }

    pub async fn close(
        &self,
        client: ClientId,
        inode: InodeNumber,
        open: OpenId,
        update: Option<SizeUpdate>,
    ) -> FsResult<Closed> {
        let close = Close { inode, open, update, flock_owner: None };
        match self.call(client, MdtRequest::Close(close)).await? {
            MdtReply::Closed(closed) => Ok(closed),
            other => panic!("a close was answered {other:?}"),
        }
    }

    pub async fn unlink(&self, who: &Credentials, parent: InodeNumber, name: &str) -> FsResult<()> {
        self.remove(who, parent, name, false).await
    }

    pub async fn rmdir(&self, who: &Credentials, parent: InodeNumber, name: &str) -> FsResult<()> {
        self.remove(who, parent, name, true).await
    }

    async fn remove(&self, who: &Credentials, parent: InodeNumber, name: &str, directory: bool) -> FsResult<()> {
        let unlink = Unlink { parent, name: name.as_bytes().to_vec(), directory };
        done(self.call(ALICE, MdtRequest::Unlink(who.clone(), unlink)).await?)
    }

    pub async fn rename(
        &self,
        who: &Credentials,
        (parent, name): (InodeNumber, &str),
        (new_parent, new_name): (InodeNumber, &str),
        mode: RenameMode,
    ) -> FsResult<()> {
        let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        let source_data = SourceData::AsIs;
        let rename =
            Rename { parent, name, new_parent, new_name, mode, source_data, mdt_era: None, same_directory: false };
        done(self.call(ALICE, MdtRequest::Rename(who.clone(), rename)).await?)
    }

    pub async fn link(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        parent: InodeNumber,
        name: &str,
    ) -> FsResult<Entry> {
        let link = Link { inode, parent, name: name.as_bytes().to_vec() };
        entry(self.call(ALICE, MdtRequest::Link(who.clone(), link)).await?)
    }

    /// Opens, reads in pages of `page`, and closes a directory.
    pub async fn list(&self, inode: InodeNumber, page: u32) -> Vec<DirectoryEntry> {
        let (open, _) = self.open(ALICE, &root(), inode, READ).await.expect("a directory opens");
        let mut entries: Vec<DirectoryEntry> = Vec::new();
        loop {
            let cookie = entries.last().map_or(0, |entry| entry.cookie);
            let (part, complete) = self.read_directory(inode, open, cookie, page).await.expect("it can be read");
            entries.extend(part);
            if complete {
                break;
            }
        }
        self.close(ALICE, inode, open, None).await.expect("it closes");
        entries
    }

    pub async fn read_directory(
        &self,
        inode: InodeNumber,
        open: OpenId,
        cookie: u64,
        entries_max: u32,
    ) -> FsResult<(Vec<DirectoryEntry>, bool)> {
        let read = ReadDirectory { inode, open, cookie, entries_max, attributes: true, unasked: None };
        match self.call(ALICE, MdtRequest::ReadDirectory(read)).await? {
            MdtReply::Directory(entries, complete) => Ok((entries, complete)),
            other => panic!("a directory read was answered {other:?}"),
        }
    }

    pub async fn names(&self, inode: InodeNumber) -> Vec<String> {
        let entries = self.list(inode, 1000).await;
        let mut names: Vec<String> =
            entries.into_iter().skip(2).map(|entry| String::from_utf8(entry.name).expect("a test's name")).collect();
        names.sort();
        names
    }

    pub async fn reclaim(&self, client: ClientId, reclaim: Reclaim) -> FsResult<()> {
        done(self.call(client, MdtRequest::Reclaim(reclaim)).await?)
    }

    pub async fn check(&self, repair: bool) -> Vec<Finding> {
        match self.call(ALICE, MdtRequest::Check(root(), repair)).await.expect("a check runs") {
            MdtReply::Findings(findings) => findings,
            other => panic!("a check was answered {other:?}"),
        }
    }
}

async fn open(seams: &Seams, device: &MemoryDevice, cold: &MemoryCold, options: &MdtOptions) -> Arc<Mdt> {
    Mdt::open(seams.clone(), Arc::new(device.clone()), Arc::new(cold.clone()), options.clone())
        .await
        .expect("a formatted store opens")
}

pub fn create_request(
    parent: InodeNumber,
    name: &str,
    kind: NodeKind,
    mode: u32,
    open: Option<(OpenId, OpenFlags)>,
) -> Create {
    Create { parent, name: name.as_bytes().to_vec(), kind, mode, umask: 0, layout: None, open }
}

pub fn entry(reply: MdtReply) -> FsResult<Entry> {
    match reply {
        MdtReply::Entry(entry) => Ok(entry),
        other => panic!("expected an inode, got {other:?}"),
    }
}

pub fn created(reply: MdtReply) -> Created {
    match reply {
        MdtReply::Created(created) => *created,
        other => panic!("expected a new node, got {other:?}"),
    }
}

pub fn done(reply: MdtReply) -> FsResult<()> {
    assert_eq!(reply, MdtReply::Done);
    Ok(())
}

/// A report of a size.
pub fn size_update(epoch: u64, size: u64) -> SizeUpdate {
    SizeUpdate { epoch, size, blocks: size.div_ceil(512), mtime: None, changes: 0 }
}

/// Waits until `condition` holds; fails after ten seconds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..10_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never happened: {what}");
}
