//! Operations for tools and administrators.

use types::{Credentials, FsError, FsResult};

/// Only root may.
pub(crate) fn require_root(who: &Credentials) -> FsResult<()> {
    if who.is_root() { Ok(()) } else { Err(FsError::NotPermitted) }
}
