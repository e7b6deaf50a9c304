//! What a request changes, and which locks the kernel holds for it until it is answered.

use std::collections::BTreeSet;

use rpc::message::control::{ControlRequest, Subject};

use super::{call::Adapter, file_flags};
use crate::kernel_cache::Change;
use crate::protocol::Operation;

/// Inodes of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changed {
    /// Their locks are held exclusively: nothing can be looked up or listed in these directories,
    /// nor dropped.
    locked: BTreeSet<u64>,
    /// Their attributes change.
    inodes: BTreeSet<u64>,
    /// Directories that get another directory above them: `..` in their listings.
    moved: BTreeSet<u64>,
}

/// Begins the change that a request makes, if it makes one.
pub fn begin(adapter: &Adapter, node: u64, operation: &Operation<'_>) -> Option<Change> {
    let named = |parent, name: &[u8]| adapter.kernel.named(parent, name);
    let Changed { locked, inodes, moved } = changed(node, operation, named);
    if locked.is_empty() && inodes.is_empty() {
        return None;
    }
    let change = adapter.kernel.begin_change(locked.into_iter().collect(), inodes.into_iter().collect())?;
    // Nothing reads them before the answer: their locks are held.
    Some(change.of_listings(moved))
}

fn changed(node: u64, operation: &Operation<'_>, named: impl Fn(u64, &[u8]) -> Option<u64>) -> Changed {
    let (locked, inodes): (Vec<u64>, Vec<u64>) = match *operation {
        Operation::Create { .. }
        | Operation::MakeNode { .. }
        | Operation::MakeDirectory { .. }
        | Operation::Symlink { .. }
        // The locks of inodes are those of directories here, which is harmless for others.
        | Operation::SetAttributes(_)
        | Operation::SetXattr { .. }
        | Operation::RemoveXattr { .. } => (vec![node], vec![node]),
        Operation::Unlink { name } | Operation::RemoveDirectory { name } => {
            (vec![node], [node].into_iter().chain(named(node, name)).collect())
        }
        Operation::Link { link, .. } => (vec![node], vec![node, link.node]),
        Operation::Rename { rename, name, new_name } => {
            let (source, target) = (named(node, name), named(rename.new_parent, new_name));
            let mut moved = BTreeSet::new();
            if node != rename.new_parent {
                moved.extend(source);
                moved.extend(target.filter(|_| rename.flags & libc::RENAME_EXCHANGE != 0));
            }
            let parents = [node, rename.new_parent];
            // Linux locks directories that change their parents, too.
            let locked = parents.into_iter().chain(moved.iter().copied()).collect();
            return Changed { locked, inodes: parents.into_iter().chain(source).chain(target).collect(), moved };
        }
        // No attributes are given out of a file that is open for writing: the kernel changes those
        // that it has as it writes.
        Operation::Open(open) if opens_for_change(open.flags) => (vec![], vec![node]),
        Operation::Ioctl { ioctl, .. } if file_flags::Request::of(ioctl.command).is_some_and(|flags| flags.sets()) => {
            (vec![node], vec![node])
        }
        _ => return Changed::default(),
    };
    Changed { locked: locked.into_iter().collect(), inodes: inodes.into_iter().collect(), ..Changed::default() }
}

fn opens_for_change(flags: u32) -> bool {
    flags & libc::O_ACCMODE.cast_unsigned() != libc::O_RDONLY.cast_unsigned()
        || flags & libc::O_TRUNC.cast_unsigned() != 0
}

/// Begins the change that a control request on `node` makes.
pub fn begin_control(adapter: &Adapter, node: u64, request: &ControlRequest) -> Option<Change> {
    if !request.changes() {
        return None;
    }
    let of = |subject: &Subject| match subject {
        Subject::This => Some(node),
        Subject::Name(name) => adapter.kernel.named(node, name),
    };
    let mut inodes = BTreeSet::from([node]);
    match request {
        ControlRequest::ChangeLayout(subject, ..) | ControlRequest::MoveInode(subject, _) => inodes.extend(of(subject)),
        ControlRequest::SwapLayouts { first: (first, _), second: (second, _) } => {
            inodes.insert(second.0);
            inodes.extend(of(first));
        }
        ControlRequest::TakeLayout { of, .. } => drop(inodes.insert(of.0)),
        _ => {}
    }
    adapter.kernel.begin_change(Vec::new(), inodes.into_iter().collect())
}

/// The directory in which a control request makes a name, of which the kernel does not know, or
/// gives one another inode.
pub fn named_by_control(node: u64, request: &ControlRequest) -> Option<u64> {
    let names = matches!(
        request,
        ControlRequest::CreateWithLayout { .. }
            | ControlRequest::MakeDirectory { .. }
            | ControlRequest::MoveInode(Subject::Name(_), _)
    );
    names.then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::request::{OpenIn, Rename2In};

    fn of(operation: &Operation<'_>) -> (Vec<u64>, Vec<u64>) {
        let named = |parent, name: &[u8]| (name != b"unknown").then(|| parent * 100 + u64::from(name[0] - b'a'));
        let Changed { locked, inodes, .. } = changed(5, operation, named);
        (locked.into_iter().collect(), inodes.into_iter().collect())
    }

    #[test]
    fn locks_are_those_that_linux_holds() {
        assert_eq!(of(&Operation::Unlink { name: b"b" }), (vec![5], vec![5, 501]));
        assert_eq!(of(&Operation::Unlink { name: b"unknown" }), (vec![5], vec![5]));
        let rename = |new_parent, flags| {
            let rename = Rename2In { new_parent, flags, padding: 0 };
            of(&Operation::Rename { rename, name: b"b", new_name: b"c" })
        };
        assert_eq!(rename(5, 0), (vec![5], vec![5, 501, 502]));
        assert_eq!(rename(6, 0), (vec![5, 6, 501], vec![5, 6, 501, 602]));
        assert_eq!(rename(6, libc::RENAME_EXCHANGE), (vec![5, 6, 501, 602], vec![5, 6, 501, 602]));
        assert_eq!(of(&Operation::Lookup { name: b"b" }), (vec![], vec![]));
    }

    #[test]
    fn opens_change_what_they_let_write() {
        let open = |flags: i32| of(&Operation::Open(OpenIn { flags: flags.cast_unsigned(), ..OpenIn::default() })).1;
        assert_eq!(open(libc::O_RDONLY | libc::O_NONBLOCK), []);
        for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY | libc::O_TRUNC] {
            assert_eq!(open(flags), [5]);
        }
    }
}
