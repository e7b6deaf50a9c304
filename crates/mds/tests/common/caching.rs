//! Clients that cache under locks of an MDT.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rpc::{
    Call, Handler,
    message::{
        MdtReply, MdtRequest, ReplyExtension, Request, RequestExtension,
        lock::{CacheMode, Enqueue, Granted, InodeBits, Resource, inode_bit::*},
        mdt::Lookup,
    },
};
use tokio::task::JoinHandle;
use types::{ClientId, FsResult, InodeNumber, LockHandle, SetAttributes, Slot};

use super::{holders::Holders, *};

pub const CAROL: ClientId = ClientId(0xc);
pub const ALL: u32 = LOOKUP | ATTRIBUTES | DIRECTORY | XATTRS | LAYOUT | OPEN | DATA;
pub const SHOWN: u32 = LOOKUP | ATTRIBUTES | XATTRS;
pub const LONG: Duration = Duration::from_secs(3600);

/// Clients that cache: ALICE, BOB and CAROL.
pub struct Test {
    pub fs: Fixture,
    pub holders: Arc<Holders>,
}

impl Test {
    pub async fn new() -> Arc<Self> {
        Self::with_lease(LONG).await
    }

    pub async fn with_lease(lease: Duration) -> Arc<Self> {
        let fs = Fixture::new().await;
        let mut parameters = fs.mdt.parameters();
        parameters.lock_timeout = LONG;
        fs.mdt.set_parameters(parameters);
        for client in [BOB, CAROL] {
            fs.begin(client).await;
        }
        let holders = Holders::of(&fs.mdt, fs.seams.clock.clone(), lease);
        Arc::new(Self { fs, holders })
    }

    pub async fn send(
        &self,
        client: ClientId,
        request: MdtRequest,
        extension: RequestExtension,
    ) -> (FsResult<MdtReply>, Vec<Granted>) {
        let (reply, told) = self.send_and_hear(client, request, extension).await;
        (reply, told.granted)
    }

    /// The reply, and what goes beside it.
    pub async fn send_and_hear(
        &self,
        client: ClientId,
        request: MdtRequest,
        extension: RequestExtension,
    ) -> (FsResult<MdtReply>, ReplyExtension) {
        let xid = self.fs.next_xid(client);
        let call = Call { extension, ..Call::plain(client, Slot(0), xid, Request::Mdt(request), Bytes::new()) };
        let answer = self.fs.mdt.clone().handle(call).await;
        let reply = answer.reply.map(|reply| match reply {
            rpc::message::Reply::Mdt(reply) => reply,
            other => panic!("an MDT answered {other:?}"),
        });
        (reply, answer.extension)
    }

    /// Asks for locks beside a request that names this inode.
    pub async fn wanting(&self, client: ClientId, request: MdtRequest, inode: InodeNumber, bits: u32) -> Vec<Granted> {
        self.asking(client, request, inode, bits).await.1
    }

    /// The same, with the reply.
    pub async fn asking(
        &self,
        client: ClientId,
        request: MdtRequest,
        inode: InodeNumber,
        bits: u32,
    ) -> (MdtReply, Vec<Granted>) {
        let (reply, granted) = self.send(client, request, wanted(inode, bits)).await;
        (reply.expect("it succeeds"), granted)
    }

    pub async fn look_up(&self, client: ClientId, parent: InodeNumber, name: &str) -> Vec<Granted> {
        self.wanting(client, lookup(parent, name), parent, ALL).await
    }

    pub async fn stat(&self, client: ClientId, inode: InodeNumber) -> Vec<Granted> {
        self.wanting(client, MdtRequest::GetAttributes(inode), inode, ALL).await
    }

    pub async fn cancel(&self, client: ClientId, handles: Vec<LockHandle>) {
        done(self.fs.call(client, MdtRequest::CancelLocks(handles)).await.unwrap()).unwrap();
    }

    /// A request of ALICE under way.
    pub fn begin(self: &Arc<Self>, request: MdtRequest) -> JoinHandle<FsResult<MdtReply>> {
        let test = self.clone();
        tokio::spawn(async move { test.fs.call(ALICE, request).await })
    }

    pub fn set_timeout(&self, lock_timeout: Duration) {
        let parameters = mds::Parameters { lock_timeout, ..self.fs.mdt.parameters() };
        self.fs.mdt.set_parameters(parameters);
    }
}

pub fn lookup(parent: InodeNumber, name: &str) -> MdtRequest {
    MdtRequest::Lookup(root(), Lookup { parent, name: name.into() })
}

pub fn chmod(inode: InodeNumber, mode: u32) -> MdtRequest {
    MdtRequest::SetAttributes(root(), inode, SetAttributes { mode: Some(mode), ..SetAttributes::default() })
}

pub fn resources(granted: &[Granted]) -> Vec<(InodeNumber, u32)> {
    let resource = |granted: &Granted| match granted.resource {
        Resource::Inode(inode, bits) => (inode, bits.0),
        Resource::Object(..) => panic!("an MDT has no objects"),
    };
    granted.iter().map(resource).collect()
}

/// To ask for these parts beside a request.
pub fn wanted(inode: InodeNumber, bits: u32) -> RequestExtension {
    let resource = Resource::Inode(inode, InodeBits(bits));
    let wanted = Some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true });
    RequestExtension { wanted, ..RequestExtension::default() }
}
