//! What an OST whose device flushes slowly could lose in a power loss, in virtual time.

use std::{sync::Arc, time::Duration};

use lab::{
    Process, ProcessId, Simulation,
    device::{Disk, DiskModel},
    executor::RunLimits,
    network::Network,
};
use oss::{Ost, OstDevices, OstOptions};
use rpc::{
    Call, Handler,
    checksum::checksums,
    message::{OstRequest, Request, ost::Write},
};
use types::{ClientId, InodeNumber, ObjectId, OstIndex, Owner, Slot, Xid};

const FLUSH: Duration = Duration::from_millis(20);
/// Files written in each second: one after the other, their flushes take five times as long.
const FILES_PER_SECOND: u64 = 250;
const SECONDS: u64 = 6;
/// Large enough to be written in place.
const FILE_BYTES: usize = 128 << 10;

/// A disk has a queue: what is acknowledged is durable after one interval and the time of one
/// commit, which needs the time of a few flushes, whatever the number of files. Writers do not wait
/// for it.
#[test]
fn what_a_loss_of_power_takes_does_not_grow_with_the_number_of_files() {
    let simulation = Simulation::new(5);
    let network = Network::new(&simulation, 5);
    let process = Process::start(&simulation, &network, ProcessId(1), "oss0", 5);
    let model = DiskModel { flush: FLUSH, ..DiskModel::default() };
    let disk = Disk::new(&simulation, "ost", 5, model);
    let (clock, options) = (simulation.clone(), OstOptions::default());
    let interval = options.commit_interval;
    let (oldest, longest_write, at_rest) = simulation
        .run(RunLimits::default(), async move {
            let opened = disk.open();
            let devices = OstDevices {
                objects: opened.objects,
                journal: opened.journal,
                cold: opened.cold,
                throughput: Arc::default(),
            };
            let (seams, config) = (process.seams(), kv::Config::small());
            Ost::format(&seams, &devices, "lab", OstIndex(0), config.clone()).await.unwrap();
            let ost: Arc<Ost> = Ost::open(seams, devices, "lab", OstIndex(0), options, config).await.unwrap();
            let (mut oldest, mut longest_write) = (Duration::ZERO, Duration::ZERO);
            for number in 0..SECONDS * FILES_PER_SECOND {
                let begun = clock.now();
                let data = vec![number as u8; FILE_BYTES];
                let object = ObjectId::new(InodeNumber(number + 100), 0);
                let checksums = checksums(0, &data);
                let write =
                    Write { object, offset: 0, checksums, sync: false, layout_generation: 0, owner: Owner::default() };
                let request = Request::Ost(OstRequest::Write(write));
                let call = Call::plain(ClientId(7), Slot(0), Xid(number + 1), request, data.into());
                ost.clone().handle(call).await.reply.unwrap();
                longest_write = longest_write.max(clock.now().since(begun));
                oldest = oldest.max(ost.undurable_age());
                clock.sleep_until(begun + Duration::from_secs(1) / FILES_PER_SECOND as u32).await;
            }
            let rest = clock.now() + Duration::from_secs(60);
            clock.sleep_until(rest).await;
            let at_rest = ost.undurable_age();
            ost.stop().await.unwrap();
            (oldest, longest_write, at_rest)
        })
        .unwrap();
    // Flushes last up to twice as long as their model says.
    let commit = 2 * FLUSH * (2 * FILES_PER_SECOND as u32).div_ceil(oss::directory::commit::FLUSHES_MAX as u32);
    assert!(oldest > interval / 2, "files are not flushed one by one as they come: {oldest:?}");
    assert!(oldest <= interval + commit, "{oldest:?}");
    assert_eq!(at_rest, Duration::ZERO, "where nothing changes, nothing can be lost");
    assert!(longest_write < 3 * FLUSH, "{longest_write:?}");
}
