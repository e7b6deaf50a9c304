use super::*;

const SECOND: Duration = Duration::from_secs(1);
const BOTH: Validity = Validity { attributes: Some(SECOND), name: Some(SECOND) };

fn name(parent: u64, bytes: &[u8]) -> Arc<Name> {
    Arc::new(Name::new(parent, bytes))
}

fn give(table: &Table, node: u64, of: &Arc<Name>, now: Instant) -> Validity {
    table.prepare(node, true, Some(of), now);
    table.settle(node, Some(of), BOTH, now)
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
    table.settle(7, Some(&x), Validity::default(), now);
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
    assert_eq!(table.settle(7, None, only_name, now).attributes, None);
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
fn another_inode_takes_a_name_over() {
    let (table, now, x) = (Table::default(), Instant::now(), name(1, b"x"));
    give(&table, 7, &x, now);
    give(&table, 8, &x, now);
    table.forget(7, 1);
    assert_eq!(table.named(1, b"x"), Some(8));
}
