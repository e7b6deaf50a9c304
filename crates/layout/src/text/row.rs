//! A component as tools show it, of a file or of a directory's default.

use types::{InodeNumber, OstIndex, limits::STRIPE_BYTES_DEFAULT};

use crate::{
    component::{Backing, Component, ComponentId, Extent},
    layout::Layout,
    lov::{COMPOSITE_BYTES, ENTRY_BYTES, OBJECT_BYTES, V1_BYTES, V3_BYTES},
    spec::{ComponentSpec, StripeCount, StripeSpec},
};

/// Where a component's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Stripes, on one OST each.
    Raid0,
    /// Stripes, several on an OST.
    Overstriped,
    /// The file's MDT.
    Mdt,
    /// Not decided yet.
    Automatic,
}

impl Pattern {
    /// As `lmm_pattern` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Raid0 => "raid0",
            Pattern::Overstriped => "raid0,overstriped",
            Pattern::Mdt => "mdt",
            Pattern::Automatic => "automatic",
        }
    }
}

/// One component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number; `None` in a default.
    pub id: Option<ComponentId>,
    /// Which bytes.
    pub extent: Extent,
    /// It has its objects (flag `init`).
    pub instantiated: bool,
    /// The file system decides it, or has decided it.
    pub automatic: bool,
    /// It is extension space of the component before it; `stripe_bytes` is then the extension size.
    pub extension: bool,
    /// Stripes; -1: on all OSTs, -n: n on each.
    pub stripe_count: i64,
    /// Bytes per stripe.
    pub stripe_bytes: u64,
    /// Pattern.
    pub pattern: Pattern,
    /// The first OST asked for.
    pub first_asked: Option<OstIndex>,
    /// Pool asked for.
    pub pool: Option<String>,
    /// Slot and OST of every object on an OST.
    pub objects: Vec<(u32, OstIndex)>,
    /// The inode number in their names, if it is not the file's.
    pub named_by: Option<InodeNumber>,
    /// Where its stripes stand in Lustre's binary form, as `-v` shows it.
    pub offset_bytes: u32,
    /// How many bytes they take there.
    pub size_bytes: u32,
}

impl Row {
    fn of(component: &Component) -> Self {
        let pending = Row {
            id: Some(component.id),
            extent: component.extent,
            instantiated: component.is_instantiated(),
            automatic: component.is_automatic(),
            extension: false,
            stripe_count: 0,
            stripe_bytes: 0,
            pattern: Pattern::Raid0,
            first_asked: None,
            pool: None,
            objects: Vec::new(),
            named_by: None,
            offset_bytes: 0,
            size_bytes: 0,
        };
        match &component.backing {
            Backing::Pending(spec) => pending.asked(spec),
            Backing::Striped { plain, first_slot, spec } => {
                let overstriped = plain.is_overstriped();
                Row {
                    stripe_count: i64::from(plain.stripe_count()),
                    stripe_bytes: plain.stripe_bytes,
                    pattern: if overstriped { Pattern::Overstriped } else { Pattern::Raid0 },
                    pool: spec.pool.clone(),
                    objects: (*first_slot..).zip(plain.osts.iter().copied()).collect(),
                    ..pending
                }
            }
            Backing::Mdt { .. } => Row { stripe_bytes: component.extent.bytes(), pattern: Pattern::Mdt, ..pending },
            Backing::Extension { step_bytes } => Row { extension: true, stripe_bytes: *step_bytes, ..pending },
            Backing::Automatic => Row { pattern: Pattern::Automatic, ..pending },
        }
    }

    fn asked(self, spec: &StripeSpec) -> Self {
        let overstriped = spec.is_overstriped();
        Row {
            stripe_count: if spec.osts.is_empty() { count_shown(spec.stripe_count) } else { spec.osts.len() as i64 },
            stripe_bytes: spec.stripe_bytes.unwrap_or(STRIPE_BYTES_DEFAULT),
            pattern: if overstriped { Pattern::Overstriped } else { Pattern::Raid0 },
            first_asked: spec.osts.first().copied().or(spec.first_ost),
            pool: spec.pool.clone(),
            ..self
        }
    }

    /// The OST of the first stripe, of a default the one asked for.
    pub fn first_ost(&self) -> Option<OstIndex> {
        let asked = self.first_asked.filter(|_| self.id.is_none());
        self.objects.first().map(|(_, ost)| *ost).or(asked)
    }

    /// `lcme_flags`.
    pub fn flags(&self) -> &'static str {
        match (self.instantiated && self.id.is_some(), self.extension) {
            (true, _) => "init",
            (false, true) => "extension",
            (false, false) => "0",
        }
    }

    /// Bytes of the stripes as `-v` shows them: without objects Lustre counts one.
    fn verbose_bytes(&self) -> usize {
        let head = if self.pool.is_some() { V3_BYTES } else { V1_BYTES };
        let objects = if self.pattern == Pattern::Mdt { 0 } else { self.objects.len().max(1) };
        head + objects * OBJECT_BYTES
    }
}

/// A number of stripes asked for, as shown.
pub(super) fn count_shown(count: StripeCount) -> i64 {
    match count {
        StripeCount::Default => 1,
        StripeCount::Exactly(count) | StripeCount::Overstriped(count) => i64::from(count),
        StripeCount::All => -1,
        StripeCount::PerOst(count) => -i64::from(count),
    }
}

/// The components of a file.
pub fn rows(layout: &Layout) -> Vec<Row> {
    let mut rows: Vec<Row> = layout.components.iter().map(Row::of).collect();
    let mut offset = COMPOSITE_BYTES + rows.len() * ENTRY_BYTES;
    for row in &mut rows {
        row.named_by = layout.named_by;
        let size = row.verbose_bytes();
        row.offset_bytes = offset as u32;
        row.size_bytes = size as u32;
        offset += size;
    }
    rows
}

/// The components of a directory's default.
pub fn rows_of_default(components: &[ComponentSpec]) -> Vec<Row> {
    let mut rows = rows(&Layout::composite(components));
    rows.iter_mut().for_each(|row| row.id = None);
    rows
}

/// Size of everything, as `-v` shows it.
pub fn verbose_bytes(rows: &[Row]) -> u32 {
    rows.last().map_or(COMPOSITE_BYTES as u32, |row| row.offset_bytes + row.size_bytes)
}
