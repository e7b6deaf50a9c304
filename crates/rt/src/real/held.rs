//! Files of a directory that a process has for itself: block devices, and files in their place.
//!
//! Each is opened once. Whatever its name leads to later, operations go to what was held, and a
//! second process that asks for the same is refused. The kernel releases it when the process dies.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};

use parking_lot::RwLock;
use rustix::{
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
};

use super::{descriptors::OpenFile, direct::DirectFile};

/// Held files. There are few.
#[derive(Default)]
pub(super) struct HeldFiles {
    files: RwLock<Vec<Held>>,
}

struct Held {
    name: String,
    open: Arc<OpenFile>,
    direct: Option<Arc<DirectFile>>,
}

impl HeldFiles {
    /// The file of this name, if it is held.
    pub fn get(&self, name: &str) -> Option<Arc<OpenFile>> {
        self.files.read().iter().find(|held| held.name == name).map(|held| held.open.clone())
    }

    /// The same for large transfers, if it takes them past the page cache.
    pub fn direct(&self, name: &str) -> Option<Arc<DirectFile>> {
        self.files.read().iter().find(|held| held.name == name)?.direct.clone()
    }

    /// Holds the file in `path`.
    pub fn hold(&self, name: &str, path: &Path) -> io::Result<()> {
        let file = open_alone(path)?;
        let direct = DirectFile::of(&file).map(Arc::new);
        let open = Arc::new(OpenFile { file, writable: true });
        self.files.write().push(Held { name: name.to_owned(), open, direct });
        Ok(())
    }

    /// Its name was removed.
    pub fn forget(&self, name: &str) {
        self.files.write().retain(|held| held.name != name);
    }
}

/// Opens an existing file or block device that nothing else uses, for reading and writing.
pub fn open_alone(path: &Path) -> io::Result<File> {
    let in_use = |error| io::Error::new(ErrorKind::ResourceBusy, format!("it is in use: {error}"));
    let found = fs::metadata(path)?.file_type();
    let is_device = found.is_block_device();
    if !is_device && !found.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is neither a block device nor a file"));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if is_device {
        // Linux refuses it while the device is mounted, part of another one, or opened like this.
        options.custom_flags(OFlags::EXCL.bits() as i32);
    }
    let file = options.open(path).map_err(|error| match error.kind() {
        ErrorKind::ResourceBusy => in_use(error),
        _ => error,
    })?;
    if file.metadata()?.file_type() != found {
        return Err(io::Error::new(ErrorKind::ResourceBusy, "it was replaced"));
    }
    if !is_device {
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => in_use(error.into()),
            _ => error.into(),
        })?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, symlink};

    use bytes::Bytes;

    use super::*;
    use crate::{
        Device,
        real::{Execution, IoThreads, LocalDirectory},
    };

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_file_is_held_by_one_and_stays_the_one_that_was_held() {
        let place = tempfile::tempdir().unwrap();
        let threads = Arc::new(IoThreads::new("test", 1).unwrap());
        let (image, other) = (place.path().join("image"), place.path().join("other"));
        fs::write(&image, [0; 8192]).unwrap();
        fs::write(&other, "text").unwrap();
        let root = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        let open = |name: &str| LocalDirectory::open(root(name), Execution::Inline, threads.clone()).unwrap();
        ["a", "b"].iter().for_each(|name| symlink(&image, root(name).join("device")).unwrap());
        run(async {
            let first = open("a");
            // Whatever was opened before is not used after.
            assert_eq!(first.length("device").await.unwrap(), Some(8192));
            first.hold("device").await.unwrap();
            for name in ["a", "b"] {
                assert_eq!(open(name).hold("device").await.unwrap_err().kind(), ErrorKind::ResourceBusy);
            }
            fs::remove_file(root("a").join("device")).unwrap();
            symlink(&other, root("a").join("device")).unwrap();
            first.write("device", 0, vec![Bytes::from_static(b"held")]).await.unwrap();
            first.flush("device").await.unwrap();
            assert_eq!(first.read("device", 0, vec![0; 4]).await.unwrap().0, b"held");
            assert_eq!(fs::read(&other).unwrap(), b"text");
            let mut found = [0; 4];
            File::open(&image).unwrap().read_exact_at(&mut found, 0).unwrap();
            assert_eq!(&found, b"held");
            drop(first);
            open("b").hold("device").await.unwrap();
        });
    }

    #[test]
    fn what_a_link_leads_to_is_not_made() {
        let place = tempfile::tempdir().unwrap();
        let threads = Arc::new(IoThreads::new("test", 1).unwrap());
        let missing = place.path().join("missing");
        symlink(&missing, place.path().join("device")).unwrap();
        let device = LocalDirectory::open(place.path(), Execution::Inline, threads).unwrap();
        run(async {
            assert_eq!(device.hold("device").await.unwrap_err().kind(), ErrorKind::NotFound);
            assert_eq!(device.hold("none").await.unwrap_err().kind(), ErrorKind::NotFound);
            assert!(device.write("device", 0, vec![Bytes::from_static(b"x")]).await.is_err());
            assert!(device.truncate("device", 5).await.is_err());
            assert!(device.flush("device").await.is_err());
            device.flush("none").await.unwrap();
        });
        assert!(!missing.exists());
        fs::write(&missing, "text").unwrap();
        run(device.flush("device")).unwrap();
    }
}
