//! Kinds of requests: one row for each. Everything that depends on the kind of a request derives
//! from its row: its opcode, whether its reply is kept, what a sync has to wait for, how much
//! memory its reply may take. Facts that only one side needs are in that side's own table (crate
//! mds, `ops/row.rs`).
//!
//! Invariant: a kind has the same position as its variant in the request's enum, which is its
//! number on the wire.
//!
//! A new request is a variant at the end of its enum and of its enum of kinds; the compiler
//! requires its row, and a test here compares the enums.

mod mdt;
mod mgs;
mod ost;
mod row;

use super::Request;

pub use mdt::MdtKind;
pub use mgs::MgsKind;
pub use ost::OstKind;
pub use row::{DataAccess, Effect, ReplySize, RequestRow};

/// The kind of a request to any target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestKind {
    /// Of one to a metadata target.
    Mdt(MdtKind),
    /// Of one to an object storage target.
    Ost(OstKind),
    /// Of one to the management service.
    Mgs(MgsKind),
}

impl RequestKind {
    /// Number of all kinds.
    pub const COUNT: usize = Self::MGS_FIRST + MgsKind::ALL.len();
    const OST_FIRST: usize = MdtKind::ALL.len();
    const MGS_FIRST: usize = Self::OST_FIRST + OstKind::ALL.len();

    /// All of them, by [`RequestKind::index`].
    pub fn all() -> impl Iterator<Item = RequestKind> {
        let mdt = MdtKind::ALL.into_iter().map(RequestKind::Mdt);
        mdt.chain(OstKind::ALL.into_iter().map(RequestKind::Ost)).chain(MgsKind::ALL.into_iter().map(RequestKind::Mgs))
    }

    /// Place among all kinds, for tables of statistics: families one after the other.
    pub const fn index(self) -> usize {
        match self {
            RequestKind::Mdt(kind) => kind as usize,
            RequestKind::Ost(kind) => Self::OST_FIRST + kind as usize,
            RequestKind::Mgs(kind) => Self::MGS_FIRST + kind as usize,
        }
    }

    /// What is known of all requests of this kind.
    pub const fn row(self) -> RequestRow<'static> {
        match self {
            RequestKind::Mdt(kind) => kind.row(),
            RequestKind::Ost(kind) => kind.row(),
            RequestKind::Mgs(kind) => kind.row(),
        }
    }
}

impl Request {
    /// Its kind's row, with what its contents add.
    pub fn row(&self) -> RequestRow<'_> {
        match self {
            Request::Mdt(request) => request.row(),
            Request::Ost(request) => request.row(),
            Request::Mgs(request) => request.row(),
        }
    }
}

#[cfg(test)]
mod tests;
