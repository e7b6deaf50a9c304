//! Which OSTs are being written to, as far as this MDT assigned the objects: new objects avoid
//! these OSTs. Volatile.
//!
//! A file that is open for writing counts on the OSTs of the component that it was given last,
//! because it grows there. Downside: components that existed when it was opened do not count, nor
//! does the load of readers and other MDTs.
//!
//! Invariant: `objects` is the sum of `files`, and has no zero entries.

use std::collections::BTreeMap;

use types::{InodeNumber, OstIndex};

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Load {
    files: BTreeMap<InodeNumber, Vec<OstIndex>>,
    objects: BTreeMap<OstIndex, u32>,
}

impl Load {
    /// A file that is open for writing goes on on these OSTs.
    pub fn begin(&mut self, file: InodeNumber, osts: Vec<OstIndex>) {
        self.end(file);
        osts.iter().for_each(|ost| *self.objects.entry(*ost).or_default() += 1);
        if !osts.is_empty() {
            self.files.insert(file, osts);
        }
    }

    /// No client writes to the file any more.
    pub fn end(&mut self, file: InodeNumber) {
        for ost in self.files.remove(&file).unwrap_or_default() {
            let written = self.objects.get_mut(&ost).expect("an object of a file is counted");
            assert!(*written > 0, "OSTs without objects are not in the table");
            *written -= 1;
            if *written == 0 {
                self.objects.remove(&ost);
            }
        }
    }

    /// Objects of this OST that are being written to.
    pub fn of(&self, ost: OstIndex) -> u32 {
        self.objects.get(&ost).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_where_it_grows_until_nobody_writes_to_it() {
        let mut load = Load::default();
        let osts = |range: std::ops::Range<u16>| range.map(OstIndex).collect::<Vec<_>>();
        let loads = |load: &Load| [0, 1, 2, 3].map(|ost| load.of(OstIndex(ost)));
        load.begin(InodeNumber(1), osts(0..1));
        load.begin(InodeNumber(2), osts(0..3));
        assert_eq!(loads(&load), [2, 1, 1, 0]);
        load.begin(InodeNumber(1), osts(2..4));
        assert_eq!(loads(&load), [1, 1, 2, 1], "it went on elsewhere");
        load.end(InodeNumber(2));
        load.end(InodeNumber(2));
        load.begin(InodeNumber(1), Vec::new());
        assert!(load.files.is_empty() && load.objects.is_empty());
    }
}
