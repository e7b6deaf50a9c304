//! The contract of `rt::Device`, run over every implementation.

use std::{io::ErrorKind, sync::Arc};

use bytes::Bytes;
use rt::{
    Device, Entropy,
    fault::FaultyDevice,
    memory::{MemoryDevice, SeededEntropy},
    real::{Execution, IoThreads, LocalDirectory},
};

/// A device under test with what must outlive it.
struct Subject {
    name: &'static str,
    device: Arc<dyn Device>,
    _directory: Option<tempfile::TempDir>,
}

fn subjects() -> Vec<Subject> {
    let local = |name, execution| {
        let directory = tempfile::tempdir().unwrap();
        let threads = Arc::new(IoThreads::new("io", 2).unwrap());
        let device = LocalDirectory::open(directory.path().join("root"), execution, threads).unwrap();
        Subject { name, device: Arc::new(device), _directory: Some(directory) }
    };
    vec![
        Subject { name: "memory", device: Arc::new(MemoryDevice::new()), _directory: None },
        Subject {
            name: "faulty, without faults",
            device: Arc::new(FaultyDevice::new(Arc::new(MemoryDevice::new()), Arc::new(SeededEntropy::new(1)))),
            _directory: None,
        },
        local("inline directory", Execution::Inline),
        local("pooled directory", Execution::Pooled),
    ]
}

/// Runs one clause of the contract over all implementations.
fn check<F: Future<Output = ()>>(clause: impl Fn(Arc<dyn Device>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for subject in subjects() {
        eprintln!("device: {}", subject.name);
        runtime.block_on(clause(subject.device.clone()));
    }
}

async fn write(device: &Arc<dyn Device>, file: &str, offset: u64, data: &[u8]) {
    device.write(file, offset, vec![Bytes::copy_from_slice(data)]).await.unwrap();
}

async fn read(device: &Arc<dyn Device>, file: &str, offset: u64, bytes: usize) -> Vec<u8> {
    let (mut buffer, read) = device.read(file, offset, vec![0xee; bytes]).await.unwrap();
    assert_eq!(buffer.len(), bytes, "the buffer comes back as long as it was");
    buffer.truncate(read);
    buffer
}

#[test]
fn what_is_written_is_read() {
    check(|device| async move {
        let pieces = ["ab", "", "cde", "f"].map(|piece| Bytes::from_static(piece.as_bytes()));
        device.write("a", 3, pieces.to_vec()).await.unwrap();
        assert_eq!(read(&device, "a", 0, 100).await, b"\0\0\0abcdef", "a gap reads as zeros; short at the end");
        assert_eq!(read(&device, "a", 4, 2).await, b"bc");
        assert_eq!(read(&device, "a", 9, 5).await, b"");
        assert_eq!(read(&device, "a", 1 << 40, 5).await, b"");
        write(&device, "a", 4, b"XY").await;
        assert_eq!(read(&device, "a", 3, 6).await, b"aXYdef");
        assert_eq!(device.length("a").await.unwrap(), Some(9));
    });
}

#[test]
fn a_missing_file_is_empty_and_stays_missing() {
    check(|device| async move {
        assert_eq!(read(&device, "none", 0, 5).await, b"");
        device.punch("none", 0, 10).await.unwrap();
        device.remove("none").await.unwrap();
        device.flush("none").await.unwrap();
        assert_eq!(device.length("none").await.unwrap(), None);
        assert_eq!(device.list("").await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn writing_nothing_creates_a_file() {
    check(|device| async move {
        device.write("empty", 100, Vec::new()).await.unwrap();
        assert_eq!(device.length("empty").await.unwrap(), Some(0));
        device.allocate("allocated", 0, 0).await.unwrap();
        device.truncate("truncated", 5).await.unwrap();
        assert_eq!(read(&device, "truncated", 0, 10).await, [0; 5]);
        assert_eq!(device.list("").await.unwrap(), ["allocated", "empty", "truncated"]);
    });
}

#[test]
fn lengths_are_set_and_what_was_cut_off_is_zeros() {
    check(|device| async move {
        write(&device, "a", 0, &[7; 10_000]).await;
        device.truncate("a", 5000).await.unwrap();
        device.truncate("a", 9000).await.unwrap();
        let data = read(&device, "a", 0, 20_000).await;
        assert_eq!(data.len(), 9000);
        assert!(data[..5000].iter().all(|byte| *byte == 7) && data[5000..].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn punched_ranges_read_as_zeros_and_keep_the_length() {
    check(|device| async move {
        write(&device, "a", 0, &[7; 20_000]).await;
        device.punch("a", 100, 9000).await.unwrap();
        device.punch("a", 19_000, 5000).await.unwrap();
        device.punch("a", 5, 0).await.unwrap();
        let data = read(&device, "a", 0, 30_000).await;
        let expected: Vec<u8> =
            (0..20_000).map(|at| if (100..9100).contains(&at) || at >= 19_000 { 0 } else { 7 }).collect();
        assert!(data == expected);
    });
}

#[test]
fn allocation_changes_neither_length_nor_contents() {
    check(|device| async move {
        write(&device, "a", 0, b"data").await;
        device.allocate("a", 0, 1 << 20).await.unwrap();
        assert_eq!(device.length("a").await.unwrap(), Some(4));
        write(&device, "a", 8, b"more").await;
        assert_eq!(read(&device, "a", 0, 20).await, b"data\0\0\0\0more");
    });
}

#[test]
fn removed_files_are_gone_and_can_be_made_anew() {
    check(|device| async move {
        write(&device, "d/a", 0, b"old contents").await;
        device.flush("d/a").await.unwrap();
        device.remove("d/a").await.unwrap();
        assert_eq!(device.length("d/a").await.unwrap(), None);
        assert_eq!(read(&device, "d/a", 0, 5).await, b"");
        write(&device, "d/a", 1, b"new").await;
        device.flush("d/a").await.unwrap();
        assert_eq!(read(&device, "d/a", 0, 20).await, b"\0new");
        assert_eq!(device.list("").await.unwrap(), ["d/a"]);
    });
}

#[test]
fn listing_is_sorted_and_by_prefix() {
    check(|device| async move {
        for file in ["b", "a/z", "a/b/c", "a/b.x", "a-b", "ab/c", "journal-2", "journal-10"] {
            write(&device, file, 0, b"x").await;
        }
        let all = ["a-b", "a/b.x", "a/b/c", "a/z", "ab/c", "b", "journal-10", "journal-2"];
        assert_eq!(device.list("").await.unwrap(), all);
        assert_eq!(device.list("a").await.unwrap(), all[..5]);
        assert_eq!(device.list("a/").await.unwrap(), all[1..4]);
        assert_eq!(device.list("a/b").await.unwrap(), all[1..3]);
        assert_eq!(device.list("a/b/c").await.unwrap(), all[2..3]);
        assert_eq!(device.list("journal-").await.unwrap(), all[6..]);
        assert_eq!(device.list("c").await.unwrap(), Vec::<String>::new());
        assert_eq!(device.list("b/x").await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn bad_names_and_ranges_are_refused() {
    check(|device| async move {
        let long = "x".repeat(256);
        for name in ["", "/", "a/", "/a", "a//b", ".", "..", "../a", "a/../b", "a b", "a\0", "\u{e4}", long.as_str()] {
            let results = [
                device.read(name, 0, vec![0; 1]).await.map(drop),
                device.write(name, 0, vec![Bytes::from_static(b"x")]).await,
                device.flush(name).await,
                device.length(name).await.map(drop),
                device.truncate(name, 1).await,
                device.punch(name, 0, 1).await,
                device.allocate(name, 0, 1).await,
                device.remove(name).await,
            ];
            for result in results {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput, "{name:?}");
            }
        }
        let piece = || vec![Bytes::from_static(b"xx")];
        for result in [
            device.write("a", u64::MAX, piece()).await,
            device.write("a", i64::MAX as u64 - 1, piece()).await,
            device.truncate("a", u64::MAX).await,
            device.allocate("a", u64::MAX - 5, 10).await,
        ] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::FileTooLarge);
        }
        assert_eq!(device.list("").await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn nothing_happens_before_the_first_poll() {
    check(|device| async move {
        drop(device.write("a", 0, vec![Bytes::from_static(b"x")]));
        drop(device.truncate("b", 1));
        assert_eq!(device.list("").await.unwrap(), Vec::<String>::new());
    });
}

#[test]
fn more_files_than_descriptors_and_concurrent_writers() {
    check(|device| async move {
        for number in 0..700u32 {
            write(&device, &format!("objects/{}/{number}", number % 7), 0, &number.to_le_bytes()).await;
        }
        let names: Vec<String> = (0..700).map(|number| format!("objects/{}/{number}", number % 7)).collect();
        let tasks: Vec<_> = names.iter().map(|name| device.write(name, 4, vec![Bytes::from_static(b"!")])).collect();
        for task in tasks {
            task.await.unwrap();
        }
        for (number, name) in names.iter().enumerate() {
            let expected = [&(number as u32).to_le_bytes()[..], b"!"].concat();
            assert_eq!(read(&device, name, 0, 10).await, expected);
        }
        device.flush(&names[0]).await.unwrap();
        assert_eq!(device.list("objects/").await.unwrap().len(), 700);
    });
}

#[test]
fn many_pieces_are_one_write() {
    check(|device| async move {
        let pieces: Vec<Bytes> = (0..3000u32).map(|number| Bytes::copy_from_slice(&number.to_le_bytes())).collect();
        device.write("a", 1, pieces.clone()).await.unwrap();
        assert_eq!(read(&device, "a", 1, 12_001).await, pieces.concat());
    });
}

#[test]
fn space_is_plausible() {
    check(|device| async move {
        let space = device.space().await.unwrap();
        assert!(space.bytes_total > 0 && space.bytes_free <= space.bytes_total);
        assert!(space.bytes_available <= space.bytes_free);
    });
}

/// Large transfers of a held file may take another way to the disk than small ones: all find what
/// the others wrote.
#[test]
fn transfers_of_all_sizes_of_a_held_file_agree() {
    const PAGE: u64 = 4096;
    const BYTES: u64 = 4 << 20;
    check(async |device| {
        device.truncate("held", BYTES).await.unwrap();
        device.hold("held").await.unwrap();
        let (mut expected, entropy) = (vec![0; BYTES as usize], SeededEntropy::new(7));
        let below = |end: u64| entropy.next_u64() % end;
        for round in 0..60u8 {
            let pages = [1, 3, 16, 40, 256][below(5) as usize];
            // Some begin and end within a page.
            let (skip, cut) = if below(4) == 0 { (below(PAGE), below(PAGE)) } else { (0, 0) };
            let offset = below(BYTES / PAGE - pages) * PAGE + skip;
            let data: Vec<u8> = (offset..offset + pages * PAGE - cut).map(|at| (at / 512) as u8 ^ round).collect();
            expected[offset as usize..][..data.len()].copy_from_slice(&data);
            let (first, second) = data.split_at(data.len() / 3);
            let pieces = vec![Bytes::copy_from_slice(first), Bytes::copy_from_slice(second)];
            device.write("held", offset, pieces).await.unwrap();
            let (start, bytes) = (below(BYTES / PAGE) * PAGE, [1, 16, 200][below(3) as usize] * PAGE);
            let end = BYTES.min(start + bytes) as usize;
            let large = device.read_bytes("held", start, bytes as usize).await.unwrap();
            assert!(large == expected[start as usize..end], "round {round}: {bytes} bytes at {start}");
            assert!(read(&device, "held", start, bytes as usize).await == large, "round {round}, small");
            if round % 16 == 15 {
                device.flush("held").await.unwrap();
            }
        }
        assert!(device.read_bytes("held", 0, BYTES as usize).await.unwrap() == expected);
        assert!(device.read_bytes("none", 0, 1 << 20).await.unwrap().is_empty(), "a missing file is empty");
    });
}
