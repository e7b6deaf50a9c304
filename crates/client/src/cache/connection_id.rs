//! Which connection something was learned through.

use types::{ClientId, Generation};

/// A connection of an incarnation of this client.
pub(crate) type ConnectionId = (ClientId, Generation);
