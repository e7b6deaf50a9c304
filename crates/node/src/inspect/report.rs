//! Where the findings of `stria inspect` go: lines for people, or a JSON object each.

use std::{fmt::Arguments, io::Write, path::Path};

use serde::Serialize;
use types::InodeNumber;

/// A finding, for programs. `text` is what people are told; its wording may change, the other
/// fields do not.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are described in the help of the command")]
pub enum Fact<'a> {
    Identity {
        name: String,
        fsname: String,
        format_version: u32,
        uuid: String,
    },
    Store {
        store: String,
        version: u32,
        segment_bytes: u64,
        opened: u64,
    },
    Segment {
        file: &'a str,
        bytes: u64,
        sequence: Option<u64>,
        first_batch: Option<u64>,
        store: Option<String>,
    },
    Batches {
        file: &'a str,
        first: Option<u64>,
        last: Option<u64>,
        batches: u64,
        marks: u64,
        stale: u64,
    },
    Record {
        offset: u64,
        batch: u64,
        flushed: u64,
        mark: bool,
        stale: bool,
    },
    Operation {
        text: String,
    },
    Unknown {
        offset: u64,
        bytes: u64,
        stale: bool,
    },
    ColdStore {
        batch: u64,
        store: String,
    },
    Replay {
        batches: u64,
        last: u64,
    },
    Entry {
        table: Option<&'a str>,
        text: String,
    },
    Table {
        table: &'a str,
        entries: u64,
        bytes: u64,
        damaged: u64,
    },
    HostFile {
        file: &'a str,
        object: String,
        bytes: u64,
        of_no_object: bool,
    },
    HostFiles {
        files: u64,
        bytes: u64,
        of_no_object: u64,
    },
    Blocks {
        object: String,
        verified: u64,
        blocks: u64,
    },
    Map {
        name: String,
        blocks: u64,
        free: u64,
        free_runs: u64,
        longest: u64,
        fragmentation: f64,
        free_classes: Vec<FreeClass>,
        objects: u64,
        pieces: u64,
        layout_score: f64,
        piece_classes: Vec<PieceClass>,
    },
    Damage {
        text: String,
    },
    Summary {
        targets: u64,
        damage: u64,
    },
}

/// Free runs of a device within a class of lengths.
#[derive(Debug, Serialize)]
pub struct FreeClass {
    /// As `e2freefrag` names it: `1M-2M`.
    pub class: String,
    /// How many.
    pub runs: u64,
    /// Their blocks.
    pub blocks: u64,
}

/// Objects in `min` to `max` pieces.
#[derive(Debug, Serialize)]
pub struct PieceClass {
    /// Fewest pieces.
    pub min: u64,
    /// Most pieces.
    pub max: u64,
    /// How many objects.
    pub objects: u64,
}

/// A line: a finding and the target it is in; null in the summary of all.
#[derive(Serialize)]
struct Line<'a> {
    target: Option<&'a str>,
    #[serde(flatten)]
    fact: Fact<'a>,
}

/// Where findings go.
pub struct InspectionReport<'o> {
    output: &'o mut (dyn Write + Send),
    json: bool,
    /// Everything, not only totals.
    pub verbose: bool,
    /// Only what concerns this inode.
    pub inode: Option<InodeNumber>,
    /// What is looked at.
    target: Option<String>,
    targets: u64,
    damage: u64,
}

impl<'o> InspectionReport<'o> {
    /// A report without findings.
    pub fn new(output: &'o mut (dyn Write + Send), json: bool, verbose: bool, inode: Option<InodeNumber>) -> Self {
        Self { output, json, verbose, inode, target: None, targets: 0, damage: 0 }
    }

    /// What follows is about this target or segment.
    pub fn begin(&mut self, path: &Path) {
        self.target = Some(path.to_string_lossy().into_owned());
        self.targets += 1;
    }

    /// A finding: for programs `fact`, for people `text`.
    pub fn line<'f>(&mut self, fact: impl FnOnce() -> Fact<'f>, text: Arguments<'_>) -> anyhow::Result<()> {
        if !self.json {
            return Ok(writeln!(self.output, "{text}")?);
        }
        let line = serde_json::to_string(&Line { target: self.target.as_deref(), fact: fact() })?;
        Ok(writeln!(self.output, "{line}")?)
    }

    /// What only people need: which part begins.
    pub fn heading(&mut self, text: Arguments<'_>) -> anyhow::Result<()> {
        if self.json { Ok(()) } else { Ok(writeln!(self.output, "{text}")?) }
    }

    /// Something that is not as it should be.
    pub fn damage(&mut self, text: Arguments<'_>) -> anyhow::Result<()> {
        self.damage += 1;
        self.line(|| Fact::Damage { text: text.to_string() }, format_args!("DAMAGED {text}"))
    }

    /// Whether single records and entries are shown, if they concern the inode asked for.
    pub fn shows_entries(&self) -> bool {
        self.verbose || self.inode.is_some()
    }

    /// Ends the report; returns how many places are damaged.
    pub fn finish(&mut self) -> anyhow::Result<u64> {
        self.target = None;
        let (targets, damage) = (self.targets, self.damage);
        let verdict = match damage {
            0 => "no damage found".to_owned(),
            1 => "1 damaged place".to_owned(),
            count => format!("damage found in {count} places"),
        };
        self.line(|| Fact::Summary { targets, damage }, format_args!("{verdict}"))?;
        Ok(self.output.flush().map(|()| damage)?)
    }
}
