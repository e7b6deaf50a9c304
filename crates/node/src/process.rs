//! What a process runs on, and its names.

use rt::{
    Seams,
    buffer::BufferPool,
    real::{Cores, TcpOptions, TcpTransport},
};

/// The seams of a process that runs on `cores`.
pub fn seams(cores: &Cores) -> Seams {
    /// Idle receive buffers kept for reuse.
    const BUFFERS_BYTES_MAX: usize = 64 << 20;
    rt::real::seams(cores, TcpTransport::new(TcpOptions::default(), BufferPool::new(BUFFERS_BYTES_MAX)))
}

/// Host and process, for people.
pub fn client_name() -> String {
    format!("{}:{}", host_name(), std::process::id())
}

/// Name of this host.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
