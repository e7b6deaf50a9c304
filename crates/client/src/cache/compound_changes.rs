//! What the compounds of this client change, as far as the cache is concerned. Pure.

use rpc::message::{
    Step,
    compound::StepInode,
    mdt::{OpenFlags, open_flag},
};
use types::InodeNumber;

use super::{
    name_table::{Name, NameTable},
    question::{named, opened},
    subject::Subject,
};

/// The inode that a step is about.
enum About {
    /// This one.
    Inode(InodeNumber),
    /// One that the compound creates, so nothing of it is cached.
    New,
    /// One that is not known.
    Unknown,
}

impl About {
    fn of(inode: StepInode, steps: &[Step], names: &NameTable) -> Self {
        let number = match inode {
            StepInode::Known(inode) => return About::Inode(inode),
            StepInode::Of(number) => usize::from(number),
        };
        // Steps refer to earlier ones only, so this ends even for a compound that is refused later.
        let Some((step, before)) = steps.get(..=number).and_then(<[Step]>::split_last) else { return About::Unknown };
        match step {
            Step::Lookup { parent, name } => match About::of(*parent, before, names) {
                About::Inode(parent) => {
                    names.find(parent, name).and_then(Name::inode).map_or(About::Unknown, About::Inode)
                }
                About::New | About::Unknown => About::Unknown,
            },
            Step::Create { open, .. } if may_exist(*open) => About::Unknown,
            Step::Create { .. } => About::New,
            other => About::of(other.inode(), before, names),
        }
    }

    /// What a change of it makes stale.
    fn changed(self, subject: impl FnOnce(InodeNumber) -> Subject) -> Option<Subject> {
        match self {
            About::Inode(inode) => Some(subject(inode)),
            About::New => None,
            About::Unknown => Some(Subject::AllAttributes),
        }
    }
}

/// Whether a creation may open a file that exists.
fn may_exist<T>(open: Option<(T, OpenFlags)>) -> bool {
    open.is_some_and(|(_, flags)| !flags.has(open_flag::EXCLUSIVE))
}

/// What a compound changes.
pub(super) fn changed(steps: &[Step], names: &NameTable) -> Vec<Subject> {
    steps.iter().flat_map(|step| changed_by(step, steps, names)).collect()
}

fn changed_by(step: &Step, steps: &[Step], names: &NameTable) -> Vec<Subject> {
    let about = About::of(step.inode(), steps, names);
    let changed = match step {
        Step::Create { name, open, .. } => {
            let existing = may_exist(*open).then_some(Subject::AllAttributes);
            return match about {
                About::Inode(parent) => named(parent, name).into_iter().chain(existing).collect(),
                About::New => Vec::new(),
                About::Unknown => unreachable!("this client creates in directories whose numbers it says"),
            };
        }
        Step::SetAttributes { .. } | Step::Write { .. } => about.changed(Subject::Inode),
        Step::Open { flags, .. } => about.changed(|inode| opened(inode, *flags)),
        // The access time.
        Step::ReadLink { .. } | Step::Close { written: Some(_), .. } => about.changed(Subject::Times),
        Step::Lookup { .. }
        | Step::GetAttributes { .. }
        | Step::Access { .. }
        | Step::GetXattr { .. }
        | Step::Read { .. }
        | Step::Close { written: None, .. } => None,
    };
    changed.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use rpc::message::mdt::OpenId;
    use types::NodeKind;

    use super::*;

    const DIRECTORY: InodeNumber = InodeNumber(10);

    fn create(flags: u32) -> Step {
        Step::Create {
            parent: StepInode::Known(DIRECTORY),
            name: b"new".to_vec(),
            kind: NodeKind::Regular,
            mode: 0o644,
            umask: 0,
            layout: None,
            open: Some((OpenId(1), OpenFlags(flags))),
        }
    }

    #[test]
    fn a_new_file_concerns_its_name_and_directory_only() {
        let write = Step::Write { inode: StepInode::Of(0), offset: 0, bytes: 0, checksums: Vec::new() };
        let steps = [create(open_flag::WRITE | open_flag::EXCLUSIVE), write.clone()];
        assert_eq!(changed(&steps, &NameTable::default()), named(DIRECTORY, b"new"));
        let steps = [create(open_flag::WRITE), write];
        assert!(changed(&steps, &NameTable::default()).contains(&Subject::AllAttributes), "it may have existed");
    }

    #[test]
    fn what_a_path_leads_to_is_looked_up_or_unknown() {
        let look = |parent| Step::Lookup { parent, name: b"a".to_vec() };
        let open = Step::Open { inode: StepInode::Of(1), open: OpenId(1), flags: OpenFlags(open_flag::READ) };
        let steps = [look(StepInode::Known(DIRECTORY)), look(StepInode::Of(0)), open];
        assert_eq!(changed(&steps, &NameTable::default()), [Subject::AllAttributes]);
        let read_itself =
            Step::Open { inode: StepInode::Known(DIRECTORY), open: OpenId(1), flags: OpenFlags(open_flag::READ) };
        assert_eq!(changed(&[read_itself], &NameTable::default()), [Subject::Times(DIRECTORY)]);
    }
}
