//! All tests of this crate, in one program: each program would compile what it uses of the crates
//! again.

mod access_times;
mod cache;
mod coherence;
mod composite;
mod data_on_mdt;
mod elsewhere;
mod extension;
mod layout_locks;
mod leave_out;
mod lock_claims;
mod locks;
mod model;
mod moving;
mod own_listings;
mod own_sizes;
mod power_loss;
mod real_servers;
mod request_limits;
mod semantics;
mod small_files;
mod statahead;
mod support;
mod times;
mod unasked_opens;
mod upper_cache;
