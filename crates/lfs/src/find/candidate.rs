//! A file that the walk found: its attributes, and its layout once it is needed.

use std::{
    cell::OnceCell,
    fs::{File, Metadata},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

use layout::{
    ComponentSpec, END_OF_FILE, Form, LayoutSpec,
    text::{self, Row},
};
use rpc::message::control::{ControlReply, ControlRequest, Subject};
use types::{DirectoryMap, InodeNumber};

use crate::channel::{self, Errno};

/// A layout as tests see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The file or directory.
    pub inode: InodeNumber,
    /// Its components, of a plain layout one; none if there is no layout.
    pub rows: Vec<Row>,
    /// Whether it is shown as components.
    pub composite: bool,
    /// The stripes of a striped directory.
    pub map: Option<Box<DirectoryMap>>,
}

impl Described {
    /// The component that counts where one does: the last with objects.
    pub fn chosen(&self) -> Option<&Row> {
        self.rows.iter().rfind(|row| row.instantiated).or(self.rows.first())
    }

    /// Stripes of a directory; one that is not striped counts as one.
    pub fn stripes(&self) -> u64 {
        self.map.as_ref().map_or(1, |map| map.shards.len() as u64)
    }

    /// How names are spread over the stripes.
    pub fn hash(&self) -> &'static str {
        self.map.as_ref().map_or("none", |map| map.hash.name())
    }
}

/// See the module documentation.
pub struct Candidate<'a> {
    /// As it is shown.
    pub path: &'a Path,
    /// Levels below the operand.
    pub depth: usize,
    /// What lstat(2) says.
    pub metadata: Metadata,
    /// The directory it is in, if that was read.
    directory: Option<&'a File>,
    described: OnceCell<Result<Described, Errno>>,
}

impl<'a> Candidate<'a> {
    /// With its attributes.
    pub fn new(path: &'a Path, depth: usize, directory: Option<&'a File>) -> std::io::Result<Self> {
        let metadata = std::fs::symlink_metadata(path)?;
        Ok(Self { path, depth, metadata, directory, described: OnceCell::new() })
    }

    /// Its name; of an operand without one the path.
    pub fn name(&self) -> &[u8] {
        self.path.file_name().unwrap_or(self.path.as_os_str()).as_bytes()
    }

    /// The letter of its kind.
    pub fn kind(&self) -> char {
        match self.metadata.mode() & libc::S_IFMT {
            libc::S_IFBLK => 'b',
            libc::S_IFCHR => 'c',
            libc::S_IFDIR => 'd',
            libc::S_IFIFO => 'p',
            libc::S_IFLNK => 'l',
            libc::S_IFSOCK => 's',
            _ => 'f',
        }
    }

    /// Its layout.
    pub fn described(&self) -> Result<&Described, Errno> {
        self.described.get_or_init(|| self.ask()).as_ref().map_err(|errno| *errno)
    }

    fn ask(&self) -> Result<Described, Errno> {
        let reply = match (self.directory, self.path.file_name()) {
            (Some(directory), Some(name)) => {
                host::ioctl::call(directory, &ControlRequest::GetLayout(Subject::Name(name.as_bytes().to_vec())))?
            }
            _ => {
                let (directory, subject) = channel::subject(self.path)?;
                channel::call(&directory, &ControlRequest::GetLayout(subject))?
            }
        };
        match reply {
            ControlReply::Layout { inode, layout, own_default, map, .. } => {
                let composite = match (&layout, &own_default) {
                    (Some(layout), _) => layout.form == Form::Composite,
                    (None, default) => matches!(default, Some(LayoutSpec::Composite(_))),
                };
                let rows = layout.as_ref().map(text::rows).or(own_default.as_ref().map(rows_of_default));
                Ok(Described { inode, rows: rows.unwrap_or_default(), composite, map })
            }
            ControlReply::Error(error) => Err(Errno(host::errno::of(&error).0)),
            _ => Err(Errno(libc::EPROTO)),
        }
    }
}

fn rows_of_default(spec: &LayoutSpec) -> Vec<Row> {
    let whole = |backing| vec![ComponentSpec { end: END_OF_FILE, backing }];
    match spec {
        LayoutSpec::Composite(components) => text::rows_of_default(components),
        LayoutSpec::Plain(stripes) => text::rows_of_default(&whole(layout::BackingSpec::Striped(stripes.clone()))),
        LayoutSpec::Automatic => text::rows_of_default(&whole(layout::BackingSpec::Automatic)),
    }
}
