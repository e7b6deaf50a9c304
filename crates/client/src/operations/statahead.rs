//! Asking for attributes ahead of a program that looks at the names of a directory: see
//! [`crate::cache::statahead`].

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{OpenFlags, ReadDirectory, open_flag},
};
use types::{FsError, FsResult, InodeNumber};

use crate::{FileSystem, cache::statahead::Ahead};

impl FileSystem {
    /// A name is about to be asked for. Asks for a page of its directory instead if that seems
    /// better; whether the cache may know more now. What came is under locks like every page of a
    /// listing. Fails if the MDT does not answer, since it would not answer the next question,
    /// either.
    pub(super) async fn look_ahead(&self, directory: InodeNumber, name: &[u8]) -> FsResult<bool> {
        let names_max = self.statahead_max();
        if names_max == 0 {
            return Ok(false);
        }
        let step = self.look(directory, |cache| Some((cache.ahead(directory, name, names_max)?, cache.use_moment())));
        let Some((step, moment)) = step else { return Ok(false) };
        if step.has_left_order {
            self.statistics.statahead.left_order();
        }
        let Some(Ahead { cookie, count }) = step.ahead else { return Ok(false) };
        // Nothing is opened: the lock on the directory's opens allows to read it.
        let unasked = Some(OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME));
        let open = self.next_open_id();
        let read = ReadDirectory { inode: directory, open, cookie, entries_max: count, attributes: true, unasked };
        match self.call(directory, MdtRequest::ReadDirectory(read)).await.map(|answered| answered.reply) {
            Ok(MdtReply::Directory(page, _)) => {
                self.statistics.statahead.asked(page.len());
                let _: Option<()> = self.look(directory, |cache| {
                    cache.expect(&page, moment);
                    None
                });
                Ok(true)
            }
            Err(error @ FsError::Unreachable { .. }) => Err(error),
            // The lock has gone, for example. The name itself is asked for.
            _ => Ok(false),
        }
    }
}
