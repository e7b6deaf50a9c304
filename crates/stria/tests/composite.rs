//! Files whose layout has components, through the kernel: they grow over watermarks while servers
//! die, are sparse up to the largest sizes, and are mapped across components.

mod common;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt},
    sync::atomic::{AtomicU64, Ordering},
};

use common::{
    FileSystem, TIMEOUT, Transport,
    layouts::{WATERMARKS, grow_in, instantiated, layout_of},
    wait_for,
};

const MDS: usize = 0;

#[test]
fn files_get_objects_as_they_grow() {
    let system = FileSystem::start(Transport::InProcess, 1);
    let directory = system.root().join("growing");
    fs::create_dir(&directory).expect("mkdir");
    grow_in(&directory);
    let path = directory.join("file");
    let file = File::create_new(&path).expect("create");
    assert_eq!(instantiated(&path), [true, false, false]);
    file.write_all_at(&[1; 10], WATERMARKS[0] - 5).expect("write over the first watermark");
    assert_eq!(instantiated(&path), [true, true, false]);
    file.set_len(WATERMARKS[1]).expect("truncate to the second watermark");
    assert_eq!(instantiated(&path), [true, true, false]);
    file.set_len(WATERMARKS[1] + 1).expect("truncate after it");
    assert_eq!(instantiated(&path), [true, true, true]);
    assert_eq!(layout_of(&path).object_count(), 1 + 2 + 4);
    let below = directory.join("below");
    fs::create_dir(&below).expect("mkdir");
    fs::write(below.join("file"), vec![7; 1 << 20]).expect("write");
    assert_eq!(instantiated(&below.join("file")), [true; 3], "the default is inherited");
    assert!(fs::read(below.join("file")).expect("read") == vec![7; 1 << 20]);
    drop(file);
    system.finish();
}

#[test]
fn sixteen_tebibytes_are_sparse() {
    const SIZE: u64 = 16 << 40;
    let system = FileSystem::start(Transport::InProcess, 1);
    grow_in(system.root());
    let path = system.root().join("sparse");
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("create");
    file.set_len(SIZE).expect("truncate");
    assert_eq!(instantiated(&path), [true, false, true], "what lies between has no objects");
    let marks = [0, WATERMARKS[0] - 1, WATERMARKS[1] - 1, 1 << 40, SIZE - 3];
    for mark in marks {
        file.write_all_at(b"abc", mark).expect("write");
    }
    assert_eq!(file.metadata().expect("stat").size(), SIZE);
    assert!(file.metadata().expect("stat").blocks() * 512 < 1 << 20, "what was not written takes no space");
    let mut data = [0; 5];
    for mark in &marks[1..4] {
        file.read_exact_at(&mut data, mark - 1).expect("read");
        assert_eq!(&data, b"\0abc\0", "at {mark}");
    }
    assert_eq!(file.read_at(&mut data, SIZE - 3).expect("read"), 3);
    let next = |offset| rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(offset));
    assert_eq!(next(1 << 30), Ok(1 << 40));
    assert_eq!(next((1 << 40) + 65536), Ok((SIZE - 3) / 4096 * 4096));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(1 << 40)), Ok((1 << 40) + 4096));
    file.set_len(WATERMARKS[0] + 1).expect("cut");
    file.set_len(SIZE).expect("grow");
    assert_eq!(next(WATERMARKS[0] + 65536), Err(rustix::io::Errno::NXIO), "nothing comes back");
    drop(file);
    system.finish();
}

/// The MDS dies shortly before each watermark; the writer waits for it there and continues.
#[test]
fn a_writer_waits_at_a_watermark_for_a_killed_server() {
    const PIECE: usize = 8 << 10;
    const SIZE: u64 = 1 << 20;
    let mut system = FileSystem::start(Transport::Tcp, 2);
    grow_in(system.root());
    let (path, other) = (system.path(0).join("file"), system.path(1).join("file"));
    let file = File::create_new(&path).expect("create");
    let reader = File::open(&other).expect("open on the other client");
    let data: Vec<u8> = (0..SIZE).map(|at| (at / 251) as u8).collect();
    let (written, allowed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (piece, offset) in data.chunks(PIECE).zip((0..).step_by(PIECE)) {
                wait_for("leave to write", TIMEOUT, || (allowed.load(Ordering::Acquire) >= offset).then_some(()));
                file.write_all_at(piece, offset).expect("write");
                written.store(offset + piece.len() as u64, Ordering::Release);
            }
        });
        for watermark in WATERMARKS {
            allowed.store(watermark - PIECE as u64, Ordering::Release);
            wait_for("writes", TIMEOUT, || (written.load(Ordering::Acquire) == watermark).then_some(()));
            system.kill_server(MDS);
            // The next piece needs objects that nobody can give.
            allowed.store(watermark, Ordering::Release);
            system.start_server(MDS);
        }
        allowed.store(SIZE, Ordering::Release);
    });
    let mut found = vec![0; SIZE as usize];
    reader.read_exact_at(&mut found, 0).expect("read by one who knows the first layout");
    assert!(found == data);
    assert_eq!(instantiated(&other), [true; 3]);
    drop((file, reader));
    system.finish();
}
