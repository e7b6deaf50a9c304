//! `lfs getstripe --json`: a line for each file and directory.

use layout::{END_OF_FILE, LayoutSpec, text, text::Row};
use serde::Serialize;
use types::{InodeNumber, ObjectId};

use super::getstripe::Found;

/// A file or directory.
#[derive(Serialize)]
pub struct Shown {
    path: String,
    kind: &'static str,
    fid: String,
    mdt: u16,
    /// Of the layout; null for a default.
    generation: Option<u64>,
    /// Whether the directory has a default of its own; null for a file.
    own: Option<bool>,
    /// The default is an automatic layout, or one component of the file's is.
    automatic: bool,
    components: Vec<Component>,
}

#[derive(Serialize)]
struct Component {
    id: Option<u32>,
    start: u64,
    /// Null: it reaches to the end of the file, wherever that is.
    end: Option<u64>,
    instantiated: bool,
    extension: bool,
    pattern: &'static str,
    stripe_count: i64,
    stripe_bytes: u64,
    pool: Option<String>,
    objects: Vec<Object>,
}

#[derive(Serialize)]
struct Object {
    ost: u16,
    object: String,
}

impl Shown {
    /// What was found at `path`, with the components that `is_wanted`; `raw`: of a directory only
    /// what is set there. `None`: what has no layout.
    pub fn new(path: String, found: &Found, raw: bool, is_wanted: impl Fn(&Row) -> bool) -> Option<Self> {
        let (generation, own, rows) = match (&found.layout, found.directory) {
            (Some(layout), _) => (Some(layout.shown_generation()), None, text::rows(layout)),
            (None, true) => {
                let own = found.own_default.as_ref();
                let shown = if raw { own } else { own.or(found.effective_default.as_ref()) };
                (None, Some(own.is_some()), default_rows(shown))
            }
            (None, false) => return None,
        };
        let inode = found.inode;
        Some(Self {
            path,
            kind: if found.directory { "directory" } else { "file" },
            fid: inode.to_string(),
            mdt: inode.mdt().0,
            generation,
            own,
            automatic: rows.iter().any(|row| row.automatic),
            components: rows.iter().filter(|row| is_wanted(row)).map(|row| Component::new(inode, row)).collect(),
        })
    }
}

/// A default as the components it gives to new files; none if nothing is set.
fn default_rows(default: Option<&LayoutSpec>) -> Vec<Row> {
    use layout::{BackingSpec, ComponentSpec};
    let whole = |backing| text::rows_of_default(&[ComponentSpec { end: END_OF_FILE, backing }]);
    match default {
        None => Vec::new(),
        Some(LayoutSpec::Automatic) => whole(BackingSpec::Automatic),
        Some(LayoutSpec::Plain(stripes)) => whole(BackingSpec::Striped(stripes.clone())),
        Some(LayoutSpec::Composite(components)) => text::rows_of_default(components),
    }
}

impl Component {
    fn new(inode: InodeNumber, row: &Row) -> Self {
        let name = |slot| ObjectId::new(row.named_by.unwrap_or(inode), slot).to_string();
        let objects = row.objects.iter().map(|(slot, ost)| Object { ost: ost.0, object: name(*slot) });
        Self {
            id: row.id.map(|id| id.0),
            start: row.extent.start,
            end: (row.extent.end != END_OF_FILE).then_some(row.extent.end),
            instantiated: row.instantiated && row.id.is_some(),
            extension: row.extension,
            pattern: row.pattern.name(),
            stripe_count: row.stripe_count,
            stripe_bytes: row.stripe_bytes,
            pool: row.pool.clone(),
            objects: objects.collect(),
        }
    }
}
