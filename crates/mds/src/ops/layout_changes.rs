//! Changes of a file's layout by request: components added or deleted, another layout for a file
//! without data.
//!
//! What other clients know about a layout must stay true while they have the file open (decision
//! 0008): components are only added meanwhile. Deletion of components that may hold data, and
//! replacement, do not wait for other clients: they are refused.
//!
//! While the MDT recovers, a client may come back whose layout has grown to a generation that this
//! MDT lost in a power loss, and that a change would assign to another layout: so additions and
//! deletions wait for the end of the recovery.

use layout::{Backing, Component, ComponentId, ComponentSpec, Form, Layout, LayoutSpec, Location};
use rpc::message::{MdtReply, mdt::LayoutChange};
use types::{Credentials, FsError, FsResult, Generation, InodeNumber, permission};

use crate::{
    known_size, protection,
    tables::{
        deferred_log::DeferredOperation,
        inode::{Inode, InodeData, Link},
    },
    transaction::Transaction,
};

pub(crate) fn run(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    inode: InodeNumber,
    change: &LayoutChange,
) -> FsResult<MdtReply> {
    let mut inode = txn.inode(inode)?;
    let layout = inode.layout().cloned().ok_or(FsError::Invalid)?;
    txn.require(who, &inode, permission::WRITE)?;
    if matches!(change, LayoutChange::Delete { .. }) {
        protection::check_change(&inode.attributes)?;
    }
    if txn.volatile.recovery.running() && matches!(change, LayoutChange::Add(_) | LayoutChange::Delete { .. }) {
        txn.wait_for_recovery();
        return Ok(MdtReply::Waiting);
    }
    let changed = match change {
        LayoutChange::Add(components) => add(txn, layout, components)?,
        LayoutChange::Delete { components, generation } => delete(txn, &mut inode, layout, components, *generation)?,
        LayoutChange::Replace(spec) => replacement(txn, &inode, spec)?,
        LayoutChange::Begin { epoch, spec, like } => beginning(txn, &inode, *epoch, spec, *like)?,
    };
    changed.validate().map_err(|_| FsError::Invalid)?;
    inode.data = InodeData::Regular(changed);
    inode.change(txn.now());
    txn.put_inode(&inode);
    Ok(MdtReply::Done)
}

fn add(txn: &Transaction<'_>, mut layout: Layout, components: &[ComponentSpec]) -> FsResult<Layout> {
    if layout.form == Form::Plain {
        return Err(FsError::Invalid);
    }
    layout::check_components(components, layout.end(), txn.context.parameters.bytes_on_mdt_max)?;
    txn.check_named(&LayoutSpec::Composite(components.to_vec()))?;
    // Data on the MDT would have objects at once, which is not expected of an open file.
    if components.iter().any(|component| component.stripes().is_none()) {
        return Err(FsError::NotSupported);
    }
    let before = layout.ids_next;
    txn.sized(components).iter().for_each(|component| layout.append(component));
    layout.generation = Generation(layout.generation.0 + u64::from(layout.ids_next - before));
    Ok(layout)
}

fn delete(
    txn: &mut Transaction<'_>,
    inode: &mut Inode,
    mut layout: Layout,
    components: &[ComponentId],
    generation: Generation,
) -> FsResult<Layout> {
    if layout.generation != generation {
        return Err(FsError::WouldBlock);
    }
    let kept = layout.components.len().checked_sub(components.len()).ok_or(FsError::Invalid)?;
    let last = &layout.components[kept..];
    if layout.form == Form::Plain || components.is_empty() || !last.iter().all(|one| components.contains(&one.id)) {
        return Err(FsError::Invalid);
    }
    let is_part = |one: &Component| {
        !one.slots().is_empty() && layout.components[..kept].iter().any(|other| other.slots() == one.slots())
    };
    if last.iter().any(is_part) {
        // Its objects would stay, with its data in them.
        return Err(FsError::NotSupported);
    }
    // Objects exist from the first opening for writing on.
    if known_size::may_have_objects(inode) && last.iter().any(Component::is_instantiated) {
        if !is_free(txn, inode) {
            return Err(FsError::Busy);
        }
        txn.release_space();
        for component in last {
            destroy_objects(txn, inode.number(), &layout, component)?;
        }
        known_size::lose_writer(inode);
        // Those that the objects left behind have made.
        inode.accounted.changes = 0;
        inode.change_contents(txn.now());
    }
    layout.components.truncate(kept);
    layout.generation = layout.generation.next();
    Ok(layout)
}

/// Whether no client can know anything about the file's data that a removal would make wrong.
fn is_free(txn: &Transaction<'_>, inode: &Inode) -> bool {
    !txn.is_open(inode.number()) && is_at_rest(txn, inode)
}

/// Whether nothing is in progress that changes the file's data without an open of it.
pub(super) fn is_at_rest(txn: &Transaction<'_>, inode: &Inode) -> bool {
    let volatile = &txn.volatile;
    !volatile.recovery.running()
        && volatile.exclusive.holder(inode.number()).is_none()
        && !volatile.fences.touch(inode.osts())
}

fn destroy_objects(
    txn: &mut Transaction<'_>,
    inode: InodeNumber,
    layout: &Layout,
    component: &Component,
) -> FsResult<()> {
    if matches!(component.backing, Backing::Mdt { .. }) {
        return txn.delete_data(inode);
    }
    for slot in component.slots() {
        if let Some(Location::Ost(ost)) = layout.location(slot) {
            txn.tell(ost, DeferredOperation::Destroy(layout.object(inode, slot)));
        }
    }
    Ok(())
}

/// Another layout for a file that was never opened for writing, and so has no objects. What the
/// request leaves open its directory fills.
fn replacement(txn: &mut Transaction<'_>, inode: &Inode, spec: &LayoutSpec) -> FsResult<Layout> {
    let known = inode.layout().ok_or(FsError::Invalid)?;
    if known_size::may_have_objects(inode) || inode.attributes.size > 0 {
        return Err(FsError::Exists);
    }
    if txn.is_open(inode.number()) || txn.volatile.recovery.running() {
        return Err(FsError::Busy);
    }
    new_layout(txn, spec, inode, known.generation)
}

/// Another layout for a file without a name, in which its only opener never changed anything: so no
/// object of its present layout was ever made, and its slots may be given once more. The opener
/// says that it has not written; that nothing was cut off again, and that the layout did not come
/// from another file, is known here.
fn beginning(
    txn: &mut Transaction<'_>,
    inode: &Inode,
    epoch: u64,
    spec: &LayoutSpec,
    like: InodeNumber,
) -> FsResult<Layout> {
    let known = inode.layout().ok_or(FsError::Invalid)?;
    let (number, client) = (inode.number(), txn.context.client);
    let own = txn.volatile.opens.of_client(client).find(|(_, file)| file.inode == number);
    let began = own.is_some_and(|(_, file)| file.began && file.epoch == Some(inode.epoch)) && known.named_by.is_none();
    let alone = began && txn.volatile.opens.is_open_only_by(number, own.map(|(key, _)| key));
    if inode.attributes.links > 0 || inode.epoch != epoch || !alone || !is_at_rest(txn, inode) {
        return Err(FsError::Busy);
    }
    if !txn.is_here(like) {
        return Err(FsError::CrossDevice);
    }
    let like = txn.inode(like)?;
    new_layout(txn, spec, &like, known.generation)
}

/// A layout by request; what it leaves open the directory of `like` fills. Its generation is beyond
/// `before`.
fn new_layout(txn: &mut Transaction<'_>, spec: &LayoutSpec, like: &Inode, before: Generation) -> FsResult<Layout> {
    txn.check_named(spec)?;
    let directory = match &like.first_link {
        Some(Link { parent, .. }) => txn.find_inode(*parent)?,
        None => None,
    };
    let default = directory.map(|directory| txn.default_layout(&directory)).transpose()?.flatten();
    let spec = layout::resolve(Some(spec), default.as_ref(), &txn.context.parameters.default_layout);
    let mut layout = txn.new_layout(&spec)?;
    layout.generation = layout.generation.max(before.next());
    Ok(layout)
}
