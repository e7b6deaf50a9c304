//! The caller of a request.

use serde::{Deserialize, Serialize};

/// The identity a request runs under. Servers check permissions against it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Effective user (on Linux the file system user).
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups. `None`: not looked up yet, because the kernel does not send them and
    /// looking them up costs more than most requests; a server whose decision depends on them
    /// answers [`FsError::GroupsNeeded`](crate::FsError::GroupsNeeded) and the client asks again
    /// with them.
    pub groups: Option<Vec<u32>>,
}

impl Credentials {
    /// The superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Some(Vec::new()) }
    }

    /// Whether every permission check passes (uid 0).
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is in `gid`; `None` when that depends on groups not looked up yet.
    pub fn in_group(&self, gid: u32) -> Option<bool> {
        if self.gid == gid {
            return Some(true);
        }
        self.groups.as_ref().map(|groups| groups.contains(&gid))
    }
}
