//! Tests of [`super`].

use super::*;

const T: Table = Table(3);

fn put(tables: &mut Tables, key: &[u8], value: &[u8]) {
    tables.apply(&Operation::Put(T, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
}

fn delete(tables: &mut Tables, key: &[u8]) {
    tables.apply(&Operation::Delete(T, Bytes::copy_from_slice(key)));
}

fn walk_all(tables: &Tables, frozen: u32, steps: usize) -> (Vec<Operation>, bool) {
    let (mut operations, mut newer) = (Vec::new(), false);
    let mut cursor = Some(Cursor::default());
    while let Some(from) = cursor {
        let step = tables.walk(&from, frozen, steps, usize::MAX);
        operations.extend(step.operations);
        newer |= step.newer;
        cursor = step.next;
    }
    (operations, newer)
}

#[test]
fn dirty_entries_are_counted_as_long_as_they_are_dirty() {
    let mut tables = Tables::new();
    put(&mut tables, b"a", &[7; 1000]);
    put(&mut tables, b"b", b"");
    assert_eq!((tables.dirty().removals(), tables.dirty().cold_bytes()), (0, 1000 + 2 * COLD_OVERHEAD_BYTES));
    delete(&mut tables, b"a");
    delete(&mut tables, b"a");
    delete(&mut tables, b"never there");
    assert_eq!((tables.dirty().removals(), tables.dirty().cold_bytes()), (2, 3 * COLD_OVERHEAD_BYTES));
    put(&mut tables, b"a", b"again");
    assert_eq!(tables.dirty().removals(), 1);
    let frozen = tables.freeze();
    delete(&mut tables, b"b");
    let (operations, _) = walk_all(&tables, frozen, 100);
    tables.mark_clean(&operations, frozen);
    assert_eq!(
        (tables.dirty().removals(), tables.dirty().cold_bytes()),
        (1, COLD_OVERHEAD_BYTES),
        "removed since the freeze"
    );
    let frozen = tables.freeze();
    let (operations, _) = walk_all(&tables, frozen, 100);
    tables.mark_clean(&operations, frozen);
    assert_eq!(tables.dirty, Dirty::default());
}

#[test]
fn a_walk_finds_what_changed_before_the_freeze_with_its_newest_value() {
    for steps in [1, 2, 100] {
        let mut tables = Tables::new();
        put(&mut tables, b"busy", b"1");
        put(&mut tables, b"calm", b"1");
        delete(&mut tables, b"gone");
        let frozen = tables.freeze();
        put(&mut tables, b"busy", b"2");
        put(&mut tables, b"later", b"1");
        let (operations, newer) = walk_all(&tables, frozen, steps);
        let keys: Vec<_> = operations.iter().map(|operation| operation.key().clone()).collect();
        assert_eq!(keys, ["busy", "calm", "gone"], "in order, without what is only new");
        assert!(newer, "one value is newer than the freeze");
        assert!(matches!(&operations[0], Operation::Put(_, _, value) if value == "2"));
        tables.mark_clean(&operations, frozen);
        assert_eq!(tables.get(T, b"gone"), Lookup::Absent);
        let (operations, _) = walk_all(&tables, frozen, steps);
        assert_eq!(operations, [], "the busy key is dirty, but its old value is no longer owed");
        let frozen = tables.freeze();
        let (operations, newer) = walk_all(&tables, frozen, steps);
        assert_eq!(operations.len(), 2, "the busy key and the later one");
        assert!(!newer);
        tables.mark_clean(&operations, frozen);
        assert_eq!(tables.dirty().bytes(), 0);
    }
}

#[test]
fn a_change_between_walk_and_cleaning_stays_dirty() {
    let mut tables = Tables::new();
    put(&mut tables, b"a", b"1");
    let frozen = tables.freeze();
    let (operations, _) = walk_all(&tables, frozen, 10);
    delete(&mut tables, b"a");
    tables.mark_clean(&operations, frozen);
    assert!(tables.dirty().bytes() > 0);
    let frozen = tables.freeze();
    let (operations, _) = walk_all(&tables, frozen, 10);
    assert!(matches!(operations[..], [Operation::Delete(..)]));
    tables.mark_clean(&operations, frozen);
    assert_eq!((tables.bytes(), tables.dirty().bytes()), (0, 0));
}

#[test]
fn eviction_spares_dirty_and_used_entries() {
    let mut tables = Tables::new();
    for number in 0..100u8 {
        tables.insert_clean(T, &[number], Bytes::from(vec![0; 100]));
    }
    put(&mut tables, b"dirty", b"");
    assert_eq!(tables.get(T, &[80, 1]), Lookup::Absent, "complete");
    let budget = tables.bytes() / 2;
    for number in 0..20u8 {
        tables.get(T, &[number]);
    }
    tables.evict(budget, 100_000);
    assert!(tables.bytes() <= budget);
    assert_eq!(tables.get(T, &[21, 1]), Lookup::Unknown, "no longer complete");
    assert!(matches!(tables.get(T, b"dirty"), Lookup::Found(_)));
    assert!((0..20u8).all(|number| tables.get(T, &[number]) != Lookup::Unknown), "used ones stay");
    tables.evict(0, 100_000);
    assert_eq!(tables.bytes(), tables.dirty().bytes(), "only what is dirty stays");
}

#[test]
fn beyond_what_was_dropped_everything_is_known() {
    let mut tables = Tables::new();
    for number in 0..10u8 {
        tables.insert_clean(T, &[number], Bytes::new());
    }
    tables.evict(0, 100_000);
    let is_complete = |tables: &Tables, table, from: Bound<&[u8]>| tables.range(table, from, None, 10).complete;
    for (key, expected) in [(&[5][..], Lookup::Unknown), (&[9], Lookup::Unknown), (&[9, 0], Lookup::Absent)] {
        assert_eq!(tables.get(T, key), expected, "{key:?}");
        assert_eq!(is_complete(&tables, T, Bound::Included(key)), expected == Lookup::Absent, "{key:?}");
    }
    assert!(is_complete(&tables, T, Bound::Excluded(&[9])) && !is_complete(&tables, T, Bound::Excluded(&[8])));
    assert!(!is_complete(&tables, T, Bound::Unbounded) && !tables.is_complete());
    assert!(is_complete(&tables, Table(T.0 + 1), Bound::Unbounded), "nothing was dropped from another table");
    put(&mut tables, &[20], b"new");
    let frozen = tables.freeze();
    let (operations, _) = walk_all(&tables, frozen, 10);
    tables.mark_clean(&operations, frozen);
    assert_eq!(tables.get(T, &[15]), Lookup::Absent);
    tables.evict(0, 100_000);
    assert_eq!(tables.get(T, &[15]), Lookup::Unknown, "a later one was dropped");
    tables.set_incomplete(T);
    assert_eq!(tables.get(T, &[30]), Lookup::Unknown);
}

#[test]
fn an_answer_of_the_cold_store_that_may_be_stale_is_not_kept() {
    let mut tables = Tables::new();
    tables.set_incomplete(T);
    let before = tables.cleanings();
    // Meanwhile the key is written, checkpointed and dropped.
    put(&mut tables, b"a", b"new");
    let frozen = tables.freeze();
    let (operations, _) = walk_all(&tables, frozen, 10);
    tables.mark_clean(&operations, frozen);
    tables.evict(0, 10_000);
    tables.fill(T, b"a", Bytes::from_static(b"old"), before);
    assert_eq!(tables.get(T, b"a"), Lookup::Unknown);
    tables.fill(T, b"a", Bytes::from_static(b"new"), tables.cleanings());
    assert_eq!(tables.get(T, b"a"), Lookup::Found(Bytes::from_static(b"new")));
}
