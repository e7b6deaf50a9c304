//! The kernel's time limit for requests (`fs.fuse.*_request_timeout`): it ends the whole mount if
//! one request takes longer. Requests of StriaFS may wait for as long as another program holds a
//! lock, or a server is away, so such a limit ends mounts that are all right.

use super::host_limits;

/// Warns if this host has such a limit.
pub fn warn() {
    // They are there since Linux 6.14.
    let read = |name| host_limits::read(name).unwrap_or(0);
    if let Some(seconds) = limit(read("default_request_timeout"), read("max_request_timeout")) {
        tracing::warn!(
            "Linux ends this mount when a request takes longer than {seconds} s, for example for a lock that another \
             program holds; to prevent this: sysctl fs.fuse.default_request_timeout=0 fs.fuse.max_request_timeout=0, \
             then mount again"
        );
    }
}

/// The limit in seconds of a mount that asks for none; 0 is none.
fn limit(default: u64, most: u64) -> Option<u64> {
    [default, most].into_iter().filter(|seconds| *seconds > 0).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_limit_counts() {
        assert_eq!(limit(0, 0), None);
        assert_eq!(limit(20, 0), Some(20));
        assert_eq!(limit(0, 30), Some(30));
        assert_eq!(limit(20, 10), Some(10));
    }
}
