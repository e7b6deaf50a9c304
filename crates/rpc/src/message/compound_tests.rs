//! What is known of a compound before it is executed.

use types::{Attributes, FileKind};

use super::*;
use crate::auth::Role;
use crate::message::{MdtRequest, kind::ReplySize};

const OPEN: OpenId = OpenId(1);
const KNOWN: StepInode = StepInode::Known(InodeNumber::ROOT);

fn compound(steps: Vec<Step>) -> Compound {
    Compound { who: Credentials::root(), steps }
}

fn check(steps: Vec<Step>) -> FsResult<()> {
    compound(steps).check()
}

fn lookup(parent: StepInode) -> Step {
    Step::Lookup { parent, name: b"name".to_vec() }
}

fn open(inode: StepInode, flags: u32) -> Step {
    Step::Open { inode, open: OPEN, flags: OpenFlags(flags) }
}

fn create(open: Option<(OpenId, OpenFlags)>) -> Step {
    let (name, kind) = (b"name".to_vec(), NodeKind::Regular);
    Step::Create { parent: KNOWN, name, kind, mode: 0o644, umask: 0, layout: None, open }
}

fn write(inode: StepInode, bytes: u32) -> Step {
    Step::Write { inode, offset: 0, bytes, checksums: Vec::new() }
}

fn read(inode: StepInode, bytes: u32) -> Step {
    Step::Read { inode, offset: 0, bytes }
}

fn close(inode: StepInode, written: Option<StepNumber>) -> Step {
    Step::Close { inode, open: OPEN, written }
}

fn opened() -> Opened {
    let attributes = Attributes::zeroed(InodeNumber(5), FileKind::Regular);
    let entry = Entry::of(attributes);
    Opened { entry, layout: None, epoch: 1, truncate: false, capabilities: false }
}

/// One step of each kind, about this inode.
fn all(inode: StepInode) -> Vec<Step> {
    vec![
        lookup(inode),
        Step::GetAttributes { inode },
        Step::SetAttributes { inode, set: SetAttributes::default() },
        Step::Access { inode, mask: 4 },
        Step::ReadLink { inode },
        Step::GetXattr { inode, name: b"user.a".to_vec() },
        open(inode, open_flag::READ),
        create(None),
        write(inode, 1),
        read(inode, 1),
        close(inode, None),
    ]
}

/// Else a compound would need the permissions of its steps, or a service where it may wait.
#[test]
fn a_step_is_not_urgent_and_needs_no_role() {
    for step in all(KNOWN) {
        let row = step.kind().row();
        assert!(row.permission.allows(Role::Client) && !row.urgent, "{}", row.name);
        assert_ne!(step.kind(), MdtKind::Compound);
    }
}

#[test]
fn a_compound_has_some_steps_and_not_too_many() {
    assert_eq!(check(Vec::new()), Err(FsError::Invalid));
    assert_eq!(check(vec![lookup(KNOWN); COMPOUND_STEPS_MAX]), Ok(()));
    assert_eq!(check(vec![lookup(KNOWN); COMPOUND_STEPS_MAX + 1]), Err(FsError::TooBig));
}

#[test]
fn data_of_all_steps_are_bounded_together() {
    const HALF: u32 = COMPOUND_DATA_BYTES_MAX as u32 / 2;
    for step in [write, read] {
        assert_eq!(check(vec![step(KNOWN, HALF), step(KNOWN, HALF)]), Ok(()));
        assert_eq!(check(vec![step(KNOWN, HALF), step(KNOWN, HALF), step(KNOWN, 1)]), Err(FsError::TooBig));
        assert_eq!(check(vec![step(KNOWN, u32::MAX); COMPOUND_STEPS_MAX]), Err(FsError::TooBig));
    }
}

#[test]
fn references_are_to_earlier_steps_that_find_an_inode() {
    for found in all(KNOWN) {
        let expected = if found.finds_inode() { Ok(()) } else { Err(FsError::Invalid) };
        assert_eq!(check(vec![found, lookup(StepInode::Of(0))]), expected);
    }
    for (reference, at) in [(0, 0), (1, 0), (1, 1), (2, 1), (u8::MAX, 1)] {
        let mut steps = vec![lookup(KNOWN); 2];
        steps[at] = lookup(StepInode::Of(reference));
        assert_eq!(check(steps), Err(FsError::Invalid), "{at} refers to {reference}");
    }
    assert_eq!(check(vec![lookup(KNOWN), lookup(StepInode::Of(0)), lookup(StepInode::Of(1))]), Ok(()));
}

#[test]
fn a_size_is_reported_of_a_write_and_an_open_in_the_same_compound() {
    let flags = OpenFlags(open_flag::WRITE);
    let report = |written| close(StepInode::Of(0), Some(written));
    assert_eq!(check(vec![create(Some((OPEN, flags))), write(StepInode::Of(0), 1), report(1)]), Ok(()));
    for written in [0, 2, 3] {
        let steps = vec![create(Some((OPEN, flags))), write(StepInode::Of(0), 1), report(written)];
        assert_eq!(check(steps), Err(FsError::Invalid), "step {written} is no write before it");
    }
    let other = Some((OpenId(2), flags));
    assert_eq!(check(vec![create(other), write(StepInode::Of(0), 1), report(1)]), Err(FsError::Invalid));
}

#[test]
fn what_waits_for_others_or_cannot_be_repeated_is_refused() {
    let truncates = open_flag::WRITE | open_flag::TRUNCATE;
    assert_eq!(check(vec![open(KNOWN, truncates)]), Err(FsError::Invalid));
    assert_eq!(check(vec![create(Some((OPEN, OpenFlags(truncates))))]), Err(FsError::Invalid));
    for change in [create(None), write(KNOWN, 1), Step::SetAttributes { inode: KNOWN, set: SetAttributes::default() }] {
        assert_eq!(check(vec![change, read(KNOWN, 1)]), Err(FsError::Invalid), "the stored reply has no data");
    }
    assert_eq!(check(vec![open(KNOWN, open_flag::READ), read(KNOWN, 1), close(KNOWN, None)]), Ok(()));
}

#[test]
fn effect_and_size_of_the_reply_are_those_of_the_steps() {
    let row = |steps| {
        let compound = compound(steps);
        let request = MdtRequest::Compound(compound);
        (request.row().effect, request.row().reply, request.row().needs_sync())
    };
    let none = ReplySize::Compound(0);
    assert_eq!(row(vec![lookup(KNOWN)]), (Effect::Nothing, none, false));
    assert_eq!(
        row(vec![open(KNOWN, 1), read(KNOWN, 5), read(KNOWN, 7)]),
        (Effect::State, ReplySize::Compound(12), false)
    );
    assert_eq!(row(vec![open(KNOWN, 2), write(KNOWN, 5), close(KNOWN, None)]), (Effect::Namespace, none, true));
    assert_eq!(row(vec![lookup(KNOWN), create(None)]), (Effect::Namespace, none, true));
}

#[test]
fn opens_are_left_unless_a_later_step_ends_them() {
    let left = |steps: Vec<Step>, replies: usize| {
        let reply = |step: &Step| match step.opens() {
            Some(_) => StepReply::Opened(opened()),
            None => StepReply::Done,
        };
        let replies = steps.iter().take(replies).map(reply).collect();
        let reply = CompoundReply { replies, error: None };
        reply.opens_left(&compound(steps)).count()
    };
    let steps = || vec![open(KNOWN, 1), close(KNOWN, None)];
    assert_eq!((left(steps(), 0), left(steps(), 1), left(steps(), 2)), (0, 1, 0));
    assert_eq!(left(vec![close(KNOWN, None), open(KNOWN, 1)], 2), 1);
}

/// Else a step would end an open that is older than the compound, or what a failed compound did
/// could not be taken back.
#[test]
fn what_a_compound_closes_it_has_opened_once() {
    let read = || open(KNOWN, open_flag::READ);
    assert_eq!(check(vec![read(), close(KNOWN, None)]), Ok(()));
    assert_eq!(check(vec![close(KNOWN, None)]), Err(FsError::Invalid));
    assert_eq!(check(vec![read(), read()]), Err(FsError::Invalid));
    assert_eq!(check(vec![read(), close(KNOWN, None), close(KNOWN, None)]), Err(FsError::Invalid));
    assert_eq!(check(vec![read(), close(KNOWN, None), read()]), Err(FsError::Invalid));
}
