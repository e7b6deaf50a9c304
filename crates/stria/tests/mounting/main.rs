//! Mounting as administrators and users do it: in the background, from /etc/fstab, by mount(8), by
//! users other than root, and as seen from another host.
//!
//! Every test works in a mount namespace of its own, so that it can have its own /etc and its own
//! helpers in /sbin. Needs root and FUSE.

mod background;
#[path = "../common/mod.rs"]
mod common;
mod guard;
mod listen;
mod namespace;
mod system;
mod users;
