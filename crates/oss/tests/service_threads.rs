//! Requests that wait for others hold no service thread.

use crate::common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use common::{MIB, TestOst, object, pattern, quiet_options, run, write_request};
use oss::{OstOptions, directory::host_file};
use rpc::{
    Endpoint, Import, ImportOptions, Keyring, Principal, Question, Role, Server, ServerOptions,
    message::{OstReply, OstRequest, ost::Read},
};
use rt::memory::MemoryDevice;
use types::{FsResult, ObjectId};

const TARGET: &str = "stria-OST0003";
/// Of `ost_io`.
const THREADS: usize = 2;
/// Requests for one range.
const REQUESTS: usize = 12;
/// For what takes forever if it does not happen at once.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Stage {
    target: TestOst,
    server: Arc<Server>,
    import: Arc<Import>,
}

impl Stage {
    async fn new() -> Self {
        Self::of(TestOst::new(1).await)
    }

    fn of(target: TestOst) -> Self {
        let server = Server::new(target.seams.clone(), ServerOptions::new(Keyring::of_test()));
        server.add_target(TARGET, target.ost.clone(), Duration::from_secs(3600));
        server.service("ost_io").set_threads(THREADS);
        let (endpoint, principal) = (Endpoint::Local(server.clone()), Principal::of_test(1, Role::Client));
        let import = Import::new(target.seams.clone(), TARGET, endpoint, principal, ImportOptions::default(), None);
        Self { target, server, import: Arc::new(import) }
    }

    /// A write of 1 MiB of this version at the beginning of an object, as a task.
    fn write(&self, object: ObjectId, version: u64) -> tokio::task::JoinHandle<FsResult<OstReply>> {
        let (request, data) = write_request(object, 0, &pattern(version, 0, MIB), false);
        self.ask(request, data)
    }

    fn ask(&self, request: OstRequest, data: Bytes) -> tokio::task::JoinHandle<FsResult<OstReply>> {
        let import = self.import.clone();
        tokio::spawn(async move { Ok(import.call(Question::with_bulk(request, data)).await?.reply) })
    }

    /// Waits until so many requests of `ost_io` execute, those that wait for others among them, and
    /// so many wait for a thread.
    async fn until(&self, executing: usize, queued: usize) {
        let service = self.server.service("ost_io");
        let waiting = async {
            loop {
                let now = service.statistics();
                if (now.in_flight, now.waiting) == (executing, queued) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        let reached = tokio::time::timeout(TIMEOUT, waiting).await;
        assert!(reached.is_ok(), "{executing} executing and {queued} queued, not {:?}", service.statistics());
    }
}

#[test]
fn requests_for_a_locked_range_do_not_hold_up_other_objects() {
    run(async {
        let stage = Stage::new().await;
        stage.target.probe.hold_writes(&host_file(object(1)));
        let mut requests = vec![stage.write(object(1), 0)];
        stage.until(1, 0).await;
        requests.extend((1..REQUESTS as u64).map(|version| stage.write(object(1), version)));
        let read = Read { object: object(1), offset: 0, bytes: MIB as u32, layout_generation: 0 };
        requests.push(stage.ask(OstRequest::Read(read), Bytes::new()));
        stage.until(REQUESTS + 1, 0).await;

        let other = tokio::time::timeout(TIMEOUT, stage.write(object(2), 0)).await;
        other.expect("both threads were held by requests that wait").unwrap().unwrap();

        stage.target.probe.release_writes();
        for request in requests {
            request.await.unwrap().unwrap();
        }
        stage.until(0, 0).await;
        let last = pattern(REQUESTS as u64 - 1, 0, MIB);
        assert!(stage.target.read(object(1), 0, MIB).await == last, "in order of arrival");
        assert!(stage.target.read(object(2), 0, MIB).await == pattern(0, 0, MIB));
    });
}

/// New requests wait until fewer execute than there are threads, however many waited for locks.
#[test]
fn requests_that_got_their_lock_go_first() {
    run(async {
        let stage = Stage::new().await;
        stage.target.probe.hold_writes(&host_file(object(1)));
        let first = stage.write(object(1), 0);
        stage.until(1, 0).await;
        let reads: Vec<_> = (0..4)
            .map(|part| {
                let read = Read { object: object(1), offset: part, bytes: 1, layout_generation: 0 };
                stage.ask(OstRequest::Read(read), Bytes::new())
            })
            .collect();
        stage.until(5, 0).await;
        // One thread is free: the write of the first object has the other one.
        stage.target.probe.hold_writes(&host_file(object(2)));
        let second = stage.write(object(2), 0);
        stage.until(6, 0).await;
        let third = stage.write(object(3), 0);
        stage.until(6, 1).await;
        stage.target.probe.release_writes();
        for request in reads.into_iter().chain([first, second, third]) {
            request.await.unwrap().unwrap();
        }
        stage.until(0, 0).await;
    });
}

/// On a full target writes overwrite one after the other, here after one that waits for a reader.
#[test]
fn overwrites_that_wait_for_their_turn_hold_no_thread() {
    run(async {
        const PIECE: u64 = 256 << 10;
        let options = OstOptions { reserve_bytes: MIB, ..quiet_options() };
        let target = TestOst::with(1, MemoryDevice::with_capacity(16 * MIB), options).await;
        let mut end = 0;
        while target.write_with(object(1), end, &pattern(0, end, PIECE), false).await.is_ok() {
            end += PIECE;
        }
        let stage = Stage::of(target);
        stage.target.probe.hold_reads();
        let read = |object| Read { object, offset: 0, bytes: PIECE as u32, layout_generation: 0 };
        let reader = stage.ask(OstRequest::Read(read(object(1))), Bytes::new());
        stage.until(1, 0).await;
        let overwrites: Vec<_> = (0..REQUESTS as u64)
            .map(|number| {
                let (request, data) =
                    write_request(object(1), number * PIECE, &pattern(1, number * PIECE, PIECE), false);
                stage.ask(request, data)
            })
            .collect();
        stage.until(1 + REQUESTS, 0).await;
        let other = tokio::time::timeout(TIMEOUT, stage.ask(OstRequest::Read(read(object(2))), Bytes::new())).await;
        other.expect("both threads were held by requests that wait").unwrap().unwrap();

        stage.target.probe.release_reads();
        for request in overwrites.into_iter().chain([reader]) {
            request.await.unwrap().unwrap();
        }
        stage.until(0, 0).await;
        let bytes = REQUESTS as u64 * PIECE;
        assert!(stage.target.read(object(1), 0, bytes).await == pattern(1, 0, bytes));
    });
}

/// The client's last request waits for a lock, and the eviction for that request.
#[test]
fn an_eviction_that_waits_for_requests_holds_no_thread() {
    run(async {
        let stage = Stage::new().await;
        stage.server.service("ost").set_threads(1);
        stage.target.probe.hold_writes(&host_file(object(1)));
        let write = stage.write(object(1), 0);
        stage.until(1, 0).await;
        let principal = Principal::of_test(2, Role::Mdt);
        let (seams, endpoint) = (stage.target.seams.clone(), Endpoint::Local(stage.server.clone()));
        let mdt = Arc::new(Import::new(seams, TARGET, endpoint, principal, ImportOptions::default(), None));
        let evicting = mdt.clone();
        let evict = tokio::spawn(async move {
            Ok::<_, types::FsError>(evicting.call(OstRequest::Evict(common::CLIENT, None)).await?.reply)
        });
        while stage.server.service("ost").statistics().in_flight == 0 {
            tokio::task::yield_now().await;
        }
        let other = tokio::time::timeout(TIMEOUT, mdt.call(OstRequest::StatFs)).await;
        other.expect("the eviction holds the thread").unwrap();
        assert!(!evict.is_finished(), "a request of the client still runs");
        stage.target.probe.release_writes();
        write.await.unwrap().unwrap();
        assert_eq!(evict.await.unwrap().unwrap(), OstReply::Done);
    });
}
