use super::*;

const SECOND: Duration = Duration::from_secs(1);
const BOTH: Validity = Validity { attributes: Some(SECOND), name: Some(SECOND) };

fn name(parent: u64, bytes: &[u8]) -> Arc<Name> {
    Arc::new(Name::new(parent, bytes))
}

fn give(table: &Table, node: u64, of: &Arc<Name>, now: Instant) -> Validity {
    table.prepare(node, true, Some(of), now);
    table.complete(node, Some(of), BOTH, now)
}

#[test]
fn an_inode_is_known_until_all_its_lookups_are_forgotten() {
    let (table, now, x) = (Table::default(), Instant::now(), name(1, b"x"));
    assert_eq!(table.counts(), (1, 0), "the root");
    give(&table, 7, &x, now);
    give(&table, 7, &x, now);
    table.forget(7, 1);
    assert!(table.knows(7));
    assert_eq!((table.named(1, b"x"), table.counts()), (Some(7), (2, 1)));
    table.forget(7, 1);
    assert!(!table.knows(7));
    assert_eq!((table.named(1, b"x"), table.counts()), (None, (1, 0)));
    assert!(table.knows(ROOT_NODE));
}

#[test]
fn validity_ends_with_twice_its_time() {
    let (table, now, x) = (Table::default(), Instant::now(), name(1, b"x"));
    assert_eq!(give(&table, 7, &x, now), BOTH);
    let valid = Valid { attributes: true, names: vec![x.clone()] };
    assert_eq!(table.valid(7, now + SECOND + SECOND / 2), valid);
    assert_eq!(table.valid(7, now + 2 * SECOND), Valid::default());
    assert_eq!(table.all_with_attributes(now), [7]);
}

#[test]
fn a_reply_in_preparation_counts_as_valid() {
    let (table, now, x) = (Table::default(), Instant::now(), name(1, b"x"));
    table.prepare(7, true, Some(&x), now);
    assert_eq!(table.valid(7, now), Valid { attributes: true, names: vec![x.clone()] });
    table.complete(7, Some(&x), Validity::default(), now);
    assert_eq!(table.valid(7, now), Valid::default());
}

#[test]
fn nothing_is_made_valid_under_a_change() {
    let (table, now, x) = (Table::default(), Instant::now(), name(1, b"x"));
    give(&table, 7, &x, now);
    table.prepare(7, false, None, now);
    assert!(table.begin_change(7, now));
    table.dropped(7);
    let only_name = Validity { attributes: None, ..BOTH };
    assert_eq!(table.complete(7, None, only_name, now).attributes, None);
    table.dropped(7);
    assert_eq!(give(&table, 7, &x, now), only_name);
    assert!(!table.valid(7, now).attributes);
    table.end_change(7);
    assert_eq!(give(&table, 7, &x, now), BOTH);
    // An inode that the kernel does not know is in the table only as long as the change takes.
    assert!(!table.begin_change(9, now));
    table.end_change(9);
    assert_eq!(table.counts().0, 2);
}

#[test]
fn names_take_their_validity_along_when_they_are_renamed() {
    let (table, now) = (Table::default(), Instant::now());
    let (x, y) = (name(1, b"x"), name(5, b"y"));
    give(&table, 7, &x, now);
    give(&table, 8, &y, now);
    table.renamed(&x, &y, false, now);
    assert_eq!(table.named(5, b"y"), Some(7));
    assert_eq!(table.named(1, b"x"), None);
    assert!(table.valid(7, now).names.contains(&y));
    give(&table, 8, &x, now);
    table.renamed(&x, &y, true, now);
    assert_eq!((table.named(1, b"x"), table.named(5, b"y")), (Some(7), Some(8)));
    table.forget(7, 1);
    table.forget(8, 2);
    assert_eq!(table.counts(), (1, 0));
}

#[test]
fn names_that_are_not_noted_with_their_inode_lead_nowhere() {
    let (table, now) = (Table::default(), Instant::now());
    for number in 0..100_u64 {
        let later = now + 10 * number as u32 * SECOND;
        give(&table, 7, &name(1, &number.to_le_bytes()), later);
        assert!(table.counts().1 <= NAMES_KEPT, "{:?}", table.counts());
    }
    assert_eq!(table.named(1, &99_u64.to_le_bytes()), Some(7));
    table.forget(7, 100);
    assert_eq!(table.counts(), (1, 0));
}

#[test]
fn an_inode_has_so_many_valid_names_at_most() {
    let (table, now) = (Table::default(), Instant::now());
    let given: Vec<bool> =
        (0..100_u64).map(|number| give(&table, 7, &name(1, &number.to_le_bytes()), now).name.is_some()).collect();
    assert_eq!(given, (0..100).map(|number| number < NAMES_MAX).collect::<Vec<_>>());
    assert_eq!((table.valid(7, now).names.len(), table.counts().1), (NAMES_MAX, NAMES_MAX));
    // A name that the kernel has moves in any case; the place of the old one is free.
    table.renamed(&name(1, &0_u64.to_le_bytes()), &name(1, b"new"), false, now);
    assert_eq!(table.named(1, b"new"), Some(7));
    let names = table.valid(7, now).names;
    assert!(names.contains(&name(1, b"new")) && names.len() == NAMES_MAX);
    table.forget(7, 100);
    assert_eq!(table.counts(), (1, 0));
}

#[test]
fn access_lists_are_valid_until_they_are_dropped() {
    let (table, now, x) = (Table::default(), Instant::now(), name(1, b"x"));
    assert!(!table.mark_list(7), "the kernel does not know it");
    give(&table, 7, &x, now);
    let later = now + 100 * SECOND;
    assert!(!table.valid(7, later).attributes);
    assert!(table.mark_list(7) && table.may_keep_list(7));
    assert!(table.valid(7, later).attributes);
    assert_eq!(table.all_with_attributes(later), [7]);
    let told = table.list_mark(7).unwrap();
    table.mark_list(7);
    table.list_dropped(7, told);
    assert!(table.valid(7, later).attributes, "it was asked for again after the kernel was told");
    assert!(table.begin_change(7, later));
    assert!(!table.may_keep_list(7));
    table.list_dropped(7, table.list_mark(7).unwrap());
    table.end_change(7);
    assert!(!table.valid(7, later).attributes);
}

#[test]
fn names_end_when_their_validity_does() {
    let (table, now, x) = (Table::default(), Instant::now(), name(1, b"x"));
    assert_eq!(table.names_end(7, now), None);
    table.prepare(7, true, Some(&x), now);
    assert_eq!(table.names_end(7, now), Some(NamesEnd::Soon));
    table.complete(7, Some(&x), BOTH, now);
    assert_eq!(table.names_end(7, now), Some(NamesEnd::At(now + 2 * SECOND)));
    assert_eq!(table.names_end(7, now + 2 * SECOND), None);
}

#[test]
fn another_inode_takes_a_name_over() {
    let (table, now, x) = (Table::default(), Instant::now(), name(1, b"x"));
    give(&table, 7, &x, now);
    give(&table, 8, &x, now);
    table.forget(7, 1);
    assert_eq!(table.named(1, b"x"), Some(8));
}
