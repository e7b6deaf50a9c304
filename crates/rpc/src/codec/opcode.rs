//! Opcodes: `family << 8 | number`, where the number is the position of the request in its enum
//! ([`RequestKind`]). A reply carries its request's opcode.

use std::fmt;

use crate::message::{
    ClientRequest, MdtRequest, MgsRequest, OstRequest, Request,
    kind::{MdtKind, MgsKind, OstKind, RequestKind},
};

/// What the header of a frame says its body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u16);

/// Opens a session; handled by this crate.
pub const CONNECT: Opcode = Opcode(0x0001);
/// Proves what `Connect` claimed; handled by this crate.
pub const PROVE: Opcode = Opcode(0x0002);

/// Callbacks: 0x04.., by the variants of [`ClientRequest`].
const CALLBACKS: u16 = 0x0400;

/// The opcode of a callback.
pub fn of_callback(request: &ClientRequest) -> Opcode {
    let number = match request {
        ClientRequest::Ping => 0,
        ClientRequest::Blocking(_) => 1,
        ClientRequest::Completion(_) => 2,
        ClientRequest::Glimpse(_) => 3,
        ClientRequest::LockCompleted(_) => 4,
        ClientRequest::AskAgain(_) => 5,
    };
    Opcode(CALLBACKS | number)
}

/// Requests by the kind of target they go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// 0x01..: metadata targets.
    Mdt = 1,
    /// 0x02..: object storage targets.
    Ost = 2,
    /// 0x03..: the management service.
    Mgs = 3,
}

impl Family {
    /// The family that a target of this name understands: `MGS`, `<fsname>-MDT<index>`,
    /// `<fsname>-OST<index>`.
    pub fn of_target(name: &str) -> Option<Family> {
        let role = name.rsplit('-').next().unwrap_or(name);
        match role.get(..3)? {
            "MDT" => Some(Family::Mdt),
            "OST" => Some(Family::Ost),
            "MGS" => Some(Family::Mgs),
            _ => None,
        }
    }

    /// The request that keeps a session's lease.
    pub fn ping(self) -> Request {
        match self {
            Family::Mdt => Request::Mdt(MdtRequest::Ping),
            Family::Ost => Request::Ost(OstRequest::Ping),
            Family::Mgs => Request::Mgs(MgsRequest::Ping),
        }
    }

    /// The request that ends a session.
    pub fn disconnect(self) -> Request {
        match self {
            Family::Mdt => Request::Mdt(MdtRequest::Disconnect),
            Family::Ost => Request::Ost(OstRequest::Disconnect),
            Family::Mgs => Request::Mgs(MgsRequest::Disconnect),
        }
    }
}

impl Opcode {
    const fn new(family: Family, number: u8) -> Self {
        Opcode((family as u16) << 8 | number as u16)
    }

    /// The family, if this version knows it.
    pub fn family(self) -> Option<Family> {
        match self.0 >> 8 {
            1 => Some(Family::Mdt),
            2 => Some(Family::Ost),
            3 => Some(Family::Mgs),
            _ => None,
        }
    }

    /// The kind of request, if this version knows it.
    pub fn kind(self) -> Option<RequestKind> {
        let number = usize::from(self.0 & 0xff);
        match self.family()? {
            Family::Mdt => MdtKind::ALL.get(number).copied().map(RequestKind::Mdt),
            Family::Ost => OstKind::ALL.get(number).copied().map(RequestKind::Ost),
            Family::Mgs => MgsKind::ALL.get(number).copied().map(RequestKind::Mgs),
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Some(kind) => f.write_str(kind.row().name),
            None if *self == CONNECT => f.write_str("connect"),
            None if *self == PROVE => f.write_str("prove"),
            None => write!(f, "{:#06x}", self.0),
        }
    }
}

/// The opcode of a request.
pub fn of(request: &Request) -> Opcode {
    match request {
        Request::Mdt(request) => Opcode::new(Family::Mdt, request.row().number),
        Request::Ost(request) => Opcode::new(Family::Ost, request.row().number),
        Request::Mgs(request) => Opcode::new(Family::Mgs, request.row().number),
    }
}
