//! Listings of directories in which this client changes names.
//!
//! A listing is not served while a change of a name in it is under way, and is right again when the
//! last one has been answered: the reply to each says which name it changed, and where that is.
//! Changes of different names may be followed in any order, in that of their replies too. Two
//! changes of one name that overlap may not, and neither may one whose reply does not tell: then
//! the listing is dropped.
//!
//! Why nothing is missed: a listing that is known when a change is answered was known when the
//! change was asked for, because none is kept while a change of its names is under way. So the
//! locks were held from before the change until now, and no other client has changed a name.

use rpc::message::MdtReply;
use types::LockHandle;

use super::{InodeCache, Reply};
use crate::cache::{cached_inode::LISTING_BITS, own_changes::Moment, question::Question, subject::Subject};

impl InodeCache {
    /// A question was answered, or failed: listings are as it leaves them, or dropped. To be called
    /// before its change ends.
    pub(super) fn follow_names(
        &mut self,
        question: &Question,
        asked: Moment,
        granted: &[LockHandle],
        reply: Option<&Reply<'_>>,
    ) {
        let changed_nothing = reply.is_some_and(|reply| match reply.reply {
            MdtReply::Created(created) => !created.created,
            // To be asked again.
            MdtReply::SyncFirst(_) | MdtReply::Waiting => true,
            _ => false,
        });
        let told = reply.map_or(&[][..], |reply| &reply.beside.names);
        for subject in &question.changes {
            let Subject::Name(directory, name) = subject else { continue };
            if !self.listings.knows(*directory) {
                continue;
            }
            let is_known = self.bits_since(*directory, asked, granted) & LISTING_BITS == LISTING_BITS
                && self.changes.name_holds(*directory, name, asked, &question.changes);
            let told = told.iter().rev().find(|changed| changed.directory == *directory && changed.name == *name);
            match told.filter(|_| is_known) {
                Some(changed) => self.listings.follow(changed, self.epoch, self.locks_max),
                None if is_known && changed_nothing => {}
                None => self.listings.forget(*directory),
            }
        }
    }
}
