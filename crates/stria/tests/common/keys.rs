//! Keys of the file systems of a test, where the program looks for them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use super::place::Place;

/// Lets a command find the keys that were made with the management service in `mgs`, if it is
/// formatted already.
pub fn let_find(command: &mut Command, place: &Place, mgs: &Path) {
    command.env("STRIA_KEY_DIR", installed(place, mgs));
}

/// Makes keys for a file system of another name of the same digits as those of 'stria', as somebody
/// does who edits the files.
pub fn rename(directory: &Path, fsname: &str) {
    for kind in ["client", "server"] {
        let text = fs::read_to_string(directory.join(format!("stria.{kind}.key"))).expect("the key is installed");
        let path = directory.join(format!("{fsname}.{kind}.key"));
        fs::write(&path, text.replace(" stria ", &format!(" {fsname} "))).expect("the place is ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
    }
}

/// The directory of keys of a place, with those of the management service in `mgs`.
pub fn installed(place: &Place, mgs: &Path) -> PathBuf {
    let directory = place.data("keys");
    fs::create_dir_all(&directory).expect("the place is ours");
    for kind in ["client", "server"] {
        let (made, installed) = (mgs.join(format!("{kind}.key")), directory.join(format!("stria.{kind}.key")));
        // Copied with its mode. What another test program reads at this moment is never half a key.
        let new = directory.join(format!("{kind}.{:?}", std::thread::current().id()));
        if fs::copy(&made, &new).is_ok() {
            fs::rename(&new, &installed).expect("the place is ours");
        }
    }
    directory
}
