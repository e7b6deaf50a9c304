//! `stria demo`: the demonstration on real files, with progress, compared with the same work on the
//! local disk; cleans up afterwards.

mod work;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table};
use lfs::explain::{self, ExplainArgs, Speeds};
use types::counted;

use crate::bench::{
    fdatasync::fdatasync_rate,
    leftovers::Place,
    report::STYLE,
    systems::{System, SystemKind},
    tree,
};
use work::{Rates, Work};

/// Fewest and most names a tree should have to be shown without being asked for.
const TREE_NAMES: std::ops::RangeInclusive<u64> = 2_000..=60_000;

/// Arguments of `stria demo`.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// Directory for the temporary file system, on the disk to be measured
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Tree to copy [default: a source tree found on this host]
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Size of the large file in MiB
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    pub large_mib: u64,
    /// Number of object storage targets
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub osts: u16,
}

/// Runs `stria demo`.
pub fn run(arguments: &DemoArgs) -> anyhow::Result<()> {
    let tree = arguments.tree.clone().map_or_else(find_tree, Ok)?;
    let place = Place::new("stria-demo-", arguments.dir.as_deref())?;
    let work = Work::plan(&tree, arguments.large_mib << 20)?;
    refuse_small_disk(place.path(), &work)?;
    let sync_rate = fdatasync_rate(place.path())?;
    println!("Bringing up a file system: 1 MDT, {}, mounted ...", counted(arguments.osts, "OST"));
    let system = System::start(SystemKind::Mount, place.path().join("stria"), arguments.osts)?;
    let mount = system.directory.clone().context("the system is mounted")?;
    println!("mounted at {}\n", mount.display());

    println!("The work: {}", work.describe());
    let ours = work.run(&mount, "StriaFS")?;
    let large = mount.join(work::LARGE_NAME);
    println!("\n$ stria explain {}", large.display());
    explain::run(&ExplainArgs {
        paths: vec![large],
        service: None,
        run_dir: None,
        json: false,
        speeds: Speeds::default(),
    })?;
    println!("\n$ lfs df -h {}", mount.display());
    lfs_shown(&["df", "-h"], &mount)?;
    println!();
    drop(system);
    let local_directory = place.path().join("local");
    std::fs::create_dir(&local_directory)?;
    let local = work.run(&local_directory, "local disk")?;
    println!("\n{}", table(&ours, &local));
    println!(
        "The disk makes {sync_rate:.0} fdatasyncs per second. All {} files agree with their originals.",
        work.files()
    );
    drop(place);
    println!("Unmounted and cleaned up. To keep a file system: stria up --mount /mnt/stria");
    Ok(())
}

fn lfs_shown(words: &[&str], path: &Path) -> anyhow::Result<()> {
    let arguments: Vec<OsString> = words.iter().map(OsString::from).chain([path.into()]).collect();
    match lfs::main(&arguments) {
        0 => Ok(()),
        status => bail!("lfs {} {} failed with status {status}", words.join(" "), path.display()),
    }
}

fn refuse_small_disk(place: &Path, work: &Work) -> anyhow::Result<()> {
    let space = rustix::fs::statvfs(place)?;
    let (free, needed) = (space.f_bavail * space.f_frsize, work.bytes() * 5 / 2);
    if free < needed {
        bail!(
            "{} has {} MiB free; the demo needs {} MiB (choose another --dir or a smaller --large-mib)",
            place.display(),
            free >> 20,
            needed >> 20
        );
    }
    Ok(())
}

fn table(ours: &Rates, local: &Rates) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(["", "StriaFS", "local disk", "ratio"]);
    for column in 1..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let rows = [
        ("copy the tree in, then sync", ours.copy_tree, local.copy_tree, "files/s"),
        ("write the large file, fsync", ours.write_large, local.write_large, "MiB/s"),
        ("walk the tree", ours.walk, local.walk, "names/s"),
        ("read the tree back, compare", ours.read_tree, local.read_tree, "files/s"),
        ("read the large file, compare", ours.read_large, local.read_large, "MiB/s"),
    ];
    for (name, ours, local, unit) in rows {
        let ratio = format!("{:.2}", ours / local.max(1e-9));
        table.add_row([name.to_owned(), format!("{ours:.0} {unit}"), format!("{local:.0} {unit}"), ratio]);
    }
    table
}

/// A tree of thousands of files that most hosts have.
pub fn find_tree() -> anyhow::Result<PathBuf> {
    const CANDIDATES: &[&str] = &["/usr/include", "/usr/share/perl", "/usr/lib/python3", "/usr/share/doc", "/etc"];
    let fits = |path: &&&str| tree::walk(Path::new(path)).is_ok_and(|names| TREE_NAMES.contains(&names));
    match CANDIDATES.iter().find(fits) {
        Some(path) => Ok(PathBuf::from(path)),
        None => bail!("found no tree of a few thousand files on this host; name one with --tree DIR"),
    }
}
