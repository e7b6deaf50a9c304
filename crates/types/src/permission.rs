//! Who may do what: the decisions of POSIX and Linux, as pure functions.
//!
//! A decision may depend on supplementary groups that were not looked up yet
//! ([`Credentials::groups`] of `None`). Then, and only then, the answer is
//! [`Decision::GroupsNeeded`]: if the result is the same whatever the groups are, it is returned at
//! once.

use crate::{
    Attributes, Credentials, FileKind, FsError, FsResult,
    access_list::{AccessList, Tag},
    mode::{S_ISGID, S_ISVTX},
};

/// Permission to read.
pub const READ: u32 = 4;
/// Permission to write.
pub const WRITE: u32 = 2;
/// Permission to execute, or to search a directory.
pub const EXECUTE: u32 = 1;

/// Outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Allow,
    /// No.
    Deny,
    /// It depends on groups not looked up yet.
    GroupsNeeded,
}

impl Decision {
    fn of(allowed: bool) -> Self {
        if allowed { Decision::Allow } else { Decision::Deny }
    }

    /// From `in_group`'s answer.
    pub fn of_membership(member: Option<bool>) -> Self {
        member.map_or(Decision::GroupsNeeded, Decision::of)
    }

    /// Success, `denied`, or the request for groups.
    pub fn or(self, denied: FsError) -> FsResult<()> {
        match self {
            Decision::Allow => Ok(()),
            Decision::Deny => Err(denied),
            Decision::GroupsNeeded => Err(FsError::GroupsNeeded),
        }
    }
}

/// Whether `who` may do `wanted` (a mask of [`READ`], [`WRITE`], [`EXECUTE`]); `list` is the
/// inode's access list, if it has one (generic_permission and posix_acl_permission of Linux).
pub fn access(who: &Credentials, attributes: &Attributes, list: Option<&AccessList>, wanted: u32) -> Decision {
    let mode = attributes.mode;
    if who.is_root() {
        let executable = attributes.kind == FileKind::Directory || mode & 0o111 != 0;
        return Decision::of(wanted & EXECUTE == 0 || executable);
    }
    let grants = |permissions: u32| permissions & wanted == wanted;
    if who.uid == attributes.uid {
        return Decision::of(grants(mode >> 6));
    }
    let outcomes = match list {
        Some(list) => list_outcomes(who, attributes.gid, list, wanted),
        None => match who.in_group(attributes.gid) {
            Some(member) => vec![grants(if member { mode >> 3 } else { mode })],
            None => vec![grants(mode >> 3), grants(mode)],
        },
    };
    let first = outcomes[0];
    if outcomes.iter().all(|outcome| *outcome == first) { Decision::of(first) } else { Decision::GroupsNeeded }
}

/// The decision of a list for a user other than the owner: one outcome for each possible result of
/// the unknown groups; at least one.
fn list_outcomes(who: &Credentials, owning_group: u32, list: &AccessList, wanted: u32) -> Vec<bool> {
    let grants = |permissions: u32| permissions & wanted == wanted;
    let within_mask = grants(list.mask());
    let entries = list.entries();
    if let Some(user) = entries.iter().find(|entry| entry.tag == Tag::User(who.uid)) {
        return vec![grants(user.permissions) && within_mask];
    }
    let (mut matched, mut granted, mut unknown) = (false, false, Vec::new());
    for entry in entries {
        let group = match entry.tag {
            Tag::OwningGroup => owning_group,
            Tag::Group(group) => group,
            _ => continue,
        };
        match who.in_group(group) {
            Some(true) => {
                matched = true;
                granted |= grants(entry.permissions);
            }
            Some(false) => {}
            None => unknown.push(grants(entry.permissions) && within_mask),
        }
    }
    if granted {
        return vec![within_mask];
    }
    let other = entries.iter().find(|entry| entry.tag == Tag::Other).is_some_and(|entry| grants(entry.permissions));
    unknown.push(!matched && other);
    unknown
}

/// Whether `who` counts as the owner: may chmod, set times and access lists.
pub fn owns(who: &Credentials, attributes: &Attributes) -> bool {
    who.is_root() || who.uid == attributes.uid
}

/// Whether the sticky bit of `directory` forbids `who` to remove or rename `victim` in it.
pub fn sticky_forbids(who: &Credentials, directory: &Attributes, victim: &Attributes) -> bool {
    directory.mode & S_ISVTX != 0 && !who.is_root() && who.uid != directory.uid && who.uid != victim.uid
}

/// Whether `who` may keep or set the set-group-id bit of something of group `gid`.
pub fn may_set_group_id(who: &Credentials, gid: u32) -> Decision {
    if who.is_root() { Decision::Allow } else { Decision::of_membership(who.in_group(gid)) }
}

/// The mode without the set-id bits that a write, truncation or change of owner takes away
/// (setattr_should_drop_suidgid of Linux): set-user-id always; set-group-id if the group may
/// execute (else it meant mandatory locking).
pub fn without_set_id(mode: u32) -> u32 {
    let mode = mode & !crate::mode::S_ISUID;
    if mode & 0o010 != 0 { mode & !S_ISGID } else { mode }
}

/// The mode after `who` changed a file's contents: root may leave set-id bits as they are
/// (CAP_FSETID), members of the group set-group-id without group execution.
pub fn mode_after_write(who: &Credentials, attributes: &Attributes) -> FsResult<u32> {
    if who.is_root() {
        return Ok(attributes.mode);
    }
    let mode = without_set_id(attributes.mode);
    if mode & S_ISGID == 0 {
        return Ok(mode);
    }
    match may_set_group_id(who, attributes.gid) {
        Decision::Allow => Ok(mode),
        Decision::Deny => Ok(mode & !S_ISGID),
        Decision::GroupsNeeded => Err(FsError::GroupsNeeded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InodeNumber, Timestamp, access_list::list};

    fn file(uid: u32, gid: u32, mode: u32) -> Attributes {
        let time = Timestamp::default();
        Attributes {
            inode: InodeNumber(9),
            kind: FileKind::Regular,
            mode,
            links: 1,
            uid,
            gid,
            device: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: 0,
            project: 0,
        }
    }

    fn who(uid: u32, gid: u32, groups: Option<&[u32]>) -> Credentials {
        Credentials { uid, gid, groups: groups.map(<[u32]>::to_vec) }
    }

    #[test]
    fn owner_group_and_others_each_have_their_bits() {
        let owner = who(1, 9, None);
        assert_eq!(access(&owner, &file(1, 9, 0o077), None, READ), Decision::Deny, "the owner's bits, not the group's");
        let member = who(2, 9, None);
        assert_eq!(
            access(&member, &file(1, 9, 0o707), None, READ),
            Decision::Deny,
            "the group's bits, not the others'"
        );
        assert_eq!(access(&member, &file(1, 9, 0o060), None, READ | WRITE), Decision::Allow);
        let other = who(2, 3, Some(&[4]));
        assert_eq!(access(&other, &file(1, 9, 0o774), None, READ), Decision::Allow);
        assert_eq!(access(&other, &file(1, 9, 0o774), None, READ | EXECUTE), Decision::Deny);
    }

    #[test]
    fn root_executes_only_what_somebody_may() {
        let root = Credentials::root();
        assert_eq!(access(&root, &file(1, 1, 0), None, READ | WRITE), Decision::Allow);
        assert_eq!(access(&root, &file(1, 1, 0), None, EXECUTE), Decision::Deny);
        assert_eq!(access(&root, &file(1, 1, 0o001), None, EXECUTE), Decision::Allow);
        let directory = Attributes { kind: FileKind::Directory, ..file(1, 1, 0) };
        assert_eq!(access(&root, &directory, None, EXECUTE), Decision::Allow);
    }

    #[test]
    fn groups_are_asked_for_only_where_they_decide() {
        let unknown = who(2, 3, None);
        assert_eq!(access(&unknown, &file(1, 9, 0o755), None, READ), Decision::Allow);
        assert_eq!(access(&unknown, &file(1, 9, 0o700), None, READ), Decision::Deny);
        assert_eq!(access(&unknown, &file(1, 9, 0o750), None, READ), Decision::GroupsNeeded);
        assert_eq!(access(&unknown, &file(1, 9, 0o705), None, READ), Decision::GroupsNeeded);
        assert_eq!(access(&who(2, 3, Some(&[9])), &file(1, 9, 0o705), None, READ), Decision::Deny);
    }

    #[test]
    fn lists_name_users_and_groups_within_the_mask() {
        let acl = list(&[
            (Tag::Owner, 7),
            (Tag::User(5), 7),
            (Tag::OwningGroup, 0),
            (Tag::Group(20), 6),
            (Tag::Group(21), 1),
            (Tag::Mask, 4),
            (Tag::Other, 7),
        ]);
        let subject = file(1, 9, 0o747);
        let check = |who: Credentials, wanted| access(&who, &subject, Some(&acl), wanted);
        assert_eq!(check(who(1, 0, None), WRITE), Decision::Allow, "the mask does not bind the owner");
        assert_eq!(check(who(5, 20, None), READ), Decision::Allow);
        assert_eq!(check(who(5, 0, None), WRITE), Decision::Deny, "the mask binds a named user");
        assert_eq!(check(who(6, 20, None), READ), Decision::Allow, "one granting group suffices");
        assert_eq!(check(who(6, 20, None), WRITE), Decision::Deny);
        assert_eq!(check(who(6, 9, Some(&[])), READ), Decision::Deny, "a member never falls through to others");
        assert_eq!(check(who(6, 7, Some(&[])), WRITE), Decision::Allow, "nobody's member is an other");
        assert_eq!(check(who(6, 7, None), WRITE), Decision::GroupsNeeded);
        assert_eq!(check(who(6, 9, None), WRITE), Decision::Deny, "no unknown group could grant it");
        assert_eq!(check(who(6, 9, None), READ), Decision::GroupsNeeded, "group 20 would grant it");
    }

    #[test]
    fn sticky_directories_protect_their_entries() {
        let directory = Attributes { mode: 0o1777, ..file(1, 1, 0) };
        assert!(sticky_forbids(&who(3, 1, None), &directory, &file(2, 1, 0o777)));
        assert!(!sticky_forbids(&who(2, 1, None), &directory, &file(2, 1, 0)));
        assert!(!sticky_forbids(&who(1, 1, None), &directory, &file(2, 1, 0)));
        assert!(!sticky_forbids(&Credentials::root(), &directory, &file(2, 1, 0)));
        assert!(!sticky_forbids(&who(3, 1, None), &file(1, 1, 0o777), &file(2, 1, 0)));
    }

    #[test]
    fn set_id_bits_go() {
        assert_eq!(without_set_id(0o6755), 0o755);
        assert_eq!(without_set_id(0o6745), 0o2745);
        assert_eq!(without_set_id(0o1644), 0o1644);
        for (by, before, after) in [
            (who(1, 1, None), 0o6755, Ok(0o755)),
            (Credentials::root(), 0o6755, Ok(0o6755)),
            (who(1, 1, Some(&[])), 0o2666, Ok(0o666)),
            (who(1, 1, Some(&[7])), 0o6666, Ok(0o2666)),
            (who(1, 7, None), 0o2666, Ok(0o2666)),
            (who(1, 1, None), 0o2666, Err(FsError::GroupsNeeded)),
        ] {
            assert_eq!(mode_after_write(&by, &file(5, 7, before)), after, "{by:?} {before:o}");
        }
    }
}
