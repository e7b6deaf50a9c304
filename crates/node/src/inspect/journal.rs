//! Journal segments and their records.

use std::path::Path;

use anyhow::{Context, bail};
use kv::{
    Lsn, Operation,
    inspect::{Finding, Schema, describe, describe_patch},
    journal::{
        format::{HeaderState, Record},
        logged::LoggedOperation,
        segment_slot,
    },
};
use rt::Device;
use types::counted;

use super::{Fact, InspectionReport, device::ReadOnlyDirectory, parts::Parts, target};

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

/// One segment by its path; its target, if it belongs to one, determines the tables.
pub async fn inspect_segment(path: &Path, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| segment_slot(name).is_some());
    let (Some(name), Some(directory)) = (name, path.parent()) else {
        bail!("{} is not a journal segment", path.display());
    };
    let schema = target::schema_above(directory);
    report.verbose = true;
    let device = ReadOnlyDirectory::new(directory);
    walk((&device, directory), Some(name), &*schema, report).await
}

/// All segments of a journal.
pub async fn inspect(parts: &Parts, schema: &dyn Schema, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
    walk((&*parts.journal()?, &parts.journal_path()), None, schema, report).await
}

async fn walk(
    (device, path): (&dyn Device, &Path),
    only: Option<&str>,
    schema: &dyn Schema,
    report: &mut InspectionReport<'_>,
) -> anyhow::Result<()> {
    let mut findings = Vec::new();
    let walked = kv::inspect::journal(device, &mut |finding| {
        findings.push(finding);
        true
    })
    .await;
    walked.with_context(|| format!("cannot read the journal in {}", path.display()))?;
    let (mut segment, mut shown) = (Segment::default(), false);
    let followed = followed_by_the_same_use(&findings);
    for (finding, followed) in findings.into_iter().zip(followed) {
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
            Finding::Record { offset, record, operations, current } if shown => {
                count(&mut segment, &record, current);
                show_record(offset, &record, operations, current, schema, report)?;
            }
            // Whether something is lost by it is judged when the journal is replayed.
            Finding::Unknown { offset, bytes } if shown => {
                let what = match followed {
                    true => "that are not a record, before records of the same use",
                    false => "after the journal's end, left by an earlier use or a write that was cut off",
                };
                report.line(
                    || Fact::Unknown { offset, bytes, stale: !followed },
                    format_args!("    {offset}: {bytes} bytes {what}"),
                )?;
            }
            _ => {}
        }
    }
    finish(&segment, shown, report)
}

/// For each finding whether a record of its segment's present use comes after it.
fn followed_by_the_same_use(findings: &[Finding]) -> Vec<bool> {
    let sequence_of = |finding: &Finding| match finding {
        Finding::Segment { header: HeaderState::Valid(header), .. } => Some(Some(header.sequence)),
        Finding::Segment { .. } => Some(None),
        Finding::Record { .. } | Finding::Unknown { .. } => None,
    };
    let mut present = None;
    let uses: Vec<bool> = findings
        .iter()
        .map(|finding| {
            present = sequence_of(finding).unwrap_or(present);
            matches!(finding, Finding::Record { record, .. } if Some(record.sequence) == present)
        })
        .collect();
    let mut followed = vec![false; findings.len()];
    let mut after = false;
    for (place, finding) in findings.iter().enumerate().rev() {
        followed[place] = after;
        after = !matches!(finding, Finding::Segment { .. }) && (after || uses[place]);
    }
    followed
}

fn begin(file: &str, bytes: u64, header: HeaderState, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
    match header {
        HeaderState::Valid(header) => {
            let (sequence, first, store) = (header.sequence, header.first.0, format!("{:016x}", header.store));
            let text = format_args!("  {file}: {bytes} bytes, sequence {sequence}, from batch {first}, store {store}");
            let (sequence, first_batch) = (Some(sequence), Some(first));
            report.line(|| Fact::Segment { file, bytes, sequence, first_batch, store: Some(store.clone()) }, text)
        }
        HeaderState::Blank => report.line(
            || Fact::Segment { file, bytes, sequence: None, first_batch: None, store: None },
            format_args!("  {file}: {bytes} bytes, prepared"),
        ),
        HeaderState::UnknownVersion(version) => {
            report.damage(format_args!("{file}: format version {version} is not known"))
        }
        HeaderState::Invalid => report.damage(format_args!("{file}: the header does not verify")),
    }
}

fn finish(segment: &Segment, shown: bool, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
    let Segment { file, first, last, batches, marks, stale } = segment;
    if !shown || *batches + *marks + *stale == 0 {
        return Ok(());
    }
    let fact = || Fact::Batches {
        file,
        first: first.map(|first| first.0),
        last: first.map(|_| last.0),
        batches: *batches,
        marks: *marks,
        stale: *stale,
    };
    let found = match first {
        Some(first) => format!("batches {} to {} in {}", first.0, last.0, counted(*batches, "record")),
        None => "no batches".to_owned(),
    };
    report.line(
        fact,
        format_args!("  {file}: {found}, {}, {} of an earlier use", counted(*marks, "mark"), counted(*stale, "record")),
    )
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
    operations: Result<Vec<LoggedOperation>, &'static str>,
    current: bool,
    schema: &dyn Schema,
    report: &mut InspectionReport<'_>,
) -> anyhow::Result<()> {
    let use_of = if current { "" } else { ", of an earlier use" };
    let (lsn, flushed) = (record.lsn.0, record.flushed.0);
    let operations = match operations {
        Ok(operations) => operations,
        Err(problem) => return report.damage(format_args!("record at {offset}: batch {lsn}: {problem}")),
    };
    if !report.shows_entries() {
        return Ok(());
    }
    let concerned = |operation: &&LoggedOperation| {
        report.inode.is_none_or(|inode| {
            let value = match operation {
                LoggedOperation::Whole(Operation::Put(_, _, value)) => value.as_ref(),
                LoggedOperation::Whole(Operation::Delete(..)) | LoggedOperation::Patched(..) => &[],
            };
            schema.concerns(operation.table(), operation.key(), value, inode.0)
        })
    };
    let operations: Vec<&LoggedOperation> = operations.iter().filter(concerned).collect();
    if operations.is_empty() && report.inode.is_some() {
        return Ok(());
    }
    let mark = record.is_mark();
    let fact = || Fact::Record { offset, batch: lsn, flushed, mark, stale: !current };
    if mark {
        return report.line(fact, format_args!("    {offset}: mark: flushed through batch {flushed}{use_of}"));
    }
    report.line(fact, format_args!("    {offset}: batch {lsn}, flushed through {flushed}{use_of}"))?;
    for operation in operations {
        let (table, key) = (operation.table(), operation.key());
        let described = match operation {
            LoggedOperation::Whole(Operation::Put(_, _, value)) => describe(schema, table, key, Some(value)),
            LoggedOperation::Whole(Operation::Delete(..)) => describe(schema, table, key, None),
            LoggedOperation::Patched(_, _, patch) => describe_patch(schema, table, key, patch),
        };
        match described {
            Ok(text) => {
                report.line(|| Fact::Operation { text: text.clone() }, format_args!("      {text}"))?;
            }
            Err(text) => report.damage(format_args!("in batch {lsn}: {text}"))?,
        }
    }
    Ok(())
}
