//! Mounts that are stopped or killed while they hold locks: the others go on within the stated time
//! (docs/semantics.md, "A client that is cut off"), and what was stopped shows nothing old when it
//! continues.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    at_once::{expect_one_tree, prepare, start_workers},
    common::{FileSystem, load::Random, wait::End},
    duration, mounts,
    registers::{KINDS, Kind, Register},
    setting, start,
};

/// Lease of a client, and the time in which it has to answer a callback: a change waits for at most
/// both of them. As stated in docs/semantics.md.
pub const WAIT_MAX: Duration = Duration::from_secs(30 + 20);
/// What a busy machine may take on top of it.
pub const SLACK: Duration = Duration::from_secs(15);

fn pid(system: &FileSystem, mount: usize) -> Pid {
    Pid::from_raw(system.client_pid(mount) as i32).expect("a process has a number")
}

fn signal(system: &FileSystem, mount: usize, signal: Signal) {
    kill_process(pid(system, mount), signal).expect("the process is there");
}

/// A mount that is stopped, and continues by itself.
pub struct Stopped(JoinHandle<()>);

impl Stopped {
    /// Stops a mount for some time.
    pub fn begin(system: &FileSystem, mount: usize, time: Duration) -> Self {
        let pid = pid(system, mount);
        kill_process(pid, Signal::STOP).expect("the process is there");
        Self(std::thread::spawn(move || {
            std::thread::sleep(time);
            kill_process(pid, Signal::CONT).expect("the process is there");
        }))
    }

    /// Whether it has continued.
    pub fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until it has continued.
    pub fn end(self) {
        self.0.join().expect("the process is there");
    }
}

/// A register of each kind, which the last mounts have looked at twice.
fn cached_registers(points: &[PathBuf], holders: &[usize]) -> Vec<Register> {
    let registers: Vec<Register> = KINDS.iter().map(|kind| Register::make(*kind, 0, &points[0])).collect();
    for register in &registers {
        register.write(&points[0], 1).expect("write");
        for holder in holders.iter().chain(holders) {
            register.look(&points[*holder]).expect("look").expect("nothing is stale");
        }
    }
    registers
}

/// Writes the next number to all registers; how long the slowest took.
fn write_all(points: &[PathBuf], registers: &[Register], number: u64) -> Duration {
    // All at once: each waits for the same client.
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let write = |register| scope.spawn(move || Register::write(register, &points[0], number).expect("write"));
        let writers: Vec<_> = registers.iter().map(write).collect();
        writers.into_iter().for_each(|writer| writer.join().expect("a write"));
        begun.elapsed()
    })
}

#[test]
fn a_stopped_mount_delays_others_for_the_stated_time_and_shows_nothing_old() {
    let (system, points) = start();
    let stopped = points.len() - 1;
    let registers = cached_registers(&points, &[stopped, 1]);
    signal(&system, stopped, Signal::STOP);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = End(&is_over);
        // They wait for the stopped process, or are answered from what the kernel may still serve:
        // old until the change is made, and never after.
        let lookers: Vec<_> = registers
            .iter()
            .map(|register| {
                let (root, is_over) = (&points[stopped], &is_over);
                scope.spawn(move || {
                    let mut stale = Vec::new();
                    while !is_over.load(Ordering::SeqCst) {
                        // An error is no stale answer: the client may have been evicted.
                        if let Ok(Err(old)) = register.look(root) {
                            stale.push(old);
                        }
                    }
                    stale
                })
            })
            .collect();
        let took = write_all(&points, &registers, 2);
        assert!(took < WAIT_MAX + SLACK, "changes waited {took:?} for a stopped client");
        for register in &registers {
            for point in &points[..stopped] {
                register.look(point).expect("look").expect("nothing is stale");
            }
        }
        signal(&system, stopped, Signal::CONT);
        // It comes back by itself, and is one of all again.
        let begun = Instant::now();
        for number in 3..20 {
            write_all(&points, &registers, number);
        }
        let is_back = |register: &Register| matches!(register.look(&points[stopped]), Ok(Ok(())));
        while !registers.iter().all(is_back) {
            assert!(begun.elapsed() < WAIT_MAX + SLACK, "the client does not come back");
        }
        drop(end);
        let stale: Vec<String> = lookers.into_iter().flat_map(|looker| looker.join().expect("looks end")).collect();
        assert!(stale.is_empty(), "{stale:#?}");
    });
    system.finish();
}

#[test]
fn a_killed_mount_delays_others_for_the_stated_time() {
    let (mut system, points) = start();
    let killed = points.len() - 1;
    let registers = cached_registers(&points, &[killed]);
    system.kill_client(killed);
    let took = write_all(&points, &registers, 2);
    assert!(took < WAIT_MAX + SLACK, "changes waited {took:?} for a killed client");
    system.mount(killed);
    for register in &registers {
        register.look(&points[killed]).expect("look").expect("nothing is stale");
    }
    system.finish();
}

/// For as long as `./test soak` says, or one accident of each kind at least.
#[test]
fn accidents_in_the_storm_leave_one_tree() {
    let (mut system, points) = start();
    let registers = prepare(&points);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = End(&is_over);
        // Operations of a mount that is killed fail; nothing may be stale.
        let workers = start_workers(scope, &points, &registers, &is_over, |_, _| {});
        let (begun, mut random) = (Instant::now(), Random(setting("STRIA_STORM_SEED", 1)));
        let mut accident = 0u64;
        while begun.elapsed() < duration() || accident < 3 {
            // The first mount lives, so that the others always have somebody to agree with.
            let victim = 1 + random.below(mounts() as u64 - 1) as usize;
            let time = Duration::from_secs(1 + random.below(setting("STRIA_STORM_STOP_SECONDS", 3)));
            match accident % 3 {
                0 => Stopped::begin(&system, victim, time).end(),
                1 => {
                    system.kill_client(victim);
                    system.mount(victim);
                }
                _ => std::thread::sleep(time),
            }
            accident += 1;
        }
        drop(end);
        for worker in workers {
            worker.join().expect("no worker panics").unwrap_or_else(|stale| panic!("{stale}"));
        }
    });
    for register in registers.iter().flatten().filter(|register| register.kind != Kind::Name) {
        for point in &points {
            register.look(point).expect("look").expect("nothing is stale");
        }
    }
    expect_one_tree(&points);
    system.finish();
}
