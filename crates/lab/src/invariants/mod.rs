//! Invariants over several servers that hold at every moment of a run, not only once it is at rest.
//!
//! A [`Watch`] takes a [`Snapshot`] of all servers that are up, between two steps of the simulation
//! and at times that the seed draws, and has every [`Invariant`] look at it. It reads the servers'
//! tables directly: no message is sent, nothing waits, and nothing of a server changes. What a
//! server has applied counts, even if a crash may still take it: no server tells others of changes
//! that its own death would undo, so the states of all servers fit together all the time.
//!
//! To add an invariant: a file with a type that implements [`Invariant`], whose documentation says
//! why it holds at every moment and after which faults it does not; a line in [`all`]; and a test
//! that feeds it a contradiction.
//!
//! What is true of one server alone is asserted by the server itself (`mds::audit` after each
//! commit); what needs requests, as reading data back, is in [`crate::checkers`].
//!
//! A snapshot has one MDT. With several, [`names_over_mdts`] is checked instead, which compares
//! them, and of each MDT what clients [serve](served) from their caches of it. What the caches
//! above them serve is compared with all MDTs ([`served_above`]). [`scrubs`] needs no snapshot, and
//! is checked in any case.
//!
//! One invariant is checked after every step, because a violation of it may last for a step only:
//! [`cached_locks`].
//!
//! Downside: a contradiction that lasts for less than the time between two looks is seen in some
//! seeds only.

mod cached_locks;
mod destroyed;
mod invariant;
mod layout_fences;
mod maps;
mod names_over_mdts;
mod numbers;
mod objects;
mod refusals;
#[cfg(test)]
pub(crate) mod sample;
mod scrubs;
mod served;
mod served_above;
mod sizes;
mod slots;
mod snapshot;
mod space;
mod versions;
mod watch;

pub(crate) use self::scrubs::is_clean;
pub use self::{
    invariant::Invariant,
    snapshot::{KnownMap, MdtState, OstState, Snapshot},
    watch::Watch,
};

/// All of them, with nothing seen yet.
pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(slots::LayoutSlots),
        Box::new(numbers::Numbers),
        Box::new(objects::Objects),
        Box::new(destroyed::Destroyed::default()),
        Box::new(layout_fences::LayoutFences),
        Box::new(sizes::Sizes),
        Box::new(refusals::Refusals::default()),
        Box::new(space::Space),
        Box::new(versions::Versions::default()),
        Box::new(maps::Maps::default()),
        Box::new(served::ServedIsTrue),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{sample::sound, *};

    #[test]
    fn a_sound_cluster_passes_again_and_again() {
        let (mut invariants, snapshot) = (all(), sound());
        for _ in 0..3 {
            for invariant in &mut invariants {
                assert_eq!(invariant.check(&snapshot), Ok(()), "{}", invariant.name());
            }
        }
    }

    #[test]
    fn nothing_is_said_of_servers_that_are_down() {
        for invariant in &mut all() {
            assert_eq!(invariant.check(&sound()), Ok(()));
            assert_eq!(invariant.check(&Snapshot::default()), Ok(()), "{}", invariant.name());
        }
    }

    #[test]
    fn names_tell_invariants_apart() {
        let names: BTreeSet<_> = all().iter().map(|invariant| invariant.name()).collect();
        assert_eq!(names.len(), all().len());
    }
}
