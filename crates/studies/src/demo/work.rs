//! The demo's work: copy a tree and write a large file, read everything back, compare checksums.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lfs::channel::{self, Errno};
use types::{SplitMix64, counted};

use crate::bench::{
    caches::{CacheKind, drop_caches},
    tree,
};

/// Name of the large file.
pub const LARGE_NAME: &str = "large.bin";
const TRANSFER_BYTES: usize = 1 << 20;

/// What to copy.
pub struct Work {
    source: PathBuf,
    /// Relative paths: directories before what is in them.
    directories: Vec<PathBuf>,
    files: Vec<(PathBuf, u32)>,
    links: Vec<(PathBuf, PathBuf)>,
    tree_bytes: u64,
    large_bytes: u64,
    large_checksum: u32,
}

/// Rates of one run, per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// Files copied, sync included.
    pub copy_tree: f64,
    /// MiB written, fsync included.
    pub write_large: f64,
    /// Names seen with attributes.
    pub walk: f64,
    /// Files read and compared.
    pub read_tree: f64,
    /// MiB read and compared.
    pub read_large: f64,
}

impl Work {
    /// Looks at the tree and computes the checksums of everything.
    pub fn plan(source: &Path, large_bytes: u64) -> anyhow::Result<Self> {
        let mut work = Self {
            source: source.to_owned(),
            directories: Vec::new(),
            files: Vec::new(),
            links: Vec::new(),
            tree_bytes: 0,
            large_bytes,
            large_checksum: 0,
        };
        work.scan(Path::new("")).with_context(|| format!("cannot read {}", source.display()))?;
        if work.files.is_empty() {
            bail!("{} has no files that can be read", source.display());
        }
        let mut digest = Checksum::new();
        work.generate(|block| {
            digest.update(block);
            Ok(())
        })?;
        work.large_checksum = digest.finish();
        Ok(work)
    }

    fn scan(&mut self, relative: &Path) -> io::Result<()> {
        let mut entries: Vec<_> = fs::read_dir(self.source.join(relative))?.collect::<Result<_, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = relative.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.directories.push(path.clone());
                self.scan(&path)?;
            } else if kind.is_symlink() {
                self.links.push((path, fs::read_link(entry.path())?));
            } else if kind.is_file() {
                self.tree_bytes += entry.metadata()?.len();
                self.files.push((path, checksum_of(&entry.path(), &mut vec![0; TRANSFER_BYTES])?));
            }
        }
        Ok(())
    }

    /// One line about the work.
    pub fn describe(&self) -> String {
        format!(
            "copy {} ({}, {}, {} MiB) and write one file of {} MiB, read all back, compare checksums",
            self.source.display(),
            counted(self.files.len(), "file"),
            counted(self.directories.len(), "directory"),
            self.tree_bytes >> 20,
            self.large_bytes >> 20
        )
    }

    /// Number of files, the large one included.
    pub fn files(&self) -> usize {
        self.files.len() + 1
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.tree_bytes + self.large_bytes
    }

    /// Does everything below `place`.
    pub fn run(&self, place: &Path, title: &str) -> anyhow::Result<Rates> {
        println!("{title}:");
        let tree = place.join("tree");
        let mut rates = Rates::default();
        let copied = timed(|| self.copy_tree(&tree))?;
        rates.copy_tree = per_second(self.files.len() as f64, copied);
        let written = timed(|| self.write_large(&place.join(LARGE_NAME)))?;
        rates.write_large = per_second(self.large_bytes as f64 / f64::from(1 << 20), written);
        drop_caches(CacheKind::Pages);
        let mut names = 0;
        let walked = timed(|| {
            names = tree::walk(&tree)?;
            Ok(())
        })?;
        let expected = (self.files.len() + self.directories.len() + self.links.len()) as u64;
        if names != expected {
            bail!("{}: {names} names instead of {expected}", tree.display());
        }
        rates.walk = per_second(names as f64, walked);
        let read = timed(|| self.read_tree(&tree))?;
        rates.read_tree = per_second(self.files.len() as f64, read);
        let read = timed(|| self.read_large(&place.join(LARGE_NAME)))?;
        rates.read_large = per_second(self.large_bytes as f64 / f64::from(1 << 20), read);
        Ok(rates)
    }

    fn copy_tree(&self, place: &Path) -> anyhow::Result<()> {
        let progress = bar("copying the tree", self.files.len() as u64, "files");
        fs::create_dir(place)?;
        for directory in &self.directories {
            fs::create_dir(place.join(directory))?;
        }
        for (link, target) in &self.links {
            std::os::unix::fs::symlink(target, place.join(link))?;
        }
        let mut buffer = vec![0; TRANSFER_BYTES];
        for (file, _) in &self.files {
            let to = place.join(file);
            copy(&self.source.join(file), &to, &mut buffer).with_context(|| format!("copying to {}", to.display()))?;
            progress.inc(1);
        }
        sync(place)?;
        progress.finish();
        Ok(())
    }

    fn write_large(&self, path: &Path) -> anyhow::Result<()> {
        let progress = bar("writing the large file", self.large_bytes >> 20, "MiB");
        let mut file = File::create(path)?;
        self.generate(|block| {
            file.write_all(block)?;
            progress.inc(1);
            Ok(())
        })?;
        file.sync_all()?;
        progress.finish();
        Ok(())
    }

    fn read_tree(&self, place: &Path) -> anyhow::Result<()> {
        let progress = bar("reading the tree back", self.files.len() as u64, "files");
        let mut buffer = vec![0; TRANSFER_BYTES];
        for (file, expected) in &self.files {
            let path = place.join(file);
            compare(&path, checksum_of(&path, &mut buffer)?, *expected)?;
            progress.inc(1);
        }
        for (link, target) in &self.links {
            if fs::read_link(place.join(link))? != *target {
                bail!("{}: the link target differs from the original", place.join(link).display());
            }
        }
        progress.finish();
        Ok(())
    }

    fn read_large(&self, path: &Path) -> anyhow::Result<()> {
        let progress = bar("reading the large file", self.large_bytes >> 20, "MiB");
        let mut digest = Checksum::new();
        let mut file = File::open(path)?;
        let mut buffer = vec![0; TRANSFER_BYTES];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                count => digest.update(&buffer[..count]),
            }
            progress.inc(1);
        }
        progress.finish();
        compare(path, digest.finish(), self.large_checksum)
    }

    /// The large file's contents, block by block: different everywhere, the same in every run.
    fn generate(&self, mut consume: impl FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut block = vec![0u8; TRANSFER_BYTES];
        let mut random = SplitMix64(1);
        for chunk in block.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        let mut left = self.large_bytes;
        while left > 0 {
            // Every page differs from the same page of every other block.
            for page in block.chunks_exact_mut(4096) {
                let number = u64::from_le_bytes(page[..8].try_into().expect("eight bytes"));
                page[..8].copy_from_slice(&number.wrapping_add(left).to_le_bytes());
            }
            let bytes = left.min(block.len() as u64);
            consume(&block[..bytes as usize])?;
            left -= bytes;
        }
        Ok(())
    }
}

/// Makes everything durable: by the control channel where there is one, for the kernel does not
/// pass syncfs(2) on.
fn sync(place: &Path) -> anyhow::Result<()> {
    match channel::sync(place) {
        Err(Errno(libc::ENOTTY)) => Ok(rustix::fs::syncfs(File::open(place)?)?),
        synced => synced.map_err(|Errno(errno)| anyhow::anyhow!("sync: {}", channel::strerror(errno))),
    }
}

fn copy(from: &Path, to: &Path, buffer: &mut [u8]) -> io::Result<()> {
    let (mut input, mut output) = (File::open(from)?, File::create(to)?);
    loop {
        match input.read(buffer)? {
            0 => return Ok(()),
            count => output.write_all(&buffer[..count])?,
        }
    }
}

fn checksum_of(path: &Path, buffer: &mut [u8]) -> io::Result<u32> {
    let (mut file, mut digest) = (File::open(path)?, Checksum::new());
    loop {
        match file.read(buffer)? {
            0 => return Ok(digest.finish()),
            count => digest.update(&buffer[..count]),
        }
    }
}

fn compare(path: &Path, found: u32, expected: u32) -> anyhow::Result<()> {
    if found != expected {
        bail!("{}: checksum {found:08x} instead of {expected:08x}", path.display());
    }
    Ok(())
}

/// CRC-32C of a stream.
struct Checksum(crc_fast::Digest);

impl Checksum {
    fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(self) -> u32 {
        self.0.finalize() as u32
    }
}

fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

fn per_second(amount: f64, time: Duration) -> f64 {
    amount / time.as_secs_f64().max(1e-9)
}

fn bar(title: &'static str, length: u64, unit: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(&format!("  {{msg:<24}} {{bar:30}} {{pos}}/{{len}} {unit} {{elapsed}}"));
    let progress = ProgressBar::new(length).with_message(title);
    match style {
        Ok(style) => progress.with_style(style),
        Err(_) => progress,
    }
}
