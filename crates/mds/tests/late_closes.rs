//! Closes that come along with another request.

use crate::common;

use bytes::Bytes;
use common::*;
use rpc::{
    Call, Handler,
    message::{
        MdtRequest, Reply, ReplyExtension, Request, RequestExtension,
        extension::ClosedBeside,
        mdt::{Close, OpenId, SizeUpdate},
    },
};
use types::{FsResult, InodeNumber, Slot};

fn close(inode: InodeNumber, open: OpenId, update: Option<SizeUpdate>) -> Close {
    Close { inode, open, update, flock_owner: None }
}

async fn call(fs: &Fixture, request: MdtRequest, closes: Vec<Close>) -> (FsResult<Reply>, ReplyExtension) {
    let mut call = Call::plain(ALICE, Slot(0), fs.next_xid(ALICE), Request::Mdt(request), Bytes::new());
    call.extension = RequestExtension { closes, ..RequestExtension::default() };
    let answer = fs.mdt.clone().handle(call).await;
    (answer.reply, answer.extension)
}

#[tokio::test]
async fn closes_are_executed_before_their_request() {
    let fs = Fixture::new().await;
    let (open, made) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let opened = made.opened.unwrap();
    let inode = opened.entry.attributes.inode;
    let closes = vec![close(inode, open, Some(size_update(opened.epoch, 5000)))];
    let (reply, extension) = call(&fs, MdtRequest::GetAttributes(inode), closes.clone()).await;
    let Ok(Reply::Mdt(reply)) = reply else { panic!("{reply:?}") };
    let seen = entry(reply).unwrap();
    assert_eq!((seen.size_unknown, seen.attributes.size), (None, 5000));
    let [Some(ClosedBeside { size_wanted: None, version: Some(version), entry: None })] = &extension.closed[..] else {
        panic!("{:?}", extension.closed)
    };
    assert_eq!((version.inode, version.after), (inode, version.before + 1));
    assert_eq!(fs.mdt.open_files(), 0);
    // Repeated, as after a reply that was lost.
    let (_, extension) = call(&fs, MdtRequest::Ping, closes).await;
    assert_eq!(extension.closed, [Some(ClosedBeside::default())]);
    assert_eq!(fs.stat(inode).await.unwrap().attributes.size, 5000);
}

#[tokio::test]
async fn a_close_does_not_depend_on_its_request() {
    let fs = Fixture::new().await;
    let (open, made) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let opened = made.opened.unwrap();
    let inode = opened.entry.attributes.inode;
    let closes = vec![close(inode, open, Some(size_update(opened.epoch, 7)))];
    let (reply, _) = call(&fs, MdtRequest::GetAttributes(InodeNumber(0x1234)), closes).await;
    reply.unwrap_err();
    assert_eq!((fs.mdt.open_files(), fs.stat(inode).await.unwrap().attributes.size), (0, 7));
}

#[tokio::test]
async fn the_last_writer_of_several_is_asked_for_the_size() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let (open, made) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let inode = made.entry.attributes.inode;
    let (other, _) = fs.open(BOB, &root(), inode, WRITE).await.unwrap();
    fs.close(BOB, inode, other, None).await.unwrap();
    let closes = vec![close(inode, open, Some(size_update(made.opened.unwrap().epoch, 7)))];
    let (_, extension) = call(&fs, MdtRequest::Ping, closes).await;
    let [Some(ClosedBeside { size_wanted: Some(epoch), .. })] = extension.closed[..] else {
        panic!("{:?}", extension.closed)
    };
    let update = size_update(epoch, 9);
    let report = rpc::message::mdt::ReportSize { inode, update };
    done(fs.call(ALICE, MdtRequest::ReportSize(report)).await.unwrap()).unwrap();
    assert_eq!(fs.stat(inode).await.unwrap().attributes.size, 9);
}
