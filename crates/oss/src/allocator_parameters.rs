//! Parameters of the block allocator, under ldiskfs's names: `obdfilter.<target>.<name>`. Those of
//! ldiskfs that are not here change nothing that exists here.
//!
//! What is set lasts until the target is opened again, as with all parameters that are not
//! permanent. Windows that exist remain.

use std::{ops::RangeInclusive, sync::Arc};

use blocks::{GROUP_BLOCKS, GROUP_RUNS_MAX, Policy, PreallocTable};
use rt::parameters::{Parameter, parse_number};

use crate::Ost;

/// Blocks of a window.
pub const WINDOW_BLOCKS: RangeInclusive<u64> = 1..=GROUP_BLOCKS as u64;
/// Blocks of an object above which it has windows of its own: up to 4 TiB.
pub const OBJECT_BLOCKS: RangeInclusive<u64> = 1..=1 << 30;
/// Free runs of a group that are looked at.
pub const SCANNED_RUNS: RangeInclusive<u64> = 1..=GROUP_RUNS_MAX as u64;
/// Numbers of groups.
pub const GROUPS: RangeInclusive<u64> = 0..=u32::MAX as u64;
/// Blocks within a group.
pub const STARTS: RangeInclusive<u64> = 0..=GROUP_BLOCKS as u64 - 1;

/// What `prealloc_table` says where windows grow with objects.
const ADAPTIVE: &str = "adaptive";

/// A table of windows; `None`: they grow with objects.
pub fn parse_table(text: &str) -> Result<Option<PreallocTable>, String> {
    match text.trim() {
        ADAPTIVE => Ok(None),
        table => table.parse().map(Some).map_err(|error| format!("{error}, or is '{ADAPTIVE}'")),
    }
}

impl Ost {
    /// Parameters of the allocator.
    pub(crate) fn allocator_parameters(self: &Arc<Self>) -> Vec<(&'static str, Parameter)> {
        let (get, set) = (self.clone(), self.clone());
        let table = Parameter::writable(
            "blocks of the windows of large objects, ascending, or 'adaptive': windows grow with their objects",
            move || {
                get.directory.show_allocator(|policy| {
                    policy.prealloc_table.as_ref().map_or_else(|| ADAPTIVE.to_owned(), PreallocTable::to_string)
                })
            },
            move |text| {
                let table = parse_table(text)?;
                set.directory.change_allocator(|policy| policy.prealloc_table = table)
            },
        );
        let (get, set) = (self.clone(), self.clone());
        let last_group = Parameter::writable(
            "group in which the next new window is looked for first",
            move || get.directory.show_last_group(),
            move |text| set.directory.set_last_group(parse_number(text, &GROUPS)?),
        );
        let (get, set) = (self.clone(), self.clone());
        let last_start = Parameter::writable(
            "block within mb_last_group from which on the next new window is looked for first",
            move || get.directory.show_last_start(),
            move |text| set.directory.set_last_start(parse_number(text, &STARTS)?),
        );
        vec![
            ("prealloc_table", table),
            ("mb_last_group", last_group.within(GROUPS)),
            ("mb_last_start", last_start.within(STARTS)),
            (
                "mb_group_prealloc",
                self.tunable("blocks of a window that small objects of one locality share", WINDOW_BLOCKS, |policy| {
                    &mut policy.mb_group_prealloc
                }),
            ),
            (
                "mb_small_req",
                self.tunable(
                    "a write of at least so many blocks gets a window of its object",
                    WINDOW_BLOCKS,
                    |policy| &mut policy.mb_small_req,
                ),
            ),
            (
                "mb_large_req",
                self.tunable("an object of at least so many blocks gets windows of its own", OBJECT_BLOCKS, |policy| {
                    &mut policy.mb_large_req
                }),
            ),
            (
                "mb_max_to_scan",
                self.tunable(
                    "free runs of a group that are looked at for an aligned place before any is taken",
                    SCANNED_RUNS,
                    |policy| &mut policy.mb_max_to_scan,
                ),
            ),
        ]
    }

    fn tunable(
        self: &Arc<Self>,
        doc: &'static str,
        range: RangeInclusive<u64>,
        field: fn(&mut Policy) -> &mut u32,
    ) -> Parameter {
        let (get, set, allowed) = (self.clone(), self.clone(), range.clone());
        let shown = move || get.directory.show_allocator(|policy| field(&mut policy.clone()).to_string());
        let changed = move |text: &str| {
            // All of these ranges fit 32 bits.
            let value = parse_number(text, &allowed)? as u32;
            set.directory.change_allocator(|policy| *field(policy) = value)
        };
        Parameter::writable(doc, shown, changed).within(range)
    }
}

const _: () = assert!(*OBJECT_BLOCKS.end() <= u32::MAX as u64, "the tunables have 32 bits");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_one_of_ldiskfs_or_adaptive() {
        assert_eq!(parse_table(" adaptive\n"), Ok(None));
        assert_eq!(parse_table("256 512").unwrap().unwrap().largest(), 512);
        for wrong in ["", "512 256", "adaptive 256"] {
            assert!(parse_table(wrong).unwrap_err().ends_with("or is 'adaptive'"), "{wrong}");
        }
    }
}
