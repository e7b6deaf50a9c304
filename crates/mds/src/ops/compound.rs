//! Compounds: steps one after the other in one transaction, until one fails. The changes of a step
//! that fails are undone, those of the steps before it are kept.
//!
//! Downside: a step that needs what is not in memory ends the attempt, and the steps before it are
//! executed again.

use rpc::{
    codec,
    message::{
        Compound, CompoundReply, MdtReply, OstReply, Step, StepInode, StepReply,
        compound::StepNumber,
        mdt::{Close, Create, Lookup, Open, OpenId, SizeUpdate},
        ost::ReadDone,
    },
    unexpected,
};
use types::{FsError, FsResult, InodeNumber, limits::COMPOUND_REPLY_BYTES_MAX};

use super::{attributes, close, copies, create, data, lookup, open, setattr, xattrs};
use crate::{
    data::{NewData, StoredData},
    transaction::Transaction,
};

/// Outcome of a compound.
pub(crate) struct Executed {
    /// The replies. Those of reads have no checksums yet.
    pub reply: CompoundReply,
    /// What reads found, with the numbers of their steps.
    pub found: Vec<(usize, StoredData)>,
}

/// A compound in progress.
struct Execution<'a> {
    compound: &'a Compound,
    /// Data of the next writes.
    new: std::slice::Iter<'a, NewData>,
    executed: Executed,
    /// Bytes of all replies so far.
    bytes: usize,
}

/// Executes a compound that passed [`Compound::check`]; `new`: the data of its writes.
pub(crate) fn run(txn: &mut Transaction<'_>, compound: &Compound, new: &[NewData]) -> FsResult<Executed> {
    let reply = CompoundReply { replies: Vec::with_capacity(compound.steps.len()), error: None };
    let executed = Executed { reply, found: Vec::new() };
    let mut execution = Execution { compound, new: new.iter(), executed, bytes: 0 };
    for step in &compound.steps {
        let before = txn.savepoint();
        match execution.step(txn, step) {
            Ok(reply) => {
                let ends = reply.ends();
                if ends {
                    txn.return_to(before);
                } else {
                    txn.open_early();
                }
                execution.executed.reply.replies.push(reply);
                if ends {
                    break;
                }
            }
            Err(error) if txn.is_given_up() => return Err(error),
            Err(error) => {
                txn.return_to(before);
                let Executed { reply, found } = &mut execution.executed;
                found.retain(|(step, _)| *step < reply.replies.len());
                reply.error = Some(error);
                break;
            }
        }
    }
    if !compound.steps.iter().all(|step| matches!(step, Step::Close { .. })) {
        txn.needs_space();
    }
    let executed = execution.executed;
    invite(txn, &executed.reply);
    Ok(executed)
}

/// The repetition of a compound whose reply a former start of this MDT stored: the opens that it
/// left are entered again. A file that is gone since then stays gone: what the compound did besides
/// is not done twice.
pub(crate) fn enter_again(txn: &mut Transaction<'_>, compound: &Compound, reply: &CompoundReply) -> FsResult<()> {
    for (open, opened) in reply.opens_left(compound) {
        match create::enter_again(txn, open, opened) {
            Ok(()) => txn.open_early(),
            Err(FsError::Stale) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The caller may report the sizes of files that it was told are not known.
fn invite(txn: &mut Transaction<'_>, reply: &CompoundReply) {
    let client = txn.context.client;
    for reply in &reply.replies {
        if let StepReply::Entry(entry) = reply
            && let Some(epoch) = entry.quiet
        {
            txn.volatile.invitations.invite(client, entry.attributes.inode, epoch);
        }
    }
}

impl Execution<'_> {
    /// One step; fails also if its reply has no room.
    fn step(&mut self, txn: &mut Transaction<'_>, step: &Step) -> FsResult<StepReply> {
        let inode = self.inode(step.inode())?;
        let reply = self.execute(txn, step, inode)?;
        self.bytes += codec::encode(&reply)?.len();
        if self.bytes > COMPOUND_REPLY_BYTES_MAX { Err(FsError::TooBig) } else { Ok(reply) }
    }

    fn execute(&mut self, txn: &mut Transaction<'_>, step: &Step, inode: InodeNumber) -> FsResult<StepReply> {
        let who = &self.compound.who;
        if step.opens().is_some_and(|(open, _)| txn.is_open_of_caller(open)) {
            // What it replaces could not be restored if the compound failed.
            return Err(FsError::Invalid);
        }
        let reply = match step {
            Step::Lookup { name, .. } => match lookup::run(txn, who, &Lookup { parent: inode, name: name.clone() }) {
                // Its client looks the name up alone, and goes on at the other MDT.
                Ok(MdtReply::Remote(_)) => Err(FsError::CrossDevice),
                found => found,
            },
            Step::GetAttributes { .. } => attributes::get(txn, inode),
            // Its shards take part: its client asks alone.
            Step::SetAttributes { .. } if copies::is_striped(txn, inode)? => Err(FsError::CrossDevice),
            Step::SetAttributes { set, .. } => setattr::run(txn, who, copies::changeable(inode)?, set),
            Step::Access { mask, .. } => attributes::access(txn, who, inode, *mask),
            Step::ReadLink { .. } => attributes::read_link(txn, inode),
            Step::GetXattr { name, .. } => xattrs::get(txn, who, inode, name),
            Step::Open { open, flags, .. } => open::run(txn, who, &Open { inode, open: *open, flags: *flags }),
            Step::Create { name, kind, mode, umask, layout, open, .. } => {
                let (name, kind, layout) = (name.clone(), kind.clone(), layout.clone());
                let create = Create { parent: inode, name, kind, mode: *mode, umask: *umask, layout, open: *open };
                match create::run(txn, who, &create) {
                    Ok(MdtReply::Remote(_)) => Err(FsError::CrossDevice),
                    created => created,
                }
            }
            Step::Write { .. } => {
                let new = self.new.next().ok_or(FsError::Invalid)?;
                data::write_file(txn, inode, new).map(|changed| MdtReply::Data(OstReply::Changed(changed)))
            }
            Step::Read { offset, bytes, .. } => {
                let found = data::read_file(txn, inode, *offset, *bytes)?;
                let done = ReadDone { checksums: Vec::new(), size: found.size };
                self.executed.found.push((self.executed.reply.replies.len(), found));
                Ok(MdtReply::Data(OstReply::Read(done)))
            }
            Step::Close { open, written, .. } => {
                let update = match written {
                    Some(number) => self.size_left(txn, inode, *open, *number)?,
                    None => None,
                };
                close::run(txn, &Close { inode, open: *open, update, flock_owner: None })
            }
        };
        if reply.is_err() && (txn.take_striped().is_some() || txn.take_needs().is_some()) {
            // Its client asks alone: a shard of a striped directory, or with parts of other MDTs.
            return Err(FsError::CrossDevice);
        }
        StepReply::try_from(reply?).map_err(unexpected)
    }

    /// The inode that a step is about.
    fn inode(&self, inode: StepInode) -> FsResult<InodeNumber> {
        match inode {
            StepInode::Known(number) => Ok(number),
            StepInode::Of(step) => self.reply(step).and_then(StepReply::inode).ok_or(FsError::Invalid),
        }
    }

    fn reply(&self, step: StepNumber) -> Option<&StepReply> {
        self.executed.reply.replies.get(usize::from(step))
    }

    /// What the client says of the size of a file that it opened and wrote in this compound.
    /// Nothing if objects on OSTs may have data too.
    fn size_left(
        &self,
        txn: &Transaction<'_>,
        inode: InodeNumber,
        open: OpenId,
        written: StepNumber,
    ) -> FsResult<Option<SizeUpdate>> {
        let of_inode = |step: &Step| self.inode(step.inode()) == Ok(inode);
        let done = || self.compound.steps.iter().zip(&self.executed.reply.replies);
        let opened = done().rev().find(|(step, _)| step.opens().is_some_and(|(id, _)| id == open));
        let opened =
            opened.and_then(|(_, reply)| reply.opened()).filter(|opened| opened.entry.attributes.inode == inode);
        let write = self.compound.steps.get(usize::from(written)).filter(|step| of_inode(step));
        let (Some(opened), Some(_), Some(StepReply::Written(changed))) = (opened, write, self.reply(written)) else {
            return Err(FsError::Invalid);
        };
        if txn.inode(inode)?.layout().is_none_or(|layout| layout.object_count() != 1) {
            return Ok(None);
        }
        let after = &changed.after;
        let (size, blocks, changes) = (after.size, after.blocks, after.changes);
        Ok(Some(SizeUpdate { epoch: opened.epoch, size, blocks, mtime: Some(after.mtime), changes }))
    }
}
