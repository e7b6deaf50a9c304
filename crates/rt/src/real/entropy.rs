//! The host's source of random numbers.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::Entropy;

/// getrandom(2): unpredictable, never the same twice. Identifiers of clients and sessions come from
/// it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        loop {
            match getrandom(&mut bytes, GetRandomFlags::empty()) {
                Ok(8) => return u64::from_ne_bytes(bytes),
                Ok(_) | Err(rustix::io::Errno::INTR) => continue,
                Err(error) => panic!("the kernel has no random numbers: {error}"),
            }
        }
    }
}
