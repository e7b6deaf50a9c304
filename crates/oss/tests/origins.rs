//! Where objects and deferred operations come from: what an object keeps of its first change, and
//! how an OST tells repeated operations of an MDT from new ones.

use crate::common;

use bytes::Bytes;
use common::{CLIENT, MIB, TestOst, object, on_all};
use oss::{
    object_record::{ObjectOrigin, ObjectRecord},
    tables::{OBJECTS, parse_object_key},
};
use rpc::{
    checksum::checksums,
    message::{
        OstRequest,
        ost::{DeferredOrigin, SpaceChange, Write},
    },
};
use types::{ClientId, FsError, MdtIndex, Owner};

fn record(target: &TestOst, number: u64) -> Option<ObjectRecord> {
    let mut found = None;
    let scanned = target.ost.scan_table(OBJECTS, |key, value| {
        if parse_object_key(key) == Some(object(number)) {
            found = ObjectRecord::decode(value).ok();
        }
        Ok(())
    });
    scanned.unwrap();
    found
}

#[test]
fn an_object_keeps_the_layout_and_owner_of_its_first_change() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let owner = |uid| Owner { uid, gid: 2, project: 3 };
        let of_first = ObjectOrigin { layout_generation: 4, owner: owner(1) };
        let write = |number, layout_generation, uid| {
            let checksums = checksums(0, b"data");
            let object = object(number);
            OstRequest::Write(Write { object, offset: 0, checksums, sync: false, layout_generation, owner: owner(uid) })
        };
        let done = async |request| target.answer(CLIENT, request, Bytes::from_static(b"data")).await.reply.unwrap();
        done(write(1, 4, 1)).await;
        done(write(1, 5, 9)).await;
        assert_eq!(record(&target, 1).unwrap().origin, Some(of_first));
        target.done(OstRequest::Fence(vec![object(2)], 3)).await;
        assert_eq!(record(&target, 2).unwrap().origin, None, "a fence is no change");
        let changes = [
            SpaceChange::Truncate { size: 100 },
            SpaceChange::Allocate { offset: 0, bytes: MIB, extend: false },
            SpaceChange::Zero { offset: 0, bytes: 5, extend: true },
        ];
        for (number, change) in (2..).zip(changes) {
            done(OstRequest::Space(object(number), change, 4, owner(1))).await;
            done(write(number, 5, 9)).await;
            assert_eq!(record(&target, number).unwrap().origin, Some(of_first), "{change:?}");
        }
        let target = target.restart().await;
        assert_eq!(record(&target, 1).unwrap().origin, Some(of_first));
    });
}

/// A change that was sent before its file was removed may arrive after the order of the MDT.
#[test]
fn what_an_mdt_has_destroyed_is_not_made_again() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        target.write(object(1), 0, b"data").await;
        let owner = Owner { uid: 1, gid: 2, project: 3 };
        let origin = Some(DeferredOrigin { source: MdtIndex(0), first: 1, era: 1 });
        target.done(OstRequest::Destroy(vec![object(1), object(2)], origin)).await;
        let refused = async |request, data: &'static [u8]| {
            let answer = target.answer(CLIENT, request, Bytes::from_static(data)).await;
            assert_eq!(answer.reply, Err(FsError::Stale));
        };
        for number in [1, 2] {
            let (object, checksums) = (object(number), checksums(0, b"data"));
            let write = Write { object, offset: 0, checksums, sync: false, layout_generation: 0, owner };
            refused(OstRequest::Write(write), b"data").await;
            for change in [
                SpaceChange::Truncate { size: 100 },
                SpaceChange::Allocate { offset: 0, bytes: MIB, extend: false },
                SpaceChange::Allocate { offset: 0, bytes: 10, extend: true },
                SpaceChange::Zero { offset: 0, bytes: 5, extend: true },
            ] {
                refused(OstRequest::Space(object, change, 0, owner), b"").await;
            }
            assert_eq!(record(&target, number), None);
        }
        target.done(OstRequest::Fence(vec![object(1), object(2)], 3)).await;
        assert_eq!(record(&target, 1), None, "there is nothing to fence");
        target.write(object(3), 0, b"data").await;
        target.done(OstRequest::Destroy(vec![object(3)], None)).await;
        target.write(object(3), 0, b"data").await;
    });
}

/// An MDT repeats what it could not strike off its log.
#[test]
fn deferred_operations_are_executed_once_across_restarts() {
    on_all(async |engine| {
        let mut target = TestOst::on(engine, 1).await;
        let origin = |first| Some(DeferredOrigin { source: MdtIndex(0), first, era: 1 });
        let destroy =
            |first, objects: &[u64]| OstRequest::Destroy(objects.iter().copied().map(object).collect(), origin(first));
        target.write(object(1), 0, b"data").await;
        target.done(destroy(1, &[1, 2])).await;
        assert_eq!(target.attributes(object(1)).await.size, 0);
        // No object comes back under its old name; here it does, to show that nothing is done.
        target = target.restart().await;
        target.write(object(1), 0, b"data").await;
        target.write(object(3), 0, b"data").await;
        for _ in 0..2 {
            target.done(destroy(1, &[1, 2, 3])).await;
            assert_eq!(target.attributes(object(1)).await.size, 4);
            assert_eq!(target.attributes(object(3)).await.size, 0, "the third is new");
            target = target.restart().await;
        }
        target.done(OstRequest::Evict(ClientId(9), origin(4))).await;
        target.done(OstRequest::Evict(ClientId(9), origin(4))).await;
        target.done(destroy(4, &[1])).await;
        assert_eq!(target.attributes(object(1)).await.size, 4, "that number was the eviction's");
        target.done(OstRequest::Destroy(vec![object(1)], None)).await;
        assert_eq!(target.attributes(object(1)).await.size, 0, "from fsck");
    });
}
