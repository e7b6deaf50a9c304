//! The name by which a program makes a file without a name (as with `O_TMPFILE`) on the MDT that it
//! wants: open(2) with `O_CREAT` and `O_EXCL` in a directory that is there, or has a shard there.
//! It is that of Lustre: `.`, four bytes, `:VOLATILE:`, the index of the MDT with four hexadecimal
//! digits, `:` and a number.

use types::MdtIndex;

const PREFIX: &[u8] = b".\x0c\x13\x14\x12:VOLATILE:";
const INDEX_DIGITS: usize = 4;

/// A name for a file on an MDT; `number`: anything.
pub fn of(mdt: MdtIndex, number: u32) -> Vec<u8> {
    [PREFIX, format!("{:04X}:{number:08X}", mdt.0).as_bytes()].concat()
}

/// The MDT, if it is such a name.
pub fn mdt_of(name: &[u8]) -> Option<MdtIndex> {
    let (index, number) = name.strip_prefix(PREFIX)?.split_at_checked(INDEX_DIGITS)?;
    number.strip_prefix(b":")?;
    if !index.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(index).ok()?, 16).ok().map(MdtIndex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_the_mdt() {
        for index in [0, 7, 0x1F, u16::MAX] {
            assert_eq!(mdt_of(&of(MdtIndex(index), 99)), Some(MdtIndex(index)));
        }
        let ours = of(MdtIndex(1), 0x1234_5678);
        assert_eq!(&ours[5..], b":VOLATILE:0001:12345678");
        let truncated = [&ours[..ours.len() - 9], &ours[..16], &ours[..3], b"", b"file"];
        for name in truncated.into_iter().chain([&[PREFIX, b"+001:1"].concat()[..], &[PREFIX, b"12345:1"].concat()]) {
            assert_eq!(mdt_of(name), None, "{}", name.escape_ascii());
        }
    }
}
