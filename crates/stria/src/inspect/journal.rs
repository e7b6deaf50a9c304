//! Journal segments and their records.

use std::path::Path;

use anyhow::{Context, bail};
use kv::{
    Batch, Lsn, Operation,
    inspect::{Finding, Schema, describe},
    journal::{
        format::{HeaderState, Record},
        segment_slot,
    },
};

use super::{Report, device::ReadOnlyDirectory, target};

/// What a walk over the journal counts, between one segment's header and the next.
#[derive(Default)]
struct Segment {
    file: String,
    first: Option<Lsn>,
    last: Lsn,
    batches: u64,
    marks: u64,
    /// Records of an earlier use of the segment.
    stale: u64,
}

/// One segment by its path; its target, if it lies in one, knows what the tables are.
pub async fn inspect_segment(path: &Path, report: &mut Report<'_>) -> anyhow::Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| segment_slot(name).is_some());
    let (Some(name), Some(directory)) = (name, path.parent()) else {
        bail!("{} is not a journal segment", path.display());
    };
    let schema = target::schema_above(directory);
    report.verbose = true;
    walk(directory, Some(name), &*schema, report).await
}

/// All segments of a journal.
pub async fn inspect(directory: &Path, schema: &dyn Schema, report: &mut Report<'_>) -> anyhow::Result<()> {
    walk(directory, None, schema, report).await
}

async fn walk(
    directory: &Path,
    only: Option<&str>,
    schema: &dyn Schema,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let mut findings = Vec::new();
    let device = ReadOnlyDirectory::new(directory);
    let walked = kv::inspect::journal(&device, &mut |finding| {
        findings.push(finding);
        true
    })
    .await;
    walked.with_context(|| format!("cannot read the journal in {}", directory.display()))?;
    let (mut segment, mut shown) = (Segment::default(), false);
    for finding in findings {
        if let Finding::Segment { file, bytes, header } = finding {
            finish(&segment, shown, report)?;
            shown = only.is_none_or(|only| only == file);
            segment = Segment { file, ..Segment::default() };
            if shown {
                begin(&segment.file, bytes, header, report)?;
            }
            continue;
        }
        match finding {
            Finding::Record { offset, record, batch, current } if shown => {
                count(&mut segment, &record, current);
                show_record(offset, &record, batch, current, schema, report)?;
            }
            // A torn tail, or damage: what is behind the journal's end is judged when it is replayed.
            Finding::Unknown { offset, bytes } if shown => {
                report.line(format_args!("    {offset}: {bytes} bytes that are no record"))?;
            }
            _ => {}
        }
    }
    finish(&segment, shown, report)
}

fn begin(file: &str, bytes: u64, header: HeaderState, report: &mut Report<'_>) -> anyhow::Result<()> {
    match header {
        HeaderState::Valid(header) => report.line(format_args!(
            "  {file}: {bytes} bytes, sequence {}, from batch {}, store {:016x}",
            header.sequence, header.first.0, header.store
        )),
        HeaderState::Blank => report.line(format_args!("  {file}: {bytes} bytes, prepared")),
        HeaderState::UnknownVersion(version) => {
            report.damage(format_args!("{file}: format version {version} is not known"))
        }
        HeaderState::Invalid => report.damage(format_args!("{file}: the header does not verify")),
    }
}

fn finish(segment: &Segment, shown: bool, report: &mut Report<'_>) -> anyhow::Result<()> {
    let Segment { file, first, last, batches, marks, stale } = segment;
    if !shown || *batches + *marks + *stale == 0 {
        return Ok(());
    }
    match first {
        Some(first) => report.line(format_args!(
            "  {file}: batches {} to {} in {batches} records, {marks} marks, {stale} records of an earlier use",
            first.0, last.0
        )),
        None => report.line(format_args!("  {file}: no batches, {marks} marks, {stale} records of an earlier use")),
    }
}

fn count(segment: &mut Segment, record: &Record, current: bool) {
    match (current, record.is_mark()) {
        (false, _) => segment.stale += 1,
        (true, true) => segment.marks += 1,
        (true, false) => {
            segment.batches += 1;
            segment.first.get_or_insert(record.lsn);
            segment.last = record.lsn;
        }
    }
}

fn show_record(
    offset: u64,
    record: &Record,
    batch: Result<Batch, &'static str>,
    current: bool,
    schema: &dyn Schema,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let stale = if current { "" } else { ", of an earlier use" };
    let (lsn, flushed) = (record.lsn.0, record.flushed.0);
    let batch = match batch {
        Ok(batch) => batch,
        Err(problem) => return report.damage(format_args!("record at {offset}: batch {lsn}: {problem}")),
    };
    if !report.shows_entries() {
        return Ok(());
    }
    let concerned = |operation: &&Operation| {
        report.inode.is_none_or(|inode| {
            let value = match operation {
                Operation::Put(_, _, value) => value.as_ref(),
                Operation::Delete(..) => &[],
            };
            schema.concerns(operation.table(), operation.key(), value, inode.0)
        })
    };
    let operations: Vec<&Operation> = batch.operations.iter().filter(concerned).collect();
    if operations.is_empty() && report.inode.is_some() {
        return Ok(());
    }
    if record.is_mark() {
        return report.line(format_args!("    {offset}: mark: flushed through batch {flushed}{stale}"));
    }
    report.line(format_args!("    {offset}: batch {lsn}, flushed through {flushed}{stale}"))?;
    for operation in operations {
        let value = match operation {
            Operation::Put(_, _, value) => Some(value.as_ref()),
            Operation::Delete(..) => None,
        };
        match describe(schema, operation.table(), operation.key(), value) {
            Ok(text) => report.line(format_args!("      {text}"))?,
            Err(text) => report.damage(format_args!("in batch {lsn}: {text}"))?,
        }
    }
    Ok(())
}
