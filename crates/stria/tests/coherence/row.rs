//! One row of the table, in the commands of [`crate::common::commands`].

use crate::common::User;

/// Which users a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    /// Everybody.
    All,
    /// A user looks: about permissions, which root needs not.
    UserLooks,
    /// Root changes: only root may.
    RootChanges,
    /// Root changes, and a user looks.
    RootChangesUserLooks,
}

/// A change, and what is seen of it.
pub struct Row {
    /// Its name in failures.
    pub name: &'static str,
    /// What the changing side does first.
    pub prepare: &'static [&'static str],
    /// What the observing side does once before it looks: files that it keeps open.
    pub hold: &'static str,
    /// How the observing side looks.
    pub look: &'static str,
    /// What it sees before the first change.
    pub before: &'static str,
    /// Changes, and what the observing side sees after each.
    pub steps: &'static [(&'static str, &'static str)],
    /// What the observing side does at the end, and the answers.
    pub finally: &'static [(&'static str, &'static str)],
    users: Users,
}

impl Row {
    /// A row for everybody.
    pub const fn new(
        name: &'static str,
        prepare: &'static [&'static str],
        look: &'static str,
        before: &'static str,
        steps: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { name, prepare, hold: "", look, before, steps, finally: &[], users: Users::All }
    }

    /// With files that the observing side keeps open.
    pub const fn holding(mut self, hold: &'static str) -> Self {
        self.hold = hold;
        self
    }

    /// With operations of the observing side at the end.
    pub const fn finally(mut self, finally: &'static [(&'static str, &'static str)]) -> Self {
        self.finally = finally;
        self
    }

    /// Only where a user looks.
    pub const fn user_looks(mut self) -> Self {
        self.users = Users::UserLooks;
        self
    }

    /// Only where root changes.
    pub const fn root_changes(mut self) -> Self {
        self.users = Users::RootChanges;
        self
    }

    /// Only where root changes and a user looks.
    pub const fn root_changes_user_looks(mut self) -> Self {
        self.users = Users::RootChangesUserLooks;
        self
    }

    /// Whether the row is about these users.
    pub fn is_for(&self, changer: User, looker: User) -> bool {
        match self.users {
            Users::All => true,
            Users::UserLooks => looker.id != 0,
            Users::RootChanges => changer.id == 0,
            Users::RootChangesUserLooks => changer.id == 0 && looker.id != 0,
        }
    }
}
