//! What is refused to a client that does not follow the rules, through an ordinary session.

use crate::common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use common::{CLIENT, TestOst, object, on_all};
use rpc::{
    Endpoint, Import, ImportOptions, Question, Server, ServerOptions,
    checksum::checksums,
    message::{
        OstReply, OstRequest,
        ost::{CHECK_OBJECTS_MAX, ExtentsQuery, FoundExtents, Read, SpaceChange, Write},
    },
};
use types::{
    FsError, FsResult, ObjectId, Owner,
    limits::{BULK_BYTES_MAX, FENCE_GENERATION_MAX, FENCE_OBJECTS_MAX, FILE_BYTES_MAX, OBJECTS_PER_REQUEST_MAX},
};

fn connect(target: &TestOst) -> Import {
    let server = Server::new(target.seams.clone(), ServerOptions::new(rpc::Keyring::of_test()));
    server.add_target("stria-OST0003", target.ost.clone(), Duration::from_secs(3600));
    let options = ImportOptions::default();
    Import::new(
        target.seams.clone(),
        "stria-OST0003",
        Endpoint::Local(Arc::clone(&server)),
        rpc::Principal::of_test(1, rpc::Role::Mdt).claiming(CLIENT),
        options,
        None,
    )
}

async fn ask(import: &Import, request: OstRequest, bulk: Bytes) -> FsResult<OstReply> {
    Ok(import.call(Question::with_bulk(request, bulk)).await?.reply)
}

fn objects(count: usize) -> Vec<ObjectId> {
    (0..count as u64).map(object).collect()
}

/// An object fenced at `u64::MAX` could never be read again: no layout comes to that.
#[test]
fn a_fence_is_no_higher_than_layouts_can_come() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let import = connect(&target);
        target.write(object(1), 0, b"data").await;
        for generation in [FENCE_GENERATION_MAX + 1, u64::MAX] {
            let fence = OstRequest::Fence(vec![object(1)], generation);
            assert_eq!(ask(&import, fence, Bytes::new()).await, Err(FsError::Overflow));
        }
        assert_eq!(target.read(object(1), 0, 4).await, b"data");
        let fence = OstRequest::Fence(objects(FENCE_OBJECTS_MAX + 1), 1);
        assert_eq!(ask(&import, fence, Bytes::new()).await, Err(FsError::TooBig));
        let fence = OstRequest::Fence(vec![object(1), object(2)], FENCE_GENERATION_MAX);
        assert_eq!(ask(&import, fence, Bytes::new()).await, Ok(OstReply::Done));
        assert_eq!(target.try_read(object(2), 0, 4).await, Err(FsError::LayoutChanged));
    });
}

#[test]
fn lists_have_an_end() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let import = connect(&target);
        let many = || objects(OBJECTS_PER_REQUEST_MAX + 1);
        for request in [
            OstRequest::Glimpse(many()),
            OstRequest::Sync(many()),
            OstRequest::Destroy(many(), None),
            OstRequest::Check(objects(CHECK_OBJECTS_MAX as usize + 1)),
        ] {
            assert_eq!(ask(&import, request, Bytes::new()).await, Err(FsError::TooBig));
        }
        let most = OstRequest::Glimpse(objects(OBJECTS_PER_REQUEST_MAX));
        assert!(matches!(ask(&import, most, Bytes::new()).await, Ok(OstReply::Attributes(_))));
    });
}

#[test]
fn no_offset_or_length_overflows() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let import = connect(&target);
        target.write(object(1), 0, b"data").await;
        for offset in [FILE_BYTES_MAX - 3, FILE_BYTES_MAX, u64::MAX - 4, u64::MAX - 3, u64::MAX] {
            let data = Bytes::from_static(b"data");
            let checksums = checksums(0, &data);
            let write = Write {
                object: object(1),
                offset,
                checksums,
                sync: false,
                layout_generation: 0,
                owner: Owner::default(),
            };
            let refused = ask(&import, OstRequest::Write(write), data).await;
            assert!(refused.is_err(), "a write at {offset}: {refused:?}");
            let read = Read { object: object(1), offset, bytes: u32::MAX, layout_generation: 0 };
            assert_eq!(ask(&import, OstRequest::Read(read), Bytes::new()).await, Err(FsError::Invalid));
            let read = Read { bytes: BULK_BYTES_MAX as u32, ..read };
            assert!(matches!(ask(&import, OstRequest::Read(read), Bytes::new()).await, Ok(OstReply::Read(_))));
            for (bytes, extents_max) in [(u64::MAX, u32::MAX), (1, 0), (0, 1)] {
                let query = ExtentsQuery { object: object(1), offset, bytes, extents_max };
                let found = ask(&import, OstRequest::Extents(query), Bytes::new()).await;
                assert_eq!(found, Ok(OstReply::Extents(FoundExtents::default())), "{query:?}");
            }
            for data in [true, false] {
                let seek = OstRequest::Seek(object(1), offset, data);
                assert_eq!(ask(&import, seek, Bytes::new()).await, Ok(OstReply::Found(None)));
            }
            for change in [
                SpaceChange::Truncate { size: offset.max(FILE_BYTES_MAX + 1) },
                SpaceChange::Allocate { offset, bytes: u64::MAX, extend: true },
                SpaceChange::Allocate { offset, bytes: 4096, extend: false },
                SpaceChange::Punch { offset, bytes: u64::MAX },
                SpaceChange::Zero { offset, bytes: 4096, extend: true },
                SpaceChange::Zero { offset, bytes: 0, extend: true },
            ] {
                let refused =
                    ask(&import, OstRequest::Space(object(1), change, u64::MAX, Owner::default()), Bytes::new()).await;
                assert!(refused.is_err(), "{change:?}: {refused:?}");
            }
        }
        assert_eq!(target.read(object(1), 0, 100).await, b"data", "nothing has changed");
    });
}
