//! Objects that are destroyed, or about to be, since their file is gone or has left them: none of
//! them is made anew.
//!
//! A write that was sent before its file was closed may arrive after the order to destroy the
//! object, if its process was killed and nobody waits for it. It would make an object that belongs
//! to no file. Names of objects are never used again, so what is kept here does no harm to any
//! other file.
//!
//! In memory only: after a restart of the target its clients connect again, and do not repeat what
//! nobody waits for.

use std::collections::{BTreeSet, VecDeque};

use types::ObjectId;

use crate::store::RETIRED_MAX;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Retired {
    objects: BTreeSet<ObjectId>,
    /// The oldest first.
    order: VecDeque<ObjectId>,
}

impl Retired {
    /// Adds objects; the oldest ones are forgotten.
    pub fn add(&mut self, objects: &[ObjectId]) {
        for object in objects {
            if self.objects.insert(*object) {
                self.order.push_back(*object);
            }
        }
        while self.order.len() > RETIRED_MAX {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.objects.remove(&oldest));
        }
    }

    /// Whether the object must not be made.
    pub fn contains(&self, object: ObjectId) -> bool {
        self.objects.contains(&object)
    }
}

#[cfg(test)]
mod tests {
    use types::InodeNumber;

    use super::*;

    #[test]
    fn the_last_ones_are_known() {
        let object = |number: usize| ObjectId::new(InodeNumber(number as u64), 0);
        let mut retired = Retired::default();
        retired.add(&[object(1), object(2), object(1)]);
        (3..=RETIRED_MAX + 1).for_each(|number| retired.add(&[object(number)]));
        assert!(!retired.contains(object(1)) && retired.contains(object(2)));
        assert!(retired.contains(object(RETIRED_MAX + 1)));
        assert_eq!(retired.objects.len(), RETIRED_MAX);
    }
}
