//! Renames by all mounts in directories that are striped over several MDTs, each a process of its
//! own, while these are killed and started again: no name is lost or doubled.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::ScopedJoinHandle,
    time::{Duration, Instant},
};

use crate::{
    accidents::{SLACK, WAIT_MAX},
    common::{FileSystem, load::Random, wait::End, wait_for},
    duration, mounts,
    owned::Owned,
    setting,
    tokens::Tokens,
};

const MDTS: u16 = 4;
/// MDTs that are killed first, together; then others are drawn.
const FIRST: [&[u16]; 3] = [&[0], &[1, 2], &[3]];
/// Changes by each worker between two accidents, at least.
const CHANGES_BETWEEN: u64 = 10;
/// An MDT that was killed starts after so long, at most.
const ABSENCE_MAX_MS: u64 = 1000;

/// Directories that all workers use, as commands make them: striped over all MDTs by the default of
/// the root, and in other ways.
const HOMES: [&str; 4] = ["mkdir", "lfs mkdir -c -1 -H crush", "lfs mkdir -c 2 -i 1", "lfs mkdir -c 1 -i 1"];

#[test]
fn renames_lose_and_double_no_name_while_mdts_are_killed() {
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut system = FileSystem::start_with_mdts_apart(mounts(), MDTS);
    system.shell("cd $A && lfs setdirstripe -D -c -1 -X -1 . && mkdir storm").succeed();
    let homes: Vec<String> = (0..HOMES.len()).map(|home| format!("home{home}")).collect();
    for (home, command) in homes.iter().zip(HOMES) {
        system.shell(&format!("cd $A/storm && {command} {home}")).succeed();
    }
    let points: Vec<_> = (0..mounts()).map(|mount| system.path(mount).join("storm")).collect();
    let seed = setting("STRIA_STORM_SEED", 1);
    let tokens = Tokens::make(&points[0], &homes);
    let mut owned: Vec<Owned> = (0..mounts()).map(|worker| Owned::new(worker, &points, &homes, seed)).collect();
    let (is_over, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    let progress: Vec<AtomicU64> = owned.iter().map(|_| AtomicU64::new(0)).collect();
    let mut accidents = 0;
    std::thread::scope(|scope| {
        let end = End(&is_over);
        let mut workers = Vec::new();
        for ((owned, done), point) in owned.iter_mut().zip(&progress).zip(&points) {
            let seed = seed << 8 | workers.len() as u64;
            let (tokens, is_over, moves) = (&tokens, &is_over, &moves);
            workers.push(scope.spawn(move || owned.work(is_over, done)));
            workers.push(scope.spawn(move || tokens.work(point, seed, is_over, moves)));
        }
        let (begun, mut random) = (Instant::now(), Random(seed));
        while begun.elapsed() < duration() || accidents < FIRST.len() {
            wait_for_changes(&progress, &workers);
            let servers: Vec<usize> =
                draw_victims(accidents, &mut random).into_iter().map(|mdt| system.server_of_mdt(mdt)).collect();
            servers.iter().for_each(|server| system.kill_server(*server));
            std::thread::sleep(Duration::from_millis(random.below(ABSENCE_MAX_MS)));
            servers.iter().for_each(|server| system.start_server(*server));
            accidents += 1;
        }
        wait_for_changes(&progress, &workers);
        drop(end);
        workers.into_iter().for_each(|worker| worker.join().expect("every answer is right"));
    });
    let names: usize = owned.iter_mut().map(Owned::expect_same).sum();
    points.iter().for_each(|point| tokens.expect_all(point));
    let changes: u64 = progress.iter().map(|done| done.load(Ordering::SeqCst)).sum();
    let moves = moves.load(Ordering::SeqCst);
    println!("{changes} changes and {moves} moves, {accidents} accidents; {names} names are left");
    assert!(names > 0 && moves > 0, "{names} names, {moves} moves");
    system.finish();
}

/// Later, one or two, all but one, or all.
fn draw_victims(accident: usize, random: &mut Random) -> Vec<u16> {
    if let Some(first) = FIRST.get(accident) {
        return first.to_vec();
    }
    let mut all: Vec<u16> = (0..MDTS).collect();
    all.rotate_left(random.below(u64::from(MDTS)) as usize);
    all.truncate([1, 1, 1, 2, 2, 3, 4][random.below(7) as usize]);
    all
}

/// Waits until each worker has changed something since: none waits for ever.
fn wait_for_changes(progress: &[AtomicU64], workers: &[ScopedJoinHandle<'_, ()>]) {
    let goals: Vec<u64> = progress.iter().map(|done| done.load(Ordering::SeqCst) + CHANGES_BETWEEN).collect();
    wait_for("changes by all workers", WAIT_MAX + SLACK, || {
        let are_there = progress.iter().zip(&goals).all(|(done, goal)| done.load(Ordering::SeqCst) >= *goal);
        (are_there || workers.iter().any(ScopedJoinHandle::is_finished)).then_some(())
    });
    assert!(!workers.iter().any(ScopedJoinHandle::is_finished), "a worker found something wrong");
}
