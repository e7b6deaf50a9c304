//! An inode in messages.

use layout::Layout;
use serde::{Deserialize, Serialize};
use types::{Accounted, Attributes, DataChanges, DataTimes, Timestamp};

/// An inode as the MDT knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Attributes. `size`, `blocks` and `mtime` are exact unless `size_unknown` is set.
    pub attributes: Attributes,
    /// A client has the file open for writing, or died while it had: size, blocks and mtime are
    /// those of the objects of this layout; ask the OSTs (glimpse). In the answer to an open for
    /// writing it is `None` if the attributes were exact when the file was opened: the sole writer
    /// of an epoch starts from them.
    pub size_unknown: Option<Box<Layout>>,
    /// Not earlier than any change that `attributes.mtime` includes: [`Accounted::time`].
    pub accounted: Timestamp,
    /// For a file of unknown size that no client can be writing to: the write epoch under which a
    /// client that asks the OSTs after this answer may report the result (`ReportSize`). Present in
    /// answers to requests for attributes; in a scan, for every file without writers, even if its
    /// size is known (`RepairSize`).
    #[serde(default)]
    pub quiet: Option<u64>,
    /// Changes of objects that `attributes.mtime` includes: [`Accounted::changes`].
    #[serde(default)]
    pub changes: u64,
    /// [`Accounted::records`].
    #[serde(default)]
    pub records: u32,
    /// Of a directory: version of its map to shards; 0: it is not striped.
    #[serde(default)]
    pub map_version: u64,
    /// It has an access list that says more than its mode.
    #[serde(default)]
    pub access_list: bool,
    /// It has neither an access list nor an extended attribute that every user may read (those of
    /// the name space `security`): a client that has the lock on its extended attributes knows that
    /// they do not exist.
    #[serde(default)]
    pub no_public_xattrs: bool,
    /// With `size_unknown`: the file's write epoch. The client to which it was given is still the
    /// only one to change the file, and need not ask the objects.
    #[serde(default)]
    pub epoch: Option<u64>,
}

impl Entry {
    /// An inode of which nothing is known but its attributes.
    pub fn of(attributes: Attributes) -> Self {
        Self {
            attributes,
            size_unknown: None,
            accounted: Timestamp::default(),
            quiet: None,
            changes: 0,
            records: 0,
            map_version: 0,
            access_list: false,
            no_public_xattrs: false,
            epoch: None,
        }
    }

    /// Attributes as the MDT will store them if the objects report these values.
    pub fn completed(&self, size: u64, blocks: u64, found: &DataChanges) -> Attributes {
        let accounted = Accounted { time: self.accounted, changes: self.changes, records: self.records };
        let Attributes { mtime, ctime, .. } = self.attributes;
        let DataTimes { mtime, ctime } = accounted.times(DataTimes { mtime, ctime }, found);
        Attributes { size, blocks, mtime, ctime, ..self.attributes }
    }
}
