use types::{Attributes, FileKind};

use super::*;

const INODE: InodeNumber = InodeNumber(7);
const LOCK: LockHandle = LockHandle(3);
const RENEWED: LockHandle = LockHandle(4);

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

fn supported() -> Accesses {
    let mut accesses = Accesses::default();
    accesses.set_supported(true);
    accesses
}

/// All of them, as far as they fit into a request.
fn begin_sending(accesses: &mut Accesses) -> Vec<Access> {
    let last = accesses.last();
    accesses.begin_sending(last)
}

fn access(lock: LockHandle, seconds: i64) -> Access {
    Access { inode: INODE, lock, time: at(seconds) }
}

fn entry(atime: i64, ctime: i64) -> Entry {
    let zeroed = Attributes::zeroed(INODE, FileKind::Regular);
    Entry::of(Attributes { atime: at(atime), mtime: at(ctime), ctime: at(ctime), ..zeroed })
}

#[test]
fn they_are_sent_a_while_later_or_when_they_fill_a_request() {
    let mut accesses = supported();
    for number in 1..ACCESSES_PER_MESSAGE_MAX as u64 {
        accesses.note(InodeNumber(number), LOCK, at(1));
        let due = accesses.take_due();
        assert_eq!(due, if number == 1 { Due::Later } else { Due::Nothing });
    }
    accesses.note(InodeNumber(1000), LOCK, at(1));
    assert!(accesses.is_due());
    assert_eq!((accesses.take_due(), accesses.is_due()), (Due::Now, false));
    accesses.note(InodeNumber(1001), LOCK, at(1));
    assert_eq!(begin_sending(&mut accesses).len(), ACCESSES_PER_MESSAGE_MAX);
    assert!(!accesses.ends_schedule(), "one is left");
    assert_eq!(accesses.failed(|_, _| false).len(), ACCESSES_PER_MESSAGE_MAX);
    assert_eq!(begin_sending(&mut accesses).len(), 1);
    assert!(accesses.ends_schedule() && !accesses.is_empty());
    accesses.failed(|_, _| false);
    assert!(accesses.is_empty());
    accesses.note(INODE, LOCK, at(1));
    assert_eq!(accesses.take_due(), Due::Later, "the task has ended");
}

#[test]
fn a_lock_that_was_claimed_has_its_accesses_sent_again() {
    let mut accesses = supported();
    accesses.note(INODE, LOCK, at(5));
    let sent = begin_sending(&mut accesses);
    assert_eq!(sent, [access(LOCK, 5)]);
    accesses.renewed(INODE, LOCK, RENEWED);
    assert!(accesses.has(INODE));
    assert!(!accesses.answered(&sent[0], false), "the MDT does not know the former handle");
    let sent = begin_sending(&mut accesses);
    assert_eq!(sent, [access(RENEWED, 5)]);
    assert!(accesses.answered(&sent[0], false), "it does not want it");
    assert!(accesses.is_empty());
}

#[test]
fn what_is_lost_with_its_lock_is_not_sent_again() {
    let mut accesses = supported();
    accesses.note(INODE, LOCK, at(5));
    let sent = begin_sending(&mut accesses);
    accesses.note(INODE, RENEWED, at(6));
    assert!(accesses.forget(INODE, LOCK));
    assert!(!accesses.forget(INODE, LOCK), "it has gone");
    assert!(accesses.answered(&sent[0], false));
    assert_eq!(begin_sending(&mut accesses), [access(RENEWED, 6)]);
    assert_eq!(accesses.failed(|inode, lock| (inode, lock) == (INODE, RENEWED)), []);
    assert_eq!(begin_sending(&mut accesses), [access(RENEWED, 6)], "the MDT did not answer");
    assert_eq!(accesses.clear(), [INODE]);
    assert!(accesses.is_empty() && begin_sending(&mut accesses).is_empty());
}

/// So the return of a lock does not wait for accesses that never end.
#[test]
fn those_that_are_noted_meanwhile_are_sent_later() {
    let mut accesses = supported();
    accesses.note(INODE, LOCK, at(5));
    accesses.note(InodeNumber(8), LOCK, at(5));
    let last = accesses.last();
    accesses.note(InodeNumber(1), LOCK, at(6));
    accesses.note(INODE, LOCK, at(7));
    let other = Access { inode: InodeNumber(8), ..access(LOCK, 5) };
    let sent = accesses.begin_sending(last);
    assert_eq!(sent, [access(LOCK, 7), other], "one that replaces another keeps its order");
    accesses.note(INODE, LOCK, at(9));
    accesses.answered(&sent[1], true);
    accesses.failed(|_, _| true);
    assert_eq!(accesses.begin_sending(last), [access(LOCK, 9)], "it replaces the one that failed");
    accesses.answered(&access(LOCK, 9), true);
    assert!(accesses.begin_sending(last).is_empty());
    assert_eq!(begin_sending(&mut accesses), [Access { inode: InodeNumber(1), ..access(LOCK, 6) }]);
}

#[test]
fn a_target_that_does_not_know_them_gets_none() {
    let mut accesses = supported();
    accesses.note(INODE, LOCK, at(5));
    accesses.set_supported(false);
    assert!(!accesses.has_room());
    accesses.set_supported(true);
    assert_eq!(accesses.clear(), [INODE]);
    assert!(accesses.has_room());
    (0..WAITING_MAX as u64).for_each(|number| accesses.note(InodeNumber(number), LOCK, at(1)));
    assert!(!accesses.has_room());
}

#[test]
fn replies_show_them_where_the_mdt_will() {
    let mut accesses = supported();
    let shown = |accesses: &Accesses, atime, ctime| {
        let mut reply = MdtReply::Entry(entry(atime, ctime));
        let mut beside = ReplyExtension { changed: vec![entry(atime, ctime)], ..ReplyExtension::default() };
        accesses.show(&mut reply, &mut beside);
        let MdtReply::Entry(entry) = reply else { panic!("it is the same reply") };
        assert_eq!(beside.changed[0], entry);
        entry.attributes.atime.seconds
    };
    accesses.note(INODE, LOCK, at(10));
    assert_eq!(shown(&accesses, 5, 5), 10);
    assert_eq!(shown(&accesses, 5, 20), 10, "it was changed since");
    assert_eq!(shown(&accesses, 6, 5), 6, "fresh: the access changes nothing");
    assert_eq!(shown(&accesses, 11, 11), 11, "never back");
    begin_sending(&mut accesses);
    assert_eq!(shown(&accesses, 5, 5), 10, "it is on its way");
    accesses.note(INODE, LOCK, at(30));
    assert_eq!(shown(&accesses, 5, 20), 30);
    accesses.clear();
    assert_eq!(shown(&accesses, 5, 5), 5);
}
