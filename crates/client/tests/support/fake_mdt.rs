//! An MDT in a few lines: one directory, plain files, write epochs and the exclusive data lock as
//! described in docs/decisions/0001-foundations.md and the message documentation; advisory locks
//! from the lock crate. It checks no permissions.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use layout::{Layout, PlainLayout, StripeSpec};
use lock::{AdvisoryLocks, Completion, ExclusiveAnswer, ExclusiveLocks, LockAnswer, LockOwner};
use parking_lot::Mutex;
use rpc::{
    Answer, Call, Clients, Handler, SessionEvent,
    message::{
        ClientRequest, LeaveFullOst, LeaveStep, MdtReply, MdtRequest, Reply, Request,
        client::LockCompleted,
        lock::{CacheMode, Enqueue, Granted, InodeBits, Resource, inode_bit},
        mdt::{
            Closed, Created, DirectoryEntry, Entry, ExclusiveGranted, ExclusivePurpose, LayoutInfo, OpenFlags, OpenId,
            Opened, SizeUpdate, open_flag,
        },
    },
};
use rt::BoxFuture;
use tokio::sync::watch;
use types::{
    Accounted, Attributes, ClientId, DataChanges, DataTimes, FileKind, FsError, FsResult, Generation, InodeNumber,
    LockHandle, MdtIndex, OstIndex, ProtocolError, SetTime, Slot, SpaceUsage, Timestamp, Xid,
};

#[derive(Clone)]
struct Inode {
    attributes: Attributes,
    layout: Option<Layout>,
    size_known: bool,
    accounted: Accounted,
    epoch: u64,
}

impl Inode {
    fn entry(&self) -> Entry {
        let size_unknown = if self.size_known { None } else { self.layout.clone().map(Box::new) };
        let Accounted { time: accounted, changes, records } = self.accounted;
        Entry { size_unknown, accounted, changes, records, ..Entry::of(self.attributes) }
    }

    /// A change begins; the epoch that its client is given.
    fn next_epoch(&mut self, quiet: bool) -> u64 {
        self.size_known = false;
        self.epoch += if quiet { 1 } else { 2 };
        if quiet { self.epoch } else { self.epoch - 1 }
    }

    fn take_report(&mut self, update: &SizeUpdate) -> bool {
        let believed = !self.size_known && self.epoch == update.epoch;
        if believed {
            (self.attributes.size, self.attributes.blocks) = (update.size, update.blocks);
            self.account(&update.data_changes());
            (self.size_known, self.epoch) = (true, self.epoch + 1);
        }
        believed
    }

    fn account(&mut self, found: &DataChanges) {
        let Attributes { mtime, ctime, .. } = self.attributes;
        let times = self.accounted.times(DataTimes { mtime, ctime }, found);
        self.accounted = self.accounted.size_known(times, found);
        (self.attributes.mtime, self.attributes.ctime) = (times.mtime, times.ctime);
    }
}

struct State {
    inodes: BTreeMap<InodeNumber, Inode>,
    names: BTreeMap<Vec<u8>, InodeNumber>,
    opens: BTreeMap<(ClientId, OpenId), (InodeNumber, OpenFlags)>,
    exclusive: ExclusiveLocks,
    locks: AdvisoryLocks,
    /// Clients that are to be told something.
    notices: Vec<(ClientId, ClientRequest)>,
    counts: BTreeMap<&'static str, usize>,
    /// Opens are answered with layouts that cannot be.
    damaged: bool,
    now: i64,
    era: u64,
}

/// See the module documentation.
pub struct FakeMdt {
    stripe_bytes: u64,
    stripe_count: u16,
    ost_count: u16,
    state: Mutex<State>,
    /// The next change of a layout happens, but the client does not hear of it.
    pub loses_answer: AtomicBool,
    /// Answers to requests of this name are held back.
    held: watch::Sender<Option<&'static str>>,
    /// Locks that it granted; `None`: it grants none.
    granted: Mutex<Option<Locks>>,
    /// How they are called back.
    clients: Mutex<Option<Arc<dyn Clients>>>,
    /// Nobody is called back.
    keeps_notices: AtomicBool,
}

/// Locks under which clients cache, by handle. Nobody withdraws them but a test.
#[derive(Default)]
struct Locks {
    last: u64,
    held: BTreeMap<LockHandle, (ClientId, InodeNumber, u32)>,
}

impl Locks {
    /// Everything that is wanted and not held, of the inode that is named and the one that is
    /// shown.
    fn grant(&mut self, client: ClientId, wanted: &Enqueue, shown: Option<InodeNumber>) -> Vec<Granted> {
        let Resource::Inode(named, InodeBits(bits)) = wanted.resource else { return Vec::new() };
        let of_shown = shown.map(|inode| (inode, bits & !inode_bit::DIRECTORY));
        let mut granted = Vec::new();
        for (inode, bits) in [(named, bits & inode_bit::DIRECTORY)].into_iter().chain(of_shown) {
            let same = self.held.values().filter(|(of, about, _)| (*of, *about) == (client, inode));
            let bits = bits & !same.fold(0, |held, (.., bits)| held | bits);
            if bits != 0 {
                self.last += 1;
                let handle = LockHandle(self.last);
                self.held.insert(handle, (client, inode, bits));
                let resource = Resource::Inode(inode, InodeBits(bits));
                granted.push(Granted { handle, resource, mode: CacheMode::Read, version: 0 });
            }
        }
        granted
    }
}

impl FakeMdt {
    /// Grants locks from now on.
    pub fn grant_locks(&self) {
        *self.granted.lock() = Some(Locks::default());
    }

    /// The locks of a client on an inode.
    pub fn locks_on(&self, client: ClientId, inode: InodeNumber) -> Vec<LockHandle> {
        let locks = self.granted.lock();
        let held = locks.iter().flat_map(|locks| &locks.held);
        held.filter(|(_, (of, about, _))| (*of, *about) == (client, inode)).map(|(handle, _)| *handle).collect()
    }

    fn grant(&self, client: ClientId, wanted: Option<&Enqueue>, reply: &mut FsResult<MdtReply>) -> Vec<Granted> {
        if let (Some(locks), Some(wanted), Ok(MdtReply::Directory(page, _))) =
            (&mut *self.granted.lock(), wanted, &mut *reply)
        {
            for found in page.iter_mut().filter(|found| found.entry.is_some()) {
                let granted = locks.grant(client, wanted, Some(found.inode));
                let of_found = granted.iter().find_map(|granted| match granted.resource {
                    Resource::Inode(inode, bits) if inode == found.inode => Some((granted.handle, bits)),
                    Resource::Inode(inode, _) => {
                        locks.held.retain(|handle, (_, about, _)| *about != inode || *handle != granted.handle);
                        None
                    }
                    Resource::Object(..) => None,
                });
                found.locks = of_found.into_iter().collect();
            }
        }
        let shown = match reply {
            Ok(MdtReply::Entry(entry)) => Some(entry.attributes.inode),
            Ok(MdtReply::Created(created)) => Some(created.entry.attributes.inode),
            Ok(MdtReply::Opened(opened)) => Some(opened.entry.attributes.inode),
            Ok(_) => None,
            Err(_) => return Vec::new(),
        };
        match (&mut *self.granted.lock(), wanted) {
            (Some(locks), Some(wanted)) => locks.grant(client, wanted, shown),
            (None, _) | (_, None) => Vec::new(),
        }
    }

    /// Files of this MDT have `stripe_count` stripes on OSTs 0, 1, ... of `ost_count`.
    pub fn new(stripe_bytes: u64, stripe_count: u16, ost_count: u16) -> Self {
        let mut state = State {
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            opens: BTreeMap::new(),
            exclusive: ExclusiveLocks::default(),
            locks: AdvisoryLocks::new(100),
            notices: Vec::new(),
            counts: BTreeMap::new(),
            damaged: false,
            now: 0,
            era: 0,
        };
        state.add(InodeNumber::ROOT, FileKind::Directory, 0o755, None);
        let (state, loses_answer) = (Mutex::new(state), AtomicBool::new(false));
        Self {
            stripe_bytes,
            stripe_count,
            ost_count,
            state,
            loses_answer,
            held: watch::Sender::new(None),
            granted: Mutex::default(),
            clients: Mutex::default(),
            keeps_notices: AtomicBool::new(false),
        }
    }

    /// Requests handled so far, by name, without those that were told to wait.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.state.lock().counts.clone()
    }

    /// Whether the MDT knows the file's size.
    pub fn size_known(&self, inode: InodeNumber) -> bool {
        self.state.lock().inodes[&inode].size_known
    }

    /// The file's layout gets its next generation.
    pub fn next_layout(&self, inode: InodeNumber) {
        let mut state = self.state.lock();
        let layout = state.file(inode).expect("the file exists").layout.as_mut().expect("it has a layout");
        layout.generation = layout.generation.next();
    }

    /// The MDT does not know the file's size, as after the death of a writer.
    pub fn forget_size(&self, inode: InodeNumber) {
        self.state.lock().file(inode).expect("the file exists").next_epoch(true);
    }

    /// From now on, opens are answered with layouts that cannot be, or no more.
    pub fn damage_layouts(&self, damaged: bool) {
        self.state.lock().damaged = damaged;
    }

    /// A power loss, to be followed by a restart. For all that clients know, everything unsynced is
    /// gone.
    pub fn lose_power(&self) {
        self.state.lock().era += 1;
    }

    /// Holds back what answers requests of this name from now on, after they took effect; `None`:
    /// nothing any more.
    pub fn hold_answers(&self, name: Option<&'static str>) {
        self.held.send_replace(name);
    }

    /// Whether what clients are to be told is kept for the time being.
    pub fn keep_notices(&self, keep: bool) {
        self.keeps_notices.store(keep, Ordering::Relaxed);
        self.tell();
    }

    /// Whether anybody holds the exclusive data lock.
    pub fn is_locked(&self, inode: InodeNumber) -> bool {
        self.state.lock().exclusive.holder(inode).is_some()
    }

    /// An inode without a name, of any number.
    pub fn add(&self, inode: InodeNumber, kind: FileKind) {
        self.state.lock().add(inode, kind, 0o755, None);
    }

    /// From now on a name leads to this inode, which another MDT has.
    pub fn lead_elsewhere(&self, name: &str, inode: InodeNumber) {
        self.state.lock().names.insert(name.as_bytes().to_vec(), inode);
    }

    /// Number of opens.
    pub fn open_count(&self) -> usize {
        self.state.lock().opens.len()
    }

    fn layout(&self) -> Layout {
        let osts = (0..self.stripe_count).map(OstIndex).collect();
        Layout::plain(Generation(1), PlainLayout { stripe_bytes: self.stripe_bytes, osts }, StripeSpec::default())
    }

    fn execute(&self, client: ClientId, request: MdtRequest) -> FsResult<MdtReply> {
        let mut state = self.state.lock();
        state.now += 1;
        let counted = name(&request);
        let reply = match request {
            MdtRequest::Create(_, create) => {
                let (id, flags) = create.open.ok_or(FsError::NotSupported)?;
                let found = state.names.get(&create.name).copied();
                if found.is_some() && flags.has(open_flag::EXCLUSIVE) {
                    return Err(FsError::Exists);
                }
                let inode = found.unwrap_or_else(|| {
                    let inode = InodeNumber(0x100 + state.names.len() as u64);
                    state.add(inode, FileKind::Regular, create.mode & !create.umask, Some(self.layout()));
                    state.names.insert(create.name, inode);
                    inode
                });
                let opened = state.open(client, inode, id, flags)?;
                let entry = opened.entry.clone();
                Ok(MdtReply::Created(Box::new(Created { entry, created: found.is_none(), opened: Some(opened) })))
            }
            MdtRequest::Open(_, open) => {
                state.open(client, open.inode, open.open, open.flags).map(|opened| MdtReply::Opened(Box::new(opened)))
            }
            MdtRequest::Close(close) => {
                let Some((inode, flags)) = state.opens.remove(&(client, close.open)) else {
                    return Ok(MdtReply::Closed(Closed { size_wanted: None }));
                };
                let alone = !state.written(inode, None);
                let file = state.inodes.get_mut(&inode).ok_or(FsError::Stale)?;
                let told = close.update.is_some_and(|update| file.take_report(&update));
                let wanted = flags.has(open_flag::WRITE) && alone && !told && !file.size_known;
                let size_wanted = wanted.then(|| (file.epoch, file.layout.clone().expect("a file has a layout")));
                Ok(MdtReply::Closed(Closed { size_wanted }))
            }
            MdtRequest::Reclaim(reclaim) => {
                let claimed = reclaim.opens.into_iter().map(|(inode, open, flags)| ((client, open), (inode, flags)));
                state.opens.extend(claimed);
                Ok(MdtReply::Done)
            }
            MdtRequest::RegisterOpens(register) => {
                let opens = register.opens.into_iter().map(|(inode, open, flags)| ((client, open), (inode, flags)));
                state.opens.extend(opens);
                Ok(MdtReply::Done)
            }
            MdtRequest::ReportSize(report) => {
                if !state.written(report.inode, None) {
                    state.file(report.inode)?.take_report(&report.update);
                }
                Ok(MdtReply::Done)
            }
            MdtRequest::ExclusiveBegin(_, begin) => {
                if !state.take_exclusive(begin.inode, client) {
                    return Ok(MdtReply::Waiting);
                }
                let quiet = !state.written(begin.inode, begin.open.map(|open| (client, open)));
                let file = state.file(begin.inode)?;
                let epoch = match begin.purpose {
                    ExclusivePurpose::Append => file.epoch,
                    ExclusivePurpose::Truncate(_) => file.next_epoch(quiet),
                };
                let (entry, layout) = (file.entry(), file.layout.clone().ok_or(FsError::Invalid)?);
                Ok(MdtReply::ExclusiveGranted(Box::new(ExclusiveGranted { entry, layout, epoch })))
            }
            MdtRequest::ExclusiveEnd(end) => {
                let next = match state.exclusive.end(end.inode, client) {
                    Ok(next) => next,
                    Err(_) => state.exclusive.cancel(end.inode, client),
                };
                state.notices.extend(next.map(|next| (next, ClientRequest::AskAgain(Some(end.inode)))));
                if let Some(update) = end.update.filter(|_| !state.written(end.inode, None)) {
                    state.file(end.inode)?.take_report(&update);
                }
                Ok(MdtReply::Done)
            }
            MdtRequest::LeaveFullOst(LeaveFullOst {
                inode, generation, step: LeaveStep::Relocate(relocation), ..
            }) => {
                let spare = self.ost_count >= 2 * self.stripe_count;
                if !spare || state.exclusive.holder(inode) != Some(client) {
                    return Err(FsError::NoSpace);
                }
                let layout = state.file(inode)?.layout.as_mut().ok_or(FsError::Invalid)?;
                assert_eq!(layout.generation, generation);
                for slot in relocation.slots {
                    layout.relocate(slot, OstIndex(slot as u16 + self.stripe_count));
                }
                layout.generation.0 += 1;
                if self.loses_answer.swap(false, Ordering::Relaxed) {
                    return Err(FsError::Unreachable { target: "stria-MDT0000".to_owned(), seconds: 1, cause: None });
                }
                Ok(layout_reply(layout))
            }
            MdtRequest::SetLock(set) => {
                let owner = LockOwner { client, owner: set.owner };
                let mut completed = Vec::new();
                let answer = state.locks.set(&lock_request(&set, owner), &mut completed);
                state.complete(completed);
                match answer? {
                    LockAnswer::Granted => Ok(MdtReply::Done),
                    LockAnswer::Queued => Ok(MdtReply::Queued),
                }
            }
            MdtRequest::CancelLock(cancel) => {
                let mut completed = Vec::new();
                let cancelled = state.locks.cancel(cancel.inode, cancel.family, client, cancel.ticket, &mut completed);
                state.complete(completed);
                if cancelled { Ok(MdtReply::Done) } else { Err(FsError::NotFound) }
            }
            request => state.simple(request),
        };
        *state.counts.entry(counted).or_default() += 1;
        reply
    }
}

fn layout_reply(layout: &Layout) -> MdtReply {
    MdtReply::Layout(LayoutInfo {
        layout: Some(layout.clone()),
        own_default: None,
        effective_default: None,
        map: None,
        directory_default: None,
    })
}

fn lock_request(set: &rpc::message::mdt::SetLock, owner: LockOwner) -> lock::LockRequest {
    lock::LockRequest {
        inode: set.inode,
        family: set.family,
        owner,
        pid: set.pid,
        range: set.range,
        mode: set.mode,
        ticket: set.ticket,
    }
}

impl State {
    /// Requests without a state of their own.
    fn simple(&mut self, request: MdtRequest) -> FsResult<MdtReply> {
        match request {
            MdtRequest::Lookup(_, lookup) => {
                let inode = *self.names.get(&lookup.name).ok_or(FsError::NotFound)?;
                if !self.inodes.contains_key(&inode) && inode.mdt() != MdtIndex(0) {
                    return Ok(MdtReply::Remote(inode));
                }
                Ok(MdtReply::Entry(self.entry(inode)?))
            }
            MdtRequest::GetAttributes(inode) => Ok(MdtReply::Entry(self.entry(inode)?)),
            MdtRequest::SetAttributes(_, inode, set) => {
                let now = self.time();
                let file = self.file(inode)?;
                if let Some(SetTime::To(mtime)) = set.mtime {
                    match set.seen {
                        Some(seen) if !file.size_known => file.account(&seen.changes),
                        None if !file.size_known => {
                            return Ok(MdtReply::AskObjects(file.layout.clone().ok_or(FsError::Invalid)?));
                        }
                        _ => {}
                    }
                    (file.attributes.mtime, file.attributes.ctime) = (mtime, now);
                    file.accounted.time = file.accounted.time.max(now);
                }
                file.attributes.mode = set.mode.unwrap_or(file.attributes.mode);
                Ok(MdtReply::Entry(file.entry()))
            }
            MdtRequest::DropPrivileges(_, inode) => {
                let file = self.file(inode)?;
                file.attributes.mode &= 0o777;
                Ok(MdtReply::Entry(file.entry()))
            }
            MdtRequest::ClearPrivileges(inode) => {
                self.file(inode)?.attributes.mode &= 0o777;
                Ok(MdtReply::Done)
            }
            MdtRequest::Unlink(_, unlink) => {
                self.names.remove(&unlink.name).map(|_| MdtReply::Done).ok_or(FsError::NotFound)
            }
            MdtRequest::ReadDirectory(read) => {
                let entry = |(position, (name, inode)): (usize, (&Vec<u8>, &InodeNumber))| DirectoryEntry {
                    name: name.clone(),
                    inode: *inode,
                    kind: FileKind::Regular,
                    cookie: position as u64 + 1,
                    entry: read.attributes.then(|| self.entry(*inode).expect("a name leads to an inode")),
                    locks: Vec::new(),
                    version: 0,
                };
                let entries = self.names.iter().enumerate().skip(read.cookie as usize).map(entry);
                let entries: Vec<_> = entries.take(read.entries_max as usize).collect();
                let end = read.cookie as usize + entries.len() == self.names.len();
                Ok(MdtReply::Directory(entries, end))
            }
            MdtRequest::StatFs => {
                let space = SpaceUsage { inodes_total: 50, inodes_free: 40, bytes_total: 7, ..SpaceUsage::default() };
                Ok(MdtReply::Space(space))
            }
            MdtRequest::GetLayout(inode) => {
                Ok(layout_reply(self.file(inode)?.layout.as_ref().ok_or(FsError::Invalid)?))
            }
            MdtRequest::CancelLocks(_)
            | MdtRequest::Commit
            | MdtRequest::Ping
            | MdtRequest::Disconnect
            | MdtRequest::ReportFull(_) => Ok(MdtReply::Done),
            request => Err(ProtocolError::Told(format!("the fake does not know {request:?}")).into()),
        }
    }

    /// Not granted twice to a client.
    fn complete(&mut self, completed: Vec<Completion>) {
        let told = |Completion { client, ticket, outcome }| {
            let outcome = outcome.map_err(FsError::from);
            (client, ClientRequest::LockCompleted(LockCompleted { ticket, outcome }))
        };
        self.notices.extend(completed.into_iter().map(told));
    }

    fn take_exclusive(&mut self, inode: InodeNumber, client: ClientId) -> bool {
        self.exclusive.holder(inode) == Some(client)
            || self.exclusive.begin(inode, client) == Ok(ExclusiveAnswer::Granted)
    }

    fn time(&self) -> Timestamp {
        Timestamp { seconds: self.now, nanoseconds: 0 }
    }

    /// For a client that looks at the file: told if it is quiet.
    fn entry(&self, inode: InodeNumber) -> FsResult<Entry> {
        let file = self.inodes.get(&inode).ok_or(FsError::Stale)?;
        let quiet = !file.size_known && !self.written(inode, None) && self.exclusive.holder(inode).is_none();
        Ok(Entry { quiet: quiet.then_some(file.epoch), ..file.entry() })
    }

    fn file(&mut self, inode: InodeNumber) -> FsResult<&mut Inode> {
        self.inodes.get_mut(&inode).ok_or(FsError::Stale)
    }

    fn add(&mut self, inode: InodeNumber, kind: FileKind, mode: u32, layout: Option<Layout>) {
        let now = self.time();
        let attributes = Attributes {
            inode,
            kind,
            mode,
            links: 1,
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            flags: 0,
            project: 0,
        };
        let accounted = Accounted::default();
        self.inodes.insert(inode, Inode { attributes, layout, size_known: true, accounted, epoch: 0 });
    }

    /// Whether anybody but `except` has the file open for writing.
    fn written(&self, inode: InodeNumber, except: Option<(ClientId, OpenId)>) -> bool {
        let writes = |(key, (file, flags)): (&(ClientId, OpenId), &(InodeNumber, OpenFlags))| {
            *file == inode && flags.has(open_flag::WRITE) && Some(*key) != except
        };
        self.opens.iter().any(writes)
    }

    fn open(&mut self, client: ClientId, inode: InodeNumber, id: OpenId, flags: OpenFlags) -> FsResult<Opened> {
        let quiet = !self.written(inode, Some((client, id)));
        let truncate = flags.has(open_flag::TRUNCATE);
        if truncate && !self.take_exclusive(inode, client) {
            return Err(FsError::Busy);
        }
        let file = self.file(inode)?;
        let mut entry = file.entry();
        if truncate {
            (entry.attributes.size, entry.attributes.blocks) = (0, 0);
        }
        let changes = truncate || flags.has(open_flag::WRITE);
        let epoch = if changes { file.next_epoch(quiet) } else { file.epoch };
        let mut layout = file.layout.clone();
        if self.damaged {
            layout.iter_mut().for_each(|layout| layout.components.clear());
        }
        self.opens.insert((client, id), (inode, flags));
        Ok(Opened { entry, layout, epoch, truncate, capabilities: false })
    }
}

fn name(request: &MdtRequest) -> &'static str {
    match request {
        MdtRequest::Lookup(..) => "lookup",
        MdtRequest::GetAttributes(_) => "getattr",
        MdtRequest::Create(..) => "create",
        MdtRequest::Open(..) => "open",
        MdtRequest::Close(_) => "close",
        MdtRequest::ReportSize(_) => "report_size",
        MdtRequest::ExclusiveBegin(..) => "begin",
        MdtRequest::ExclusiveEnd(_) => "end",
        MdtRequest::ClearPrivileges(_) | MdtRequest::DropPrivileges(..) => "clear",
        MdtRequest::SetLock(_) => "lock",
        MdtRequest::CancelLock(_) => "cancel",
        MdtRequest::Commit => "commit",
        MdtRequest::Reclaim(_) => "reclaim",
        MdtRequest::ReportFull(_) => "report",
        MdtRequest::LeaveFullOst(_) => "leave",
        MdtRequest::GetLayout(_) => "layout",
        MdtRequest::CancelLocks(_) => "cancel locks",
        MdtRequest::RegisterOpens(_) => "register opens",
        MdtRequest::ClaimLocks(_) => "claim locks",
        _ => "other",
    }
}

impl FakeMdt {
    /// Tells clients what they wait for.
    fn tell(&self) {
        if self.keeps_notices.load(Ordering::Relaxed) {
            return;
        }
        let notices = std::mem::take(&mut self.state.lock().notices);
        let Some(clients) = self.clients.lock().clone() else { return };
        for (client, request) in notices {
            let clients = clients.clone();
            tokio::spawn(async move { clients.call_back(client, request).await });
        }
    }
}

impl Handler for FakeMdt {
    fn served(&self, clients: Arc<dyn Clients>) {
        *self.clients.lock() = Some(clients);
    }

    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        Box::pin(async move {
            let Request::Mdt(request) = call.request else {
                return Answer::new(Err(ProtocolError::misdirected("the fake", "requests to MDTs").into()));
            };
            let asked = name(&request);
            if let Some(locks) = &mut *self.granted.lock() {
                let of_request = if let MdtRequest::CancelLocks(handles) = &request { &handles[..] } else { &[] };
                let cancelled =
                    |handle: &LockHandle| of_request.contains(handle) || call.extension.cancels.contains(handle);
                locks.held.retain(|handle, _| !cancelled(handle));
            }
            let is_lookup = matches!(request, MdtRequest::Lookup(..));
            let mut reply = self.execute(call.client, request);
            if is_lookup && reply == Err(FsError::NotFound) {
                reply = Ok(MdtReply::Absent);
            }
            let granted = self.grant(call.client, call.extension.wanted.as_ref(), &mut reply);
            let mut held = self.held.subscribe();
            held.wait_for(|held| *held != Some(asked)).await.expect("the sender is here");
            self.tell();
            let mut answer = Answer::new(reply.map(Reply::Mdt));
            answer.extension.granted = granted;
            answer
        })
    }

    fn service(&self, _request: &Request) -> &'static str {
        "mdt"
    }

    fn persistent_reply(&self, _client: ClientId, _slot: Slot) -> Option<(Xid, Reply)> {
        None
    }

    fn era(&self) -> u64 {
        self.state.lock().era
    }

    fn session_event(self: Arc<Self>, _event: SessionEvent) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
