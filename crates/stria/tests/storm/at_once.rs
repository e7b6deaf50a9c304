//! All mounts at once: random operations in one tree, and registers in which everybody sees at
//! least what anybody has seen. At the end all mounts show the same tree.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread::{Scope, ScopedJoinHandle},
};

use lab::reference::{Generator, Local, Operation, Outcome, Shape};

use crate::{
    common::wait::End,
    duration,
    registers::{KINDS, Register},
    start,
};

/// One mount's part: changes its registers, looks at all, and does random operations in the tree.
/// `is_over`: when it ends. Errors are for the caller to judge; staleness is not.
fn work(
    mount: usize,
    root: &Path,
    registers: &[Vec<Register>],
    is_over: &AtomicBool,
    mut failed: impl FnMut(&str),
) -> Result<u64, String> {
    let (local, generator) = (Local::new(root.join("tree")), generator(mount as u64));
    let mut rounds = 0;
    while !is_over.load(Ordering::SeqCst) {
        for register in &registers[mount] {
            if let Err(error) = register.write(root, register.known() + 1) {
                failed(&format!("{:?}: {error}", register.kind));
            }
        }
        for register in registers.iter().flatten() {
            match register.look(root) {
                Ok(seen) => seen?,
                Err(error) => failed(&format!("{:?}: {error}", register.kind)),
            }
        }
        for _ in 0..5 {
            // Others change the same names: any answer may be right.
            local.apply(&generator.operation());
        }
        rounds += 1;
    }
    Ok(rounds)
}

/// Starts the part of each mount. `failed`: what becomes of errors of a mount.
pub fn start_workers<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    points: &'scope [PathBuf],
    registers: &'scope [Vec<Register>],
    is_over: &'scope AtomicBool,
    failed: impl Fn(usize, &str) + Copy + Send + 'scope,
) -> Vec<ScopedJoinHandle<'scope, Result<u64, String>>> {
    let start = |(mount, root): (usize, &'scope PathBuf)| {
        scope.spawn(move || work(mount, root, registers, is_over, |error| failed(mount, error)))
    };
    points.iter().enumerate().map(start).collect()
}

fn generator(seed: u64) -> Generator {
    Generator::new(seed, Shape { names: 3, depth: 2, bytes_max: 70_000, prefix: String::new() })
}

/// Registers of all mounts, and the tree, made through the first.
pub fn prepare(points: &[PathBuf]) -> Vec<Vec<Register>> {
    std::fs::create_dir(points[0].join("tree")).expect("a new directory");
    let of_mount = |mount: usize| KINDS.iter().map(|kind| Register::make(*kind, mount, &points[0])).collect();
    (0..points.len()).map(of_mount).collect()
}

/// All that a mount shows of the tree.
fn tree(root: &Path) -> Vec<(String, Outcome, Outcome)> {
    let local = Local::new(root.join("tree"));
    let (mut shown, mut pending) = (Vec::new(), vec![String::new()]);
    while let Some(path) = pending.pop() {
        let stat = local.apply(&Operation::Stat { path: path.clone() });
        let list = local.apply(&Operation::List { path: path.clone() });
        if let Outcome::Names(names) = &list {
            let below = |name: &String| if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            pending.extend(names.iter().map(below));
        }
        let contents = match list {
            Outcome::Names(_) => list,
            _ => local.apply(&Operation::Read { path: path.clone(), offset: 0, bytes: 1 << 20 }),
        };
        shown.push((path, stat, contents));
    }
    shown
}

/// Every mount shows the same tree.
pub fn expect_one_tree(points: &[PathBuf]) {
    let first = tree(&points[0]);
    for point in &points[1..] {
        let other = tree(point);
        assert!(other == first, "{} shows {other:?}\n{} shows {first:?}", point.display(), points[0].display());
    }
}

#[test]
fn mounts_at_once_see_what_anybody_has_seen() {
    let (system, points) = start();
    let registers = prepare(&points);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = End(&is_over);
        let workers = start_workers(scope, &points, &registers, &is_over, |mount, error| {
            // A directory that is read in several calls while its only name changes.
            assert!(error.starts_with("Name") && error.ends_with("names"), "mount {mount}: {error}");
        });
        std::thread::sleep(duration());
        drop(end);
        for worker in workers {
            let rounds = worker.join().expect("no operation fails").unwrap_or_else(|stale| panic!("{stale}"));
            assert!(rounds > 0, "every mount gets to work");
        }
    });
    expect_one_tree(&points);
    system.finish();
}
