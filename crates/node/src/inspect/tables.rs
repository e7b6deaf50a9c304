//! The tables of a target as opening it would find them: the cold store, plus the journal after its
//! checkpoint.

use std::{collections::BTreeMap, io};

use anyhow::Context;
use bytes::Bytes;
use kv::{
    Batch, Checkpoint, ColdStore, MemoryCold, Operation, Table,
    inspect::{Schema, describe},
    superblock::Superblock,
};
use types::counted;

use super::{Fact, InspectionReport, parts::Parts};

/// Changes that are only in the journal; `None` is a removal.
type Overlay = BTreeMap<(u8, Bytes), Option<Bytes>>;
/// What else wants to see the entries: table, key, value.
pub type Visitor<'v> = &'v mut (dyn FnMut(Table, &[u8], &[u8]) + Send);

/// Shows the tables; every entry, shown or not, is also given to `visit`.
pub async fn inspect(
    parts: &Parts,
    superblock: Option<&Superblock>,
    schema: &dyn Schema,
    report: &mut InspectionReport<'_>,
    visit: Visitor<'_>,
) -> anyhow::Result<()> {
    let scratch = tempfile::Builder::new().prefix("stria-inspect-").tempdir();
    let scratch = scratch.context("cannot create a temporary directory; set TMPDIR to choose another place")?;
    let cold: Box<dyn ColdStore> = match parts.cold(scratch.path()) {
        Ok(cold) => cold,
        Err(error) if is_of_the_copy(&error) => {
            let to = scratch.path().display();
            return Err(error).with_context(|| {
                format!("cannot copy the tables to {to} to read them; set TMPDIR to a directory with enough space")
            });
        }
        Err(error) => {
            report.damage(format_args!("cold store: cannot open it: {error}"))?;
            Box::new(MemoryCold::new())
        }
    };
    let checkpoint = match cold.checkpoint() {
        Ok(Some(checkpoint)) => {
            let (batch, store) = (checkpoint.lsn.0, format!("{:016x}", checkpoint.store));
            report.line(
                || Fact::ColdStore { batch, store: store.clone() },
                format_args!("cold store: batches through {batch}, store {store}"),
            )?;
            if let Some(superblock) = superblock.filter(|superblock| superblock.store != checkpoint.store) {
                report.damage(format_args!(
                    "cold store: it belongs to store {:016x}, the journal to {:016x}",
                    checkpoint.store, superblock.store
                ))?;
            }
            checkpoint
        }
        Ok(None) => Checkpoint::default(),
        Err(error) => {
            report.damage(format_args!("cold store: {error}"))?;
            Checkpoint::default()
        }
    };
    let overlay = match superblock {
        Some(superblock) => replay(parts, superblock, checkpoint, report).await?,
        None => Overlay::new(),
    };
    report.heading(format_args!("tables:"))?;
    for number in 0..=u8::MAX {
        show_table(&*cold, Table(number), &overlay, schema, report, visit)?;
    }
    Ok(())
}

/// Whether the error tells of the place of the copy, or of the program that makes it, and not of
/// the store.
fn is_of_the_copy(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    [FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull].contains(&error.kind())
}

/// The changes after the checkpoint.
async fn replay(
    parts: &Parts,
    superblock: &Superblock,
    checkpoint: Checkpoint,
    report: &mut InspectionReport<'_>,
) -> anyhow::Result<Overlay> {
    let device = parts.journal()?;
    let (mut overlay, mut batches) = (Overlay::new(), 0u64);
    let replayed = kv::inspect::replay(&*device, superblock.store, checkpoint, &mut |_, batch: &Batch| {
        batches += 1;
        for operation in &batch.operations {
            let value = match operation {
                Operation::Put(_, _, value) => Some(value.clone()),
                Operation::Delete(..) => None,
            };
            overlay.insert((operation.table().0, operation.key().clone()), value);
        }
    })
    .await;
    match replayed {
        Ok(last) => report.line(
            || Fact::Replay { batches, last: last.0 },
            format_args!("to be replayed: {}, through {}", counted(batches, "batch"), last.0),
        )?,
        Err(error) => {
            report.damage(format_args!("journal: {error}; only {} before that are shown", counted(batches, "batch")))?
        }
    }
    Ok(overlay)
}

/// Counts and lines of one table while it is walked.
struct Walk<'w, 'o> {
    table: Table,
    schema: &'w dyn Schema,
    report: &'w mut InspectionReport<'o>,
    visit: Visitor<'w>,
    keys: u64,
    bytes: u64,
    damaged: u64,
    outcome: anyhow::Result<()>,
}

impl Walk<'_, '_> {
    fn entry(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        self.keys += 1;
        self.bytes += (key.len() + value.len()) as u64;
        (self.visit)(self.table, key, value);
        let concerned = self.report.inode.is_none_or(|inode| self.schema.concerns(self.table, key, value, inode.0));
        match describe(self.schema, self.table, key, Some(value)) {
            Ok(text) if concerned && self.report.shows_entries() => {
                let table = self.schema.table(self.table);
                self.report.line(|| Fact::Entry { table, text: text.clone() }, format_args!("    {text}"))
            }
            Ok(_) => Ok(()),
            Err(text) => {
                self.damaged += 1;
                self.report.damage(format_args!("{text}"))
            }
        }
    }

    /// Takes an entry in; false if the output fails.
    fn take(&mut self, key: &[u8], value: &[u8]) -> bool {
        self.outcome = self.entry(key, value);
        self.outcome.is_ok()
    }
}

fn show_table(
    cold: &dyn ColdStore,
    table: Table,
    overlay: &Overlay,
    schema: &dyn Schema,
    report: &mut InspectionReport<'_>,
    visit: Visitor<'_>,
) -> anyhow::Result<()> {
    let end = table.0.checked_add(1).map(|next| (next, Bytes::new()));
    let changes = match &end {
        Some(end) => overlay.range((table.0, Bytes::new())..end.clone()),
        None => overlay.range((table.0, Bytes::new())..),
    };
    let mut changes = changes.map(|((_, key), value)| (key, value)).peekable();
    let mut walk = Walk { table, schema, report, visit, keys: 0, bytes: 0, damaged: 0, outcome: Ok(()) };
    let scanned = cold.scan(table, &[], None, &mut |key, value| {
        while let Some((changed, new)) = changes.next_if(|(changed, _)| changed.as_ref() < key) {
            if new.as_ref().is_some_and(|new| !walk.take(changed, new)) {
                return false;
            }
        }
        match changes.next_if(|(changed, _)| changed.as_ref() == key) {
            Some((_, Some(new))) => walk.take(key, new),
            Some((_, None)) => true,
            None => walk.take(key, value),
        }
    });
    for (changed, new) in changes {
        if new.as_ref().is_some_and(|new| !walk.take(changed, new)) {
            break;
        }
    }
    let Walk { report, keys, bytes, damaged, outcome, .. } = walk;
    outcome?;
    if let Err(error) = scanned {
        report.damage(format_args!("cold store: table {}: {error}", table.0))?;
    }
    if keys > 0 {
        let name = schema.table(table).map_or_else(|| format!("table {}", table.0), str::to_owned);
        let of_these = if damaged > 0 { format!(", {damaged} damaged") } else { String::new() };
        report.line(
            || Fact::Table { table: &name, entries: keys, bytes, damaged },
            format_args!("  {name}: {keys} entries, {bytes} bytes{of_these}"),
        )?;
    }
    Ok(())
}
