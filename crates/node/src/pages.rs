//! Pages, in which the data of a request are measured (`max_pages_per_rpc`).

use std::ops::RangeInclusive;

use rt::parameters::{parse_number, parse_size};
use types::limits::{BLOCK_BYTES, BULK_BYTES_MAX};

/// Bytes of a page: no checksum block is in two requests.
pub const PAGE_BYTES: u64 = BLOCK_BYTES;
/// Pages in one request: a message takes so many.
pub const PAGES_PER_RPC: RangeInclusive<u64> = 1..=BULK_BYTES_MAX as u64 / PAGE_BYTES;

/// A number of pages, or a size. Of at least a MiB, a number means bytes, as in Lustre.
pub fn parse(text: &str) -> Result<u64, String> {
    match text.trim().parse::<u64>() {
        Ok(bytes) if bytes >= 1 << 20 && bytes.is_multiple_of(PAGE_BYTES) => {
            parse_number(&(bytes / PAGE_BYTES).to_string(), &PAGES_PER_RPC)
        }
        _ => parse_size(text, PAGE_BYTES, &PAGES_PER_RPC),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_requests_are_pages_or_have_a_unit() {
        for (text, pages) in [
            ("1", 1),
            ("256", 256),
            ("1024", 1024),
            ("4K", 1),
            ("64K", 16),
            ("1M", 256),
            ("4M", 1024),
            ("1048576", 256),
        ] {
            assert_eq!(parse(text), Ok(pages), "{text}");
        }
        for text in ["", "0", "1025", "5M", "6K", "8388608", "1048577", "many"] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains("expected a number from 1 to 1024"), "{text}: {refused}");
        }
    }
}
