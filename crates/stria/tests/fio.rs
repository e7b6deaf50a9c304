//! fio writes at random and reads back what it wrote, with checksums: through system calls,
//! directly and not, and mapped.

mod common;

use common::{FileSystem, Transport, layouts::grow_in, programs::program};

/// Jobs: name and options. Each has several processes with files of their own.
const JOBS: &[(&str, &str)] = &[
    ("direct", "--rw=randwrite --direct=1 --ioengine=libaio --iodepth=8 --bs=4k"),
    ("direct-large", "--rw=randwrite --direct=1 --ioengine=libaio --iodepth=4 --bsrange=64k-1m"),
    ("unaligned", "--rw=randwrite --direct=0 --ioengine=psync --bsrange=512-128k --bs_unaligned"),
    ("mixed", "--rw=randrw --direct=0 --ioengine=psync --bsrange=4k-64k --fsync=64"),
    ("mapped", "--rw=randwrite --ioengine=mmap --bsrange=4k-32k"),
];

fn run(transport: Transport, clients: usize, grows: bool) {
    let system = FileSystem::start(transport, clients);
    if grows {
        grow_in(system.root());
    }
    std::thread::scope(|scope| {
        for client in 0..clients {
            let directory = system.path(client).join(format!("client{client}"));
            std::fs::create_dir(&directory).expect("directory");
            scope.spawn(move || {
                for (name, options) in JOBS {
                    let common =
                        "--size=16m --numjobs=3 --group_reporting --verify=crc32c --verify_fatal=1 --do_verify=1
                        --randseed=7 --fallocate=none --output-format=terse";
                    program("fio")
                        .arg(format!("--name={name}"))
                        .arg(format!("--directory={}", directory.display()))
                        .args(options.split_whitespace().chain(common.split_whitespace()))
                        .within(&directory)
                        .succeed();
                }
            });
        }
    });
    system.finish();
}

#[test]
fn what_fio_wrote_it_reads_in_one_process() {
    run(Transport::InProcess, 1, false);
}

#[test]
fn what_fio_wrote_it_reads_over_tcp() {
    run(Transport::Tcp, 2, false);
}

#[test]
fn what_fio_wrote_over_components_it_reads() {
    run(Transport::InProcess, 1, true);
}
