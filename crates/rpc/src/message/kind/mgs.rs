//! The table of requests to the management service.

use super::row::{Effect, Permission as P, ReplySize, RequestRow};
use crate::message::MgsRequest;

/// Kinds of [`MgsRequest`], in the order of its variants: the place is the number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the variant of [`MgsRequest`] of that name")]
pub enum MgsKind {
    Register,
    GetMap,
    SetParameter,
    SetState,
    Ping,
    PoolNew,
    PoolAdd,
    PoolRemove,
    PoolDestroy,
    Disconnect,
}

impl MgsKind {
    /// All of them, in order.
    pub const ALL: [MgsKind; 10] = [
        MgsKind::Register,
        MgsKind::GetMap,
        MgsKind::SetParameter,
        MgsKind::SetState,
        MgsKind::Ping,
        MgsKind::PoolNew,
        MgsKind::PoolAdd,
        MgsKind::PoolRemove,
        MgsKind::PoolDestroy,
        MgsKind::Disconnect,
    ];

    /// What is known of all requests of this kind.
    pub const fn row(self) -> RequestRow<'static> {
        use MgsKind as K;
        let (name, effect, reply, permission) = match self {
            K::Register => ("mgs_register", Effect::State, ReplySize::Small, P::Targets),
            K::GetMap => ("mgs_get_map", Effect::Nothing, ReplySize::Body, P::Everybody),
            K::SetParameter => ("mgs_set_parameter", Effect::State, ReplySize::Small, P::ServerKey),
            K::SetState => ("mgs_set_state", Effect::State, ReplySize::Small, P::ServerKey),
            K::Ping => ("mgs_ping", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::PoolNew => ("mgs_pool_new", Effect::State, ReplySize::Small, P::ServerKey),
            K::PoolAdd => ("mgs_pool_add", Effect::State, ReplySize::Small, P::ServerKey),
            K::PoolRemove => ("mgs_pool_remove", Effect::State, ReplySize::Small, P::ServerKey),
            K::PoolDestroy => ("mgs_pool_destroy", Effect::State, ReplySize::Small, P::ServerKey),
            K::Disconnect => ("mgs_disconnect", Effect::State, ReplySize::Small, P::Everybody),
        };
        RequestRow::new(self as u8, name, effect, reply, permission)
    }
}

impl MgsRequest {
    /// Its kind's row, with what its contents add.
    pub fn row(&self) -> RequestRow<'_> {
        use MgsKind as K;
        use MgsRequest as R;
        match self {
            R::Register(..) => K::Register.row(),
            R::GetMap(..) => K::GetMap.row(),
            R::SetParameter(..) => K::SetParameter.row(),
            R::SetState(..) => K::SetState.row(),
            R::Ping => K::Ping.row(),
            R::PoolNew(..) => K::PoolNew.row(),
            R::PoolAdd(..) => K::PoolAdd.row(),
            R::PoolRemove(..) => K::PoolRemove.row(),
            R::PoolDestroy(..) => K::PoolDestroy.row(),
            R::Disconnect => K::Disconnect.row(),
        }
    }
}
