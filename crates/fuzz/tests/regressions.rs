//! Inputs that once made a target fail, each named after the bug.

use fuzz::{corpus::SMALL_STORE, targets};
use kv::{Lsn, journal::format::SegmentHeader};

#[test]
fn an_option_of_mount_that_is_no_ascii_letter_was_cut_within_a_character() {
    (targets::mount_options().run)("10.0.0.1:/stria /mnt -\u{e9}".as_bytes());
}

#[test]
fn an_address_with_text_behind_its_bracket_changed_whenever_it_was_printed() {
    (targets::mount_options().run)("[fe80::1]x9800:/stria".as_bytes());
}

#[test]
fn a_segment_that_begins_with_batch_0_was_counted_from_below_0() {
    let header = SegmentHeader { store: SMALL_STORE.store, sequence: 1 << 33, first: Lsn(0), segment_bytes: 256 << 10 };
    (targets::stores().run)(&header.encode());
}

#[test]
fn numbers_that_leave_no_room_to_count_on_overflowed() {
    let mut header =
        SegmentHeader { store: SMALL_STORE.store, sequence: 1 << 33, first: Lsn(u64::MAX), segment_bytes: 256 << 10 };
    (targets::stores().run)(&header.encode());
    (header.first, header.sequence) = (Lsn(1), u64::MAX);
    (targets::stores().run)(&header.encode());
}
