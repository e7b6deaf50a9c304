//! What is known about a request before it is executed.
//!
//! For most requests this depends only on the kind: `row()` of a kind is its line in one of the
//! three tables next to this file. Facts that depend on the contents of a request are filled in by
//! `row()` of the request.

use types::{
    ObjectId,
    limits::{BULK_BYTES_MAX, COMPOUND_DATA_BYTES_MAX},
};

use crate::auth::{KeyKind, Role};

/// What a request changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing that matters: its reply is not kept, and a repetition executes it again.
    Nothing,
    /// Something that no sync has to make durable: opens and locks are claimed again, sizes are
    /// found by the objects, layouts are durable when they are answered. It is executed once.
    State,
    /// Names or attributes, permanently: executed twice it would not be the same, and a sync must
    /// make it durable.
    Namespace,
    /// Data of the object that it names ([`DataAccess::Changes`]); a sync must make it durable.
    Data,
}

/// The most a reply can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplySize {
    /// Always small.
    Small,
    /// The value of an extended attribute.
    Xattr,
    /// A frame's whole body.
    Body,
    /// Checksums, and so many bytes of data with them.
    Data(u32),
    /// Replies of the steps of a compound, and so many bytes of data with them.
    Compound(u32),
}

impl ReplySize {
    /// As much data as one request can ask for.
    pub const DATA_MAX: ReplySize = ReplySize::Data(BULK_BYTES_MAX as u32);
    /// As much as one compound can ask for.
    pub const COMPOUND_MAX: ReplySize = ReplySize::Compound(COMPOUND_DATA_BYTES_MAX as u32);
}

/// Data of objects that a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataAccess<'a> {
    /// None, or of no object in particular.
    None,
    /// It changes data, size or space of this object.
    Changes(ObjectId),
    /// It reads this object.
    Reads(ObjectId),
    /// It asks for the attributes of these objects.
    Looks(&'a [ObjectId]),
}

impl DataAccess<'_> {
    /// Without a change: what asks for one where only questions are answered is refused.
    pub(super) const fn unchanging(self) -> Self {
        match self {
            DataAccess::Changes(_) => DataAccess::None,
            DataAccess::None | DataAccess::Reads(_) | DataAccess::Looks(_) => self,
        }
    }

    /// Whether it concerns this object.
    pub fn concerns(&self, object: ObjectId) -> bool {
        match self {
            DataAccess::None => false,
            DataAccess::Changes(accessed) | DataAccess::Reads(accessed) => *accessed == object,
            DataAccess::Looks(objects) => objects.contains(&object),
        }
    }
}

/// Which roles may send a request. (What the user of a client may do is another question, which its
/// credentials answer.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// All.
    Everybody,
    /// Those with the server key: servers, and tools of administrators.
    ServerKey,
    /// Targets may register.
    Targets,
    /// Only an MDT may end what a client has at an OST, keep old layouts out, or take part in
    /// operations of other MDTs.
    Mdts,
    /// MDTs, and tools that repair, may destroy what no file refers to.
    MdtsAndRepair,
    /// Tools that look at a whole file system, and servers.
    Tools,
    /// Only a check of the whole file system justifies it.
    Repair,
}

impl Permission {
    /// Whether this role has it.
    pub const fn allows(self, role: Role) -> bool {
        match self {
            Permission::Everybody => true,
            Permission::ServerKey => matches!(role.key(), KeyKind::Server),
            Permission::Targets => matches!(role, Role::Mdt | Role::Ost | Role::Mgs),
            Permission::Mdts => matches!(role, Role::Mdt),
            Permission::MdtsAndRepair => matches!(role, Role::Mdt | Role::Repair),
            Permission::Tools => !matches!(role, Role::Client),
            Permission::Repair => matches!(role, Role::Repair),
        }
    }
}

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRow<'a> {
    /// Place of its kind among those of the same target: the lower byte of the opcode.
    pub number: u8,
    /// For statistics and logs.
    pub name: &'static str,
    /// What it changes.
    pub effect: Effect,
    /// The most its reply can take.
    pub reply: ReplySize,
    /// It gives something up that others may wait for: it must not wait for them.
    pub urgent: bool,
    /// Data it is about.
    pub data: DataAccess<'a>,
    /// What it changes is durable when it is answered.
    pub durable: bool,
    /// Which roles may send it.
    pub permission: Permission,
}

impl<'a> RequestRow<'a> {
    pub(super) const fn new(
        number: u8,
        name: &'static str,
        effect: Effect,
        reply: ReplySize,
        permission: Permission,
    ) -> Self {
        let data = DataAccess::None;
        Self { number, name, effect, reply, urgent: false, data, durable: false, permission }
    }

    pub(super) const fn only(self, permission: Permission) -> Self {
        Self { permission, ..self }
    }

    pub(super) const fn changing(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    pub(super) const fn urgent_if(self, urgent: bool) -> Self {
        Self { urgent, ..self }
    }

    pub(super) const fn of_data(self, data: DataAccess<'a>) -> Self {
        Self { data, ..self }
    }

    pub(super) const fn durable_if(self, durable: bool) -> Self {
        Self { durable, ..self }
    }

    pub(super) const fn answered_by(self, reply: ReplySize) -> Self {
        Self { reply, ..self }
    }

    /// Whether its reply is not kept, because a repetition may execute it again.
    pub const fn is_repeatable(&self) -> bool {
        matches!(self.effect, Effect::Nothing)
    }

    /// The object whose data it changes.
    pub const fn changed_object(&self) -> Option<ObjectId> {
        match self.data {
            DataAccess::Changes(object) => Some(object),
            DataAccess::None | DataAccess::Reads(_) | DataAccess::Looks(_) => None,
        }
    }

    /// Whether a sync must make durable what is acknowledged with it.
    pub const fn needs_sync(&self) -> bool {
        let changes = match self.effect {
            Effect::Namespace => true,
            Effect::Data => self.changed_object().is_some(),
            Effect::Nothing | Effect::State => false,
        };
        changes && !self.durable
    }
}
