//! Files of a host that are replaced as a whole, and names of files that are there after power
//! loss.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

/// The file at `path` has these contents from now on, also after power loss; if this fails or is
/// ended, what it had before. `beside`: where the contents are written first, in the same
/// directory, and this file, open for writing and empty. How it is opened is up to the caller: what
/// may be in its place, and who may read it, differs.
pub(crate) fn replace(path: &Path, (beside, mut file): (&Path, File), contents: &[u8]) -> io::Result<()> {
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(beside, path)?;
    sync_name(path)
}

/// The name of a file that was made, renamed or removed is there, or is not, after power loss.
pub(crate) fn sync_name(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let [path, beside] = ["state", "state.new"].map(|name| place.path().join(name));
        for contents in ["the first, which is longer", "the second"] {
            replace(&path, (&beside, File::create(&beside).unwrap()), contents.as_bytes()).unwrap();
            assert_eq!((fs::read_to_string(&path).unwrap().as_str(), beside.exists()), (contents, false));
        }
        let unwritable = File::open(&path).unwrap();
        fs::write(&beside, "left behind").unwrap();
        assert!(replace(&path, (&beside, unwritable), b"the third").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "the second");
        assert!(sync_name(&place.path().join("none/state")).is_err());
        sync_name(Path::new("a name without a directory")).unwrap();
    }
}
