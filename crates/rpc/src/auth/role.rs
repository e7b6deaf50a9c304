//! What a process is in the file system.

use std::fmt;

use rt::frame::class;
use serde::{Deserialize, Serialize};

use super::keyring::KeyKind;

/// What the process at the other end of a connection claims to be. Variants are only ever appended:
/// their order is the wire format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// A mount, or a program that uses the client library.
    #[default]
    Client,
    /// A metadata target.
    Mdt,
    /// An object storage target.
    Ost,
    /// The management service.
    Mgs,
    /// The background migration of an MDT.
    Mover,
    /// A tool that looks and sets parameters.
    Tool,
    /// A tool that repairs: it may destroy what no file refers to.
    Repair,
}

impl Role {
    /// The key that proves this role.
    pub const fn key(self) -> KeyKind {
        match self {
            Role::Client | Role::Tool => KeyKind::Client,
            Role::Mdt | Role::Ost | Role::Mgs | Role::Mover | Role::Repair => KeyKind::Server,
        }
    }

    /// How urgent its requests are ([`class`]).
    pub fn class(self) -> u8 {
        match self {
            Role::Client | Role::Tool | Role::Mdt | Role::Ost | Role::Mgs => class::NORMAL,
            Role::Mover | Role::Repair => class::BACKGROUND,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Client => "client",
            Role::Mdt => "metadata target",
            Role::Ost => "object storage target",
            Role::Mgs => "management service",
            Role::Mover => "background migration",
            Role::Tool => "tool",
            Role::Repair => "repair tool",
        })
    }
}
