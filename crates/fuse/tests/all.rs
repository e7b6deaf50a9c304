//! Tests of mounts with servers in this process, in one program: each program would compile what it
//! uses of the servers again.

mod cluster;
mod kept_listings;
mod kernel_cache;
mod kernel_locks;
mod permissions;
mod posix;
