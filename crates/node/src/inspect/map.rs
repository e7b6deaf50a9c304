//! `stria inspect --map`: what an OST's device looks like, from the tables of the target.

use std::{
    fs::File,
    io::{Read, sink},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use kv::superblock::Superblock;
use oss::{
    device_label::DeviceLabel,
    device_map::{DeviceMap, MapBuilder, NoMap},
    inspect::OstSchema,
    superblock::target_name,
};
use types::{counted, limits::BLOCK_BYTES};

use super::{
    Fact, InspectionReport,
    parts::Parts,
    report::{FreeClass, PieceClass},
    tables, targets_at,
};
use crate::{
    config::Role,
    format,
    identity::{DirectoryLock, Identity},
};

/// Characters of a line, and lines.
const COLUMNS: usize = 64;
const CELLS: u32 = 32 * COLUMNS as u32;
/// The same of a drawing.
const DRAWN_COLUMNS: usize = 128;
const DRAWN_CELLS: u32 = 128 * DRAWN_COLUMNS as u32;

/// Files for drawings of a map.
#[derive(Clone, Debug, Default, Args)]
pub struct Drawings {
    /// With --map: also draw the bitmap, as an SVG picture in this file
    #[arg(long, value_name = "FILE", requires = "map")]
    svg: Option<PathBuf>,
    /// With --map: also draw the bitmap, as a PNG image in this file
    #[arg(long, value_name = "FILE", requires = "map")]
    png: Option<PathBuf>,
}

impl Drawings {
    fn are_wanted(&self) -> bool {
        self.svg.is_some() || self.png.is_some()
    }

    fn draw(&self, map: &DeviceMap) -> anyhow::Result<()> {
        let write = |path: &PathBuf, drawn: &[u8]| {
            std::fs::write(path, drawn).with_context(|| format!("cannot write {}", path.display()))
        };
        self.svg.as_ref().map_or(Ok(()), |path| write(path, map.svg(DRAWN_COLUMNS).as_bytes()))?;
        self.png.as_ref().map_or(Ok(()), |path| write(path, &map.png(DRAWN_COLUMNS)))
    }
}

/// Shows maps of the targets in a directory, or of the target there, that have devices; that of the
/// only one also in drawings.
pub async fn inspect(path: &Path, drawings: &Drawings, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
    if !path.is_dir() && !format::is_target(path) {
        return Err(not_a_directory(path));
    }
    let targets = targets_at(path)?;
    let has_objects = |target: &PathBuf| Identity::load(target).is_ok_and(|identity| identity.role == Role::Ost);
    let osts: Vec<PathBuf> = targets.into_iter().filter(has_objects).collect();
    match osts.len() {
        0 => bail!("there is no object storage target in {}: only these have devices", path.display()),
        1 => {}
        _ if drawings.are_wanted() => {
            bail!("there are several targets in {}: name the directory of one", path.display())
        }
        _ => {}
    }
    let mut without = None;
    let mut shown = 0;
    for ost in &osts {
        report.begin(ost);
        match map_of(ost, drawings, report).await? {
            Ok(map) => {
                show(ost, &map, report)?;
                shown += 1;
            }
            Err(NoMap::Superblock) => report.damage(format_args!("{}: {}", ost.display(), NoMap::Superblock))?,
            Err(why) => without = Some(why),
        }
    }
    match without.filter(|_| shown == 0) {
        Some(why) => Err(why.into()),
        None => Ok(()),
    }
}

/// The error that a path is not one of a target; a device has a label that says more.
fn not_a_directory(path: &Path) -> anyhow::Error {
    let mut block = vec![0; BLOCK_BYTES as usize];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut block));
    match read.map(|()| DeviceLabel::decode(&block)) {
        Ok(Ok(label)) => anyhow::anyhow!(
            "{} is the device of {}: its map is in the tables of that target; name the target's directory",
            path.display(),
            target_name(&label.fsname, label.index)
        ),
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            anyhow::Error::new(error).context(format!("cannot inspect {}", path.display()))
        }
        _ => anyhow::anyhow!("{} is not the directory of a target", path.display()),
    }
}

/// The map of a target; damage of its tables is reported, and left out of it.
async fn map_of(
    directory: &Path,
    drawings: &Drawings,
    report: &mut InspectionReport<'_>,
) -> anyhow::Result<Result<DeviceMap, NoMap>> {
    let _lock = DirectoryLock::share(directory)?;
    let parts = Parts::of(directory)?;
    let superblock = Superblock::read(&*parts.journal()?).await;
    let superblock = superblock.with_context(|| format!("{}: cannot read the journal", directory.display()))?;
    let mut text = MapBuilder::new(CELLS);
    let mut drawing = drawings.are_wanted().then(|| MapBuilder::new(DRAWN_CELLS));
    let visit: tables::Visitor<'_> = &mut |table, key, value| {
        text.note(table, key, value);
        if let Some(drawing) = &mut drawing {
            drawing.note(table, key, value);
        }
    };
    let mut nothing = sink();
    let mut entries = InspectionReport::new(&mut nothing, false, false, None);
    tables::inspect(&parts, superblock.as_ref(), &OstSchema, &mut entries, visit).await?;
    match entries.finish()? {
        0 => {}
        damage => report.damage(format_args!(
            "{} in the tables, left out of the map; stria inspect {} names them",
            counted(damage, "damaged place"),
            directory.display()
        ))?,
    }
    if let Some(Ok(map)) = drawing.map(MapBuilder::finish) {
        drawings.draw(&map)?;
    }
    Ok(text.finish())
}

fn show(directory: &Path, map: &DeviceMap, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
    let (blocks, free, objects) = (map.blocks(), &map.free, &map.objects);
    let fact = || Fact::Map {
        name: map.target.clone(),
        blocks,
        free: free.blocks(),
        free_runs: free.runs(),
        longest: free.longest(),
        fragmentation: free.score(),
        free_classes: free.classes().map(|(class, runs, blocks)| FreeClass { class, runs, blocks }).collect(),
        objects: objects.objects(),
        pieces: objects.pieces(),
        layout_score: objects.score(),
        piece_classes: objects.classes().map(|(min, max, objects)| PieceClass { min, max, objects }).collect(),
    };
    report.line(fact, format_args!("{}", describe(directory, map)))
}

/// The map for people.
fn describe(directory: &Path, map: &DeviceMap) -> String {
    let (blocks, free, objects) = (map.blocks(), &map.free, &map.objects);
    let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    let mut text = format!(
        "{} in {}: {} of {} KiB in {}, {:.1}% used\n\nbitmap, {} KiB a character (blank: free, full: used):\n",
        map.target,
        directory.display(),
        counted(blocks, "block"),
        BLOCK_BYTES >> 10,
        counted(u64::from(map.groups()), "allocation group"),
        percent(blocks - free.blocks().min(blocks), blocks),
        map.cell_bytes() >> 10
    );
    map.text(COLUMNS).lines().for_each(|line| text += &format!("|{line}|\n"));
    text += &format!(
        "\nfree space: {} in {}, the longest of {}; fragmentation {:.0} of 100\n  length        runs     blocks  percent\n",
        counted(free.blocks(), "block"),
        counted(free.runs(), "run"),
        counted(free.longest(), "block"),
        free.score()
    );
    for (class, runs, in_class) in free.classes().filter(|(_, runs, _)| *runs > 0) {
        text += &format!("  {class:<9}{runs:>9}{in_class:>11}{:>9.2}\n", percent(in_class, free.blocks()));
    }
    text += &format!(
        "\nobjects: {} with {} in {}; layout score {:.3}\n",
        objects.objects(),
        counted(objects.blocks(), "block"),
        counted(objects.pieces(), "piece"),
        objects.score()
    );
    if let Some((object, most)) = objects.most() {
        text += "  pieces     objects\n";
        for (min, max, objects) in objects.classes() {
            let range = match (min, max) {
                (1 | 2, _) => min.to_string(),
                (_, u64::MAX) => format!("{min}-"),
                _ => format!("{min}-{max}"),
            };
            text += &format!("  {range:<9}{objects:>9}\n");
        }
        text += &format!("  most: {} of object {object}\n", counted(most, "piece"));
    }
    text
}
