//! The table of requests to an object storage target.

use super::row::{DataAccess, Effect, Permission as P, ReplySize, RequestRow};
use crate::message::OstRequest;

/// Kinds of [`OstRequest`], in the order of its variants: the place is the number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the variant of [`OstRequest`] of that name")]
pub enum OstKind {
    Write,
    Read,
    Space,
    Seek,
    Glimpse,
    Sync,
    Destroy,
    StatFs,
    ListObjects,
    Verify,
    Evict,
    Ping,
    Disconnect,
    Fence,
    Check,
    Extents,
}

impl OstKind {
    /// All of them, in order.
    pub const ALL: [OstKind; 16] = [
        OstKind::Write,
        OstKind::Read,
        OstKind::Space,
        OstKind::Seek,
        OstKind::Glimpse,
        OstKind::Sync,
        OstKind::Destroy,
        OstKind::StatFs,
        OstKind::ListObjects,
        OstKind::Verify,
        OstKind::Evict,
        OstKind::Ping,
        OstKind::Disconnect,
        OstKind::Fence,
        OstKind::Check,
        OstKind::Extents,
    ];

    /// What is known of all requests of this kind.
    pub const fn row(self) -> RequestRow<'static> {
        use OstKind as K;
        let (name, effect, reply, permission) = match self {
            K::Write => ("ost_write", Effect::Data, ReplySize::Small, P::Everybody),
            K::Read => ("ost_read", Effect::Nothing, ReplySize::DATA_MAX, P::Everybody),
            K::Space => ("ost_space", Effect::Data, ReplySize::Small, P::Everybody),
            K::Seek => ("ost_seek", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::Glimpse => ("ost_glimpse", Effect::Nothing, ReplySize::Body, P::Everybody),
            K::Sync => ("ost_sync", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::Destroy => ("ost_destroy", Effect::State, ReplySize::Small, P::MdtsAndRepair),
            K::StatFs => ("ost_statfs", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::ListObjects => ("ost_list_objects", Effect::Nothing, ReplySize::Body, P::Tools),
            K::Verify => ("ost_verify", Effect::Nothing, ReplySize::Small, P::Tools),
            K::Evict => ("ost_evict", Effect::State, ReplySize::Small, P::Mdts),
            K::Ping => ("ost_ping", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::Disconnect => ("ost_disconnect", Effect::State, ReplySize::Small, P::Everybody),
            K::Fence => ("ost_fence", Effect::State, ReplySize::Small, P::Mdts),
            K::Check => ("ost_check", Effect::Nothing, ReplySize::Body, P::Tools),
            K::Extents => ("ost_extents", Effect::Nothing, ReplySize::Body, P::Everybody),
        };
        RequestRow::new(self as u8, name, effect, reply, permission)
    }
}

impl OstRequest {
    /// Its kind's row, with what its contents add.
    pub fn row(&self) -> RequestRow<'_> {
        use OstKind as K;
        use OstRequest as R;
        match self {
            R::Write(write) => K::Write.row().of_data(DataAccess::Changes(write.object)).durable_if(write.sync),
            R::Read(read) => {
                let reply = ReplySize::Data(read.bytes);
                K::Read.row().of_data(DataAccess::Reads(read.object)).answered_by(reply)
            }
            R::Space(object, ..) => K::Space.row().of_data(DataAccess::Changes(*object)),
            R::Seek(object, ..) => K::Seek.row().of_data(DataAccess::Reads(*object)),
            R::Glimpse(objects) => K::Glimpse.row().of_data(DataAccess::Looks(objects)),
            R::Sync(..) => K::Sync.row(),
            R::Destroy(..) => K::Destroy.row(),
            R::StatFs => K::StatFs.row(),
            R::ListObjects(..) => K::ListObjects.row(),
            R::Verify(..) => K::Verify.row(),
            R::Evict(..) => K::Evict.row(),
            R::Ping => K::Ping.row(),
            R::Disconnect => K::Disconnect.row(),
            R::Fence(..) => K::Fence.row(),
            R::Check(..) => K::Check.row(),
            R::Extents(query) => K::Extents.row().of_data(DataAccess::Reads(query.object)),
        }
    }
}
