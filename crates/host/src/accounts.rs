//! Names of users and groups, as the C library knows them (from files, LDAP and other sources of
//! the host).

use std::ffi::{CStr, CString, c_char};

/// Most bytes of an entry: far more than any has. A longer one counts as unknown.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// The number of a user.
pub fn user_id(name: &str) -> Option<u32> {
    user(name).map(|(user, _group)| user)
}

/// The numbers of a user and of that user's own group.
pub fn user(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    // SAFETY: `passwd` is plain data; the pointers are to live memory of the sizes given, for the
    // call only.
    looked_up(|entry: *mut libc::passwd, buffer, bytes, found| unsafe {
        libc::getpwnam_r(name.as_ptr(), entry, buffer, bytes, found)
    })
    .map(|(entry, _buffer)| (entry.pw_uid, entry.pw_gid))
}

/// The number of a group.
pub fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: as in `user`.
    looked_up(|entry: *mut libc::group, buffer, bytes, found| unsafe {
        libc::getgrnam_r(name.as_ptr(), entry, buffer, bytes, found)
    })
    .map(|(entry, _buffer)| entry.gr_gid)
}

/// The name of a user, or the number where it has none.
pub fn user_name(id: u32) -> String {
    // SAFETY: as in `user`.
    let found = looked_up(|entry: *mut libc::passwd, buffer, bytes, found| unsafe {
        libc::getpwuid_r(id, entry, buffer, bytes, found)
    });
    found.map_or_else(|| id.to_string(), |(entry, _buffer)| text(entry.pw_name))
}

/// The name of a group, or the number where it has none.
pub fn group_name(id: u32) -> String {
    // SAFETY: as in `user`.
    let found = looked_up(|entry: *mut libc::group, buffer, bytes, found| unsafe {
        libc::getgrgid_r(id, entry, buffer, bytes, found)
    });
    found.map_or_else(|| id.to_string(), |(entry, _buffer)| text(entry.gr_name))
}

/// Asks with a buffer that grows until the entry fits; the entry points into the buffer.
fn looked_up<T>(ask: impl Fn(*mut T, *mut c_char, usize, *mut *mut T) -> i32) -> Option<(T, Vec<c_char>)> {
    let mut bytes = 1024;
    while bytes <= ENTRY_BYTES_MAX {
        let mut buffer: Vec<c_char> = vec![0; bytes];
        let mut entry = std::mem::MaybeUninit::<T>::zeroed();
        let mut found = std::ptr::null_mut();
        match ask(entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found) {
            0 if found.is_null() => return None,
            // SAFETY: it was zeroed, which is a value of these structs of numbers and pointers, and
            // then filled.
            0 => return Some((unsafe { entry.assume_init() }, buffer)),
            libc::ERANGE => bytes *= 2,
            _ => return None,
        }
    }
    None
}

fn text(name: *const c_char) -> String {
    // SAFETY: a terminated string within the buffer, which the caller still has.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_both_ways() {
        assert_eq!((user_id("root"), group_id("root")), (Some(0), Some(0)));
        assert_eq!((user_name(0), group_name(0)), ("root".to_owned(), "root".to_owned()));
        assert_eq!((user_id("no such user"), group_id("no\0group")), (None, None));
        assert_eq!(user_name(3_999_999_999), "3999999999");
    }
}
