//! Bad input: damaged, foreign, missing and outdated files, devices that fail or are full. Each
//! gives a clear error.

use crate::common;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use common::{Host, contents, put, test_seams};
use kv::{
    Batch, Checkpoint, Config, Error, Lsn, MemoryCold, Store, Table, Term,
    inspect::{self, Finding},
    journal::format::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES},
};
use rt::{
    BoxFuture, Device,
    memory::{MemoryDevice, Unflushed},
};
use types::SpaceUsage;

const T: Table = Table(1);

/// Space of the records that [`filled`] writes: header, operation header, four bytes of key, 40 of
/// value, rounded up.
const RECORD_SPACE: u64 = (RECORD_HEADER_BYTES as u64 + 8 + 4 + 40).next_multiple_of(8);

fn offset_of(record: u64) -> u64 {
    SEGMENT_HEADER_BYTES + record * RECORD_SPACE
}

/// A host on which `count` batches were each made durable, then the process died.
async fn filled(count: u32) -> Host {
    let mut host = Host::new();
    let store = host.open().await;
    for number in 0..count {
        let lsn = store.apply(put(1, &number.to_be_bytes(), &[7; 40])).unwrap();
        store.durable(lsn).await.unwrap();
    }
    host.crash();
    host
}

async fn refusal(host: &Host) -> Error {
    match host.try_open().await {
        Ok(_) => panic!("the store must not open"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_flipped_bit_in_the_middle_is_reported_with_its_place() {
    for bit in [0, 77, 333] {
        let host = filled(10).await;
        host.device.flip_bit("journal.0", offset_of(4) + bit / 8, (bit % 8) as u8);
        match refusal(&host).await {
            Error::Corrupt { file, offset, reason } => {
                assert_eq!((file.as_str(), offset), ("journal.0", offset_of(4)), "{reason}");
                assert!(reason.contains("batch 5"), "{reason}");
            }
            other => panic!("{other}"),
        }
        let error = refusal(&host).await;
        assert!(matches!(error, Error::Corrupt { .. }), "refusing changed nothing: {error}");
    }
}

#[tokio::test]
async fn a_flipped_bit_at_the_unmarked_end_is_a_torn_tail() {
    let host = filled(10).await;
    host.device.flip_bit("journal.0", offset_of(9) + 50, 3);
    let store = host.open().await;
    assert_eq!(store.last(), Lsn(9));
    let lsn = store.apply(put(1, b"new", b"")).unwrap();
    assert_eq!(lsn, Lsn(10), "the number is given again");
    store.durable(lsn).await.unwrap();
    drop(store);
    let mut host = host;
    host.power_loss(1, Unflushed::Lost);
    assert_eq!(contents(&host.open().await).len(), 10);
}

/// What was written after the cut must not be followed by what was there before it, although the
/// numbers would fit.
#[tokio::test]
async fn records_behind_a_cut_never_come_back() {
    let mut host = Host::new();
    let store = host.open().await;
    for number in 0..5u32 {
        let lsn = store.apply(put(1, &number.to_be_bytes(), &[7; 40])).unwrap();
        store.written(lsn).await.unwrap();
    }
    host.crash();
    drop(store);
    // As power loss may do it: the third is lost, the later ones stay.
    host.device.flip_bit("journal.0", offset_of(2), 0);
    let store = host.open().await;
    assert_eq!(store.last(), Lsn(2));
    let lsn = store.apply(put(1, b"third", &[8; 40])).unwrap();
    store.durable(lsn).await.unwrap();
    host.crash();
    drop(store);
    // The medium heals: the old third record verifies again, and the old fourth fits after the new
    // third.
    host.device.flip_bit("journal.0", offset_of(2), 0);
    let store = host.open().await;
    assert_eq!(store.last(), Lsn(3));
    assert_eq!(store.get(T, b"third").unwrap().unwrap(), vec![8; 40]);
    assert_eq!(contents(&store).len(), 3);
}

#[tokio::test]
async fn marks_reveal_damage_to_the_last_batch_of_an_idle_store() {
    let mut host = Host::new();
    host.config.commit_interval = std::time::Duration::from_millis(1);
    let store = host.open().await;
    store.apply(put(1, &[0; 4], &[7; 40])).unwrap();
    // The commit task flushes and then writes the mark.
    while marks(&host.device).await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    host.crash();
    drop(store);
    host.device.flip_bit("journal.0", offset_of(0) + 45, 0);
    assert!(matches!(refusal(&host).await, Error::Corrupt { offset: SEGMENT_HEADER_BYTES, .. }));
}

async fn marks(device: &MemoryDevice) -> usize {
    let mut count = 0;
    let mut visit = |finding| {
        count += usize::from(matches!(finding, Finding::Record { record, .. } if record.is_mark()));
        true
    };
    inspect::journal(device, &mut visit).await.unwrap();
    count
}

#[tokio::test]
async fn a_damaged_segment_header_is_not_an_empty_journal() {
    let host = filled(3).await;
    host.device.flip_bit("journal.0", 20, 1);
    assert!(matches!(refusal(&host).await, Error::Corrupt { .. }));
}

#[tokio::test]
async fn missing_parts_are_named() {
    let host = Host::new();
    let store = host.open().await;
    store.apply(put(1, b"a", b"")).unwrap();
    store.close().await.unwrap();
    for name in host.device.list("journal.").await.unwrap() {
        host.device.remove(&name).await.unwrap();
    }
    let error = refusal(&host).await;
    assert!(matches!(error, Error::Missing { what: "the journal", .. }), "{error}");

    let mut host = filled(3).await;
    host.cold = MemoryCold::new();
    let error = refusal(&host).await;
    assert!(matches!(error, Error::Missing { what: "the cold store", .. }), "{error}");

    let host = filled(3).await;
    host.device.remove("store").await.unwrap();
    let error = refusal(&host).await;
    assert!(matches!(error, Error::Missing { what: "store", .. }), "{error}");
}

#[tokio::test]
async fn parts_of_different_stores_are_told_apart() {
    let mut one = filled(3).await;
    let other = Host::new();
    let entropy = rt::memory::SeededEntropy::new(99);
    let seams = rt::Seams { entropy: Arc::new(entropy), ..test_seams() };
    let (device, cold) = (Arc::new(other.device.clone()), Arc::new(other.cold.clone()));
    drop(Store::open(seams, device, cold, Config::small(), &mut |_, _| {}).await.unwrap());
    one.cold = other.cold.crash();
    let error = refusal(&one).await;
    assert!(matches!(&error, Error::WrongStore { file, .. } if file == "the cold store"), "{error}");

    let foreign = filled(3).await;
    let (page, _) = other.device.crash().read("store", 0, vec![0; 64]).await.unwrap();
    foreign.device.write("store", 0, vec![Bytes::from(page)]).await.unwrap();
    let error = refusal(&foreign).await;
    assert!(matches!(error, Error::WrongStore { .. }), "{error}");
}

#[tokio::test]
async fn other_versions_and_foreign_files_are_refused() {
    for version in [1, 3] {
        // The first 60 bytes of a store file with its CRC-32C, computed by the definition.
        let host = Host::new();
        let mut page = vec![0u8; 64];
        page[..8].copy_from_slice(b"STRIAKV\0");
        page[8] = version;
        page[16] = 5;
        let sum = crc32c(&page[..60]);
        page[60..].copy_from_slice(&sum.to_le_bytes());
        host.device.write("store", 0, vec![Bytes::from(page)]).await.unwrap();
        let error = refusal(&host).await;
        let Error::UnknownVersion { found, supported: 2, .. } = &error else { panic!("{error}") };
        assert_eq!(*found, u32::from(version));
        assert!(error.to_string().contains("copy the data off"), "{error}");
    }

    let host = Host::new();
    host.device.write("store", 0, vec![Bytes::from(vec![b'x'; 64])]).await.unwrap();
    assert!(matches!(refusal(&host).await, Error::Corrupt { .. }));
}

/// A batch of an earlier term after one of a later term was decided by nobody.
#[tokio::test]
async fn terms_only_grow() {
    let raise = async |host: &Host, number: u64, term: u64| {
        let (mut record, _) =
            host.device.read("journal.0", offset_of(number), vec![0; RECORD_SPACE as usize]).await.unwrap();
        record[40..48].copy_from_slice(&term.to_le_bytes());
        let payload_bytes = u32::from_le_bytes(record[4..8].try_into().unwrap()) as usize;
        let sum = crc32c(&record[4..RECORD_HEADER_BYTES + payload_bytes]);
        record[..4].copy_from_slice(&sum.to_le_bytes());
        host.device.write("journal.0", offset_of(number), vec![Bytes::from(record)]).await.unwrap();
    };
    let mut host = filled(3).await;
    raise(&host, 1, 5).await;
    let Error::Corrupt { offset, reason, .. } = refusal(&host).await else { panic!("another refusal") };
    assert_eq!((offset, reason.as_str()), (offset_of(2), "batch 3 is of term 0, after term 5"));
    raise(&host, 2, 6).await;
    for last in [4, 5] {
        let store = host.open().await;
        let lsn = store.apply(put(1, b"more", b"of term 6")).unwrap();
        assert_eq!(lsn, Lsn(last));
        store.durable(lsn).await.unwrap();
        store.checkpoint().await.unwrap();
        host.crash();
    }
    assert_eq!(contents(&host.open().await).len(), 4, "what was added continues the last term");
}

/// CRC-32C bit by bit, as its definition has it.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut sum = !0u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
        }
    }
    !sum
}

#[tokio::test]
async fn limits_are_refused_without_effect() {
    let host = Host::new();
    let store = host.open().await;
    let long_key = put(1, &[0; kv::KEY_BYTES_MAX + 1], b"");
    let long_value = put(1, b"k", &vec![0; kv::VALUE_BYTES_MAX + 1]);
    let mut long_batch = Batch::default();
    for number in 0..10u8 {
        long_batch.put(T, vec![number], vec![0; 60 << 10]);
    }
    for batch in [long_key, long_value, long_batch] {
        assert!(matches!(store.apply(batch), Err(Error::TooLarge { .. })));
    }
    assert_eq!(contents(&store).len(), 0);
    assert!(matches!(store.written(Lsn(1)).await, Err(Error::UnknownLsn { .. })));
    let config = Config { segment_bytes: 5000, ..Config::small() };
    let host = Host { config, ..Host::new() };
    assert!(matches!(refusal(&host).await, Error::Configuration(_)));
}

/// A device whose writes or flushes fail from some time on.
struct Failing {
    inner: MemoryDevice,
    writes_left: AtomicU32,
    flushes_left: AtomicU32,
}

fn spend(left: &AtomicU32) -> io::Result<()> {
    let spent = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    spent.map(|_| ()).map_err(|_| io::Error::other("the medium is gone"))
}

impl Device for Failing {
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        self.inner.read(file, offset, buffer)
    }
    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        match spend(&self.writes_left) {
            Ok(()) => self.inner.write(file, offset, pieces),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }
    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        match spend(&self.flushes_left) {
            Ok(()) => self.inner.flush(file),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }
    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        self.inner.length(file)
    }
    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        self.inner.truncate(file, length)
    }
    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.inner.punch(file, offset, bytes)
    }
    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.inner.allocate(file, offset, bytes)
    }
    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.inner.remove(file)
    }
    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        self.inner.list(prefix)
    }
    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        self.inner.space()
    }
}

#[tokio::test]
async fn the_first_failure_poisons_and_is_never_retried() {
    for fail_flush in [false, true] {
        let inner = MemoryDevice::new();
        let device = Arc::new(Failing {
            inner: inner.clone(),
            writes_left: AtomicU32::new(u32::MAX),
            flushes_left: AtomicU32::new(u32::MAX),
        });
        let mut host = Host { device: inner, ..Host::new() };
        let (seams, cold) = (test_seams(), Arc::new(host.cold.clone()));
        let store = Store::open(seams, Arc::clone(&device) as _, cold, Config::small(), &mut |_, _| {}).await.unwrap();
        let lsn = store.apply(put(1, b"a", b"1")).unwrap();
        store.durable(lsn).await.unwrap();
        let lsn = store.apply(put(1, b"b", b"1")).unwrap();
        let failing = if fail_flush { &device.flushes_left } else { &device.writes_left };
        failing.store(0, Ordering::SeqCst);
        assert!(matches!(store.durable(lsn).await, Err(Error::Poisoned { .. })));
        // The device recovers; the store must not, since nobody knows what the device forgot.
        failing.store(u32::MAX, Ordering::SeqCst);
        match store.apply(put(1, b"c", b"1")) {
            Err(Error::Poisoned { first }) => assert!(first.contains("the medium is gone"), "{first}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(store.durable(lsn).await, Err(Error::Poisoned { .. })));
        assert!(matches!(store.checkpoint().await, Err(Error::Poisoned { .. })));
        assert_eq!(store.get(T, b"a").unwrap().unwrap(), "1", "reads go on");
        assert!(store.statistics().poisoned);
        assert!(store.close().await.is_err());
        drop(store);
        host.power_loss(1, Unflushed::Lost);
        assert_eq!(contents(&host.open().await).len(), 1);
    }
}

/// The kernel shows what it failed to write, as clean: a flush after the start has nothing to do,
/// and tells no error.
#[tokio::test]
async fn what_a_failed_flush_left_in_the_cache_is_written_again() {
    let mut host = filled(3).await;
    let store = host.open().await;
    let lsn = store.apply(put(1, b"never flushed", b"1")).unwrap();
    store.written(lsn).await.unwrap();
    host.device.fail_writeback();
    drop(store);
    host.crash();
    let store = host.open().await;
    assert_eq!(contents(&store).len(), 4);
    // The journal continues after it, and says that all before is flushed.
    for number in 0..3u32 {
        let lsn = store.apply(put(2, &number.to_be_bytes(), b"1")).unwrap();
        store.durable(lsn).await.unwrap();
    }
    drop(store);
    host.power_loss(1, Unflushed::Lost);
    assert_eq!(contents(&host.open().await).len(), 7);
}

#[tokio::test]
async fn a_failed_cold_store_poisons_but_a_full_one_only_waits() {
    let host = Host::new();
    let store = host.open().await;
    store.apply(put(1, b"a", b"1")).unwrap();
    host.cold.limit_space(Some(0));
    let error = store.checkpoint().await.unwrap_err();
    assert!(error.is_no_space(), "{error}");
    store.apply(put(1, b"b", b"1")).unwrap();
    host.cold.limit_space(None);
    assert_eq!(store.checkpoint().await.unwrap(), Lsn(2));
    host.cold.fail_writes(Some(io::ErrorKind::InvalidData));
    store.apply(put(1, b"c", b"1")).unwrap();
    assert!(store.checkpoint().await.is_err());
    assert!(matches!(store.apply(put(1, b"d", b"1")), Err(Error::Poisoned { .. })));
}

/// The device takes no further segment and the cold store nothing at all: batches are refused
/// before they are visible, those that free space still find some, and when there is room again
/// everything continues.
#[tokio::test]
async fn a_full_device_refuses_batches_before_they_are_visible() {
    let mut host = Host::new();
    let store = host.open().await;
    let used = host.device.space().await.unwrap();
    host.device.set_capacity(used.bytes_total - used.bytes_free);
    host.cold.limit_space(Some(0));
    let mut applied = 0u32;
    let error = loop {
        match store.apply(put(1, &applied.to_be_bytes(), &[7; 1000])) {
            Ok(lsn) => store.written(lsn).await.unwrap(),
            // Before the device has said that it is full, the store only says that it is behind.
            Err(Error::Overloaded) => {
                tokio::task::yield_now().await;
                continue;
            }
            Err(error) => break error,
        }
        applied += 1;
        assert!(applied < 100_000, "the device is full at some time");
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    assert!(applied > 100);
    assert_eq!(contents(&store).len(), applied as usize, "nothing that was refused is visible");
    let mut removal = Batch::default();
    removal.delete(T, 0u32.to_be_bytes().to_vec());
    let lsn = store.apply_reserved(removal).unwrap();
    store.durable(lsn).await.unwrap();
    let before = contents(&store);
    host.crash();
    drop(store);
    let error = match host.try_open().await {
        Err(error) => error,
        Ok(store) => {
            assert_eq!(contents(&store), before);
            return;
        }
    };
    assert!(error.is_no_space(), "{error}");
    host.device.set_capacity(1 << 40);
    host.cold.limit_space(None);
    let store = host.open().await;
    assert_eq!(contents(&store), before);
    store.apply(put(1, b"again", b"")).unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn inspection_shows_batches_and_damage_and_changes_nothing() {
    let host = filled(6).await;
    host.device.flip_bit("journal.0", offset_of(3) + 1, 0);
    host.device.set_read_only(true);
    let mut batches = Vec::new();
    let mut unknown = Vec::new();
    let mut visit = |finding| {
        match finding {
            Finding::Record { record, operations, current, .. } => {
                batches.push((record.lsn.0, operations.unwrap(), current))
            }
            Finding::Unknown { offset, bytes } => unknown.push((offset, bytes)),
            Finding::Segment { .. } => {}
        }
        true
    };
    inspect::journal(&host.device, &mut visit).await.unwrap();
    let numbers: Vec<_> = batches.iter().map(|(lsn, _, current)| (*lsn, *current)).collect();
    assert_eq!(numbers, [(1, true), (2, true), (3, true), (5, false), (6, false)]);
    assert_eq!(unknown.len(), 1);
    assert!(unknown[0].0 >= offset_of(3) && unknown[0].0 + unknown[0].1 <= offset_of(4), "{unknown:?}");
    let operation = &batches[0].1[0];
    let line = inspect::describe(&Plain, operation.table(), operation.key(), Some(b"value")).unwrap();
    assert_eq!(line, "table [00, 00, 00, 00]: 5 bytes");
    let line = inspect::describe(&Plain, Table(9), b"key", None).unwrap_err();
    assert_eq!(line, "unknown table 9, key 6b6579");
    let mut replayed = Vec::new();
    let store = report_store(&host).await;
    let end = inspect::replay(&host.device, store, Checkpoint { store, lsn: Lsn(1), term: Term(0) }, &mut |lsn, _| {
        replayed.push(lsn.0)
    })
    .await;
    assert!(end.is_err(), "opening would refuse as well");
    assert_eq!(replayed, [2, 3]);
    let report = inspect::store(&host.device, &host.cold).await.unwrap();
    assert_eq!(report.journal, Some((Lsn(1), Lsn(3))));
    assert_eq!((report.records, report.unknown_places), (3, 1));
    assert!(report.superblock.unwrap().is_some());
}

/// Keys as they are.
struct Plain;

impl inspect::Schema for Plain {
    fn table(&self, table: Table) -> Option<&'static str> {
        (table.0 < 9).then_some("table")
    }

    fn key(&self, _table: Table, key: &[u8]) -> Result<String, String> {
        Ok(format!("{key:02x?}"))
    }

    fn value(&self, _table: Table, _key: &[u8], value: &[u8]) -> Result<String, String> {
        Ok(format!("{} bytes", value.len()))
    }

    fn concerns(&self, _table: Table, _key: &[u8], _value: &[u8], _inode: u64) -> bool {
        false
    }
}

async fn report_store(host: &Host) -> u64 {
    inspect::store(&host.device, &host.cold).await.unwrap().superblock.unwrap().unwrap().store
}
