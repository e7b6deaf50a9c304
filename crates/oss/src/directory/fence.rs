//! The fence of an object: the oldest generation of its file's layout under which it may still be
//! read and changed.
//!
//! When a range of a file moves from existing objects to others, a client that still uses the old
//! layout would read stale data there and write where no client reads. So before the layout
//! changes, all objects that the file has there are fenced: after the answer, no request under an
//! older layout is executed, and the requests accepted before are finished. Requests that the fence
//! refuses have had no effect; their senders ask for the layout.
//!
//! Invariants: a fence only rises, and it is durable before it is acknowledged. It exists as long
//! as its object, so a fenced object is kept until the file's last layout is gone. Seeking data and
//! reading attributes need no layout, and are not refused.
//!
//! Only MDTs set fences, and none above the layout that it has durably.
//!
//! Downside: an object that has nothing else needs a record, with a time, for its fence.

use kv::Loading;
use types::{FsResult, ObjectId};

use super::{
    DirectoryStore,
    records::{Access, Records},
};
use crate::service_threads::SERVICE;

impl DirectoryStore {
    /// Refuses requests by layouts older than this from now on.
    pub(super) async fn fence_objects(&self, objects: &[ObjectId], generation: u64) -> FsResult<()> {
        for &object in objects {
            let (mut loading, whole) = (Loading::default(), (object, 0..u64::MAX));
            let look = |records: &Records<'_>| Ok(records.is_gone(object, records.object(object)?.as_ref()));
            let (_guard, is_gone) = self.lock_and_look((SERVICE, Access::Exclusive), whole, &mut loading, look).await?;
            if is_gone {
                continue;
            }
            self.update(&mut loading, object, |transaction| {
                // What makes room elsewhere must be possible where there is none.
                transaction.use_reserve();
                transaction.fence(generation, self.seams.clock.wall());
                Ok(())
            })
            .await?;
        }
        // Also if nothing changed: an earlier, repeated request may have fenced without becoming
        // durable.
        let lsn = self.volatile.lock().last_lsn;
        self.kv.durable(lsn).await.map_err(|error| self.kv_error(error))
    }
}

#[cfg(test)]
mod tests {
    use rpc::message::ost::{Read, SpaceChange};
    use types::FsError;

    use crate::{
        directory::test_store::{OBJECT, TestStore, quiet},
        object_record::ObjectOrigin,
    };

    #[tokio::test]
    async fn older_layouts_are_refused_and_nothing_has_happened() {
        let test = TestStore::new(quiet()).await;
        let store = test.store();
        test.write(OBJECT, 0, vec![7; 8192]).await;
        let before = store.records(None).object(OBJECT).unwrap().unwrap();
        store.fence_objects(&[OBJECT], 5).await.unwrap();
        store.fence_objects(&[OBJECT], 4).await.unwrap();
        let read = |layout_generation| Read { object: OBJECT, offset: 0, bytes: 8192, layout_generation };
        let changes = [
            SpaceChange::Truncate { size: 0 },
            SpaceChange::Allocate { offset: 0, bytes: 1 << 20, extend: true },
            SpaceChange::Punch { offset: 0, bytes: 4096 },
            SpaceChange::Zero { offset: 0, bytes: 4096, extend: false },
        ];
        for generation in [0, 4] {
            for change in changes {
                let file = ObjectOrigin { layout_generation: generation, ..ObjectOrigin::default() };
                let refused = store.change_object(OBJECT, change, file, None).await;
                assert_eq!(refused, Err(FsError::LayoutChanged), "{change:?}");
            }
            assert_eq!(test.try_write(OBJECT, 0, vec![8; 10], generation).await, Err(FsError::LayoutChanged));
            assert_eq!(store.read_object(read(generation)).await.err(), Some(FsError::LayoutChanged));
        }
        let fenced = store.records(None).object(OBJECT).unwrap().unwrap();
        assert_eq!((fenced.fence, fenced.attributes()), (5, before.attributes()));
        assert_eq!(store.read_object(read(5)).await.unwrap().1, vec![7; 8192]);
        test.try_write(OBJECT, 0, vec![8; 10], 6).await.unwrap();
        let file = ObjectOrigin { layout_generation: 5, ..ObjectOrigin::default() };
        store.change_object(OBJECT, SpaceChange::Truncate { size: 10 }, file, None).await.unwrap();
    }

    #[tokio::test]
    async fn an_object_that_was_never_made_can_be_fenced() {
        let test = TestStore::new(quiet()).await;
        let store = test.store();
        store.fence_objects(&[OBJECT], 2).await.unwrap();
        assert_eq!(test.try_write(OBJECT, 0, vec![1; 10], 1).await, Err(FsError::LayoutChanged));
        let record = store.records(None).object(OBJECT).unwrap().unwrap();
        assert!(record.size == 0 && record.mtime.seconds > 0, "it is told from a missing one: {record:?}");
        store.verify_object(OBJECT).await.unwrap();
        store.destroy_objects(&[OBJECT]).await.unwrap();
        assert_eq!(store.records(None).object(OBJECT), Ok(None));
    }
}
