//! The name by which a program makes a file without a name (as with `O_TMPFILE`) on the MDT that it
//! wants: open(2) with `O_CREAT` and `O_EXCL` in a directory that is there, or has a shard there.
//! It is that of Lustre: `.`, four bytes, `:VOLATILE:`, the index of the MDT with four hexadecimal
//! digits, `:` and a number.
//!
//! If the directory has nothing there, but one of its names leads to a file there, the name ends
//! with `:BESIDE:` and the inode number of that file, with 16 hexadecimal digits.

use types::{InodeNumber, MdtIndex};

const PREFIX: &[u8] = b".\x0c\x13\x14\x12:VOLATILE:";
const INDEX_DIGITS: usize = 4;
const BESIDE: &[u8] = b"BESIDE:";
const INODE_DIGITS: usize = 16;

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

/// A name for a file on the MDT of this one.
pub fn beside(file: InodeNumber) -> Vec<u8> {
    let InodeNumber(number) = file;
    let index = format!("{:04X}:", file.mdt().0);
    [PREFIX, index.as_bytes(), BESIDE, format!("{number:016X}").as_bytes()].concat()
}

/// The file beside which it is to be, if the name says so.
pub fn beside_which(name: &[u8]) -> Option<InodeNumber> {
    let mdt = mdt_of(name)?;
    let number = name[PREFIX.len() + INDEX_DIGITS + 1..].strip_prefix(BESIDE)?;
    if number.len() != INODE_DIGITS || !number.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let number = u64::from_str_radix(std::str::from_utf8(number).ok()?, 16).ok()?;
    Some(InodeNumber(number)).filter(|file| file.mdt() == mdt)
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
    #[test]
    fn a_name_says_beside_which_file() {
        for file in [(0, 1), (7, 0x300), (u16::MAX, (1 << 48) - 1)].map(|(mdt, at)| InodeNumber::new(MdtIndex(mdt), at))
        {
            assert_eq!((mdt_of(&beside(file)), beside_which(&beside(file))), (Some(file.mdt()), Some(file)));
        }
        let file = InodeNumber::new(MdtIndex(1), 0x300);
        let elsewhere = String::from_utf8_lossy(&beside(file)).replace(":0001:", ":0002:").into_bytes();
        let longer = [beside(file), b"0".to_vec()].concat();
        let signed = [PREFIX, b"0000:BESIDE:+000000000000300"].concat();
        for name in [&elsewhere, &longer, &beside(file)[..20].to_vec(), &of(MdtIndex(1), 7), &signed] {
            assert_eq!(beside_which(name), None, "{}", name.escape_ascii());
        }
    }
}
