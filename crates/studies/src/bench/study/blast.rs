//! E1's BLAST workload: `blastn` over a nucleotide database of fragments, memory mapped, by many
//! processes at once.
//!
//! The database is made once by `makeblastdb` on the local disk, from generated or given FASTA, in
//! volumes of at most a given size, and copied to the mount for every configuration: a volume gets
//! the layout of the segment that contains its first byte, if all volumes are concatenated. The
//! study did this with directories. Every process searches for a query of its own in the whole
//! database, and must find it, because it was taken from the database.
//!
//! Needs Debian's ncbi-blast+.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use layout::LayoutSpec;
use lfs::channel;
use rpc::message::control::ControlRequest;
use types::SplitMix64;

use super::job::io_error;
use crate::{
    bench::{
        caches::{CacheKind, drop_caches},
        leftovers::Place,
        workers,
    },
    study::{Job, Outcome, Segment, Striping},
};

/// Bases of a generated sequence.
const SEQUENCE_BASES: u64 = 20_000;
/// Bases per byte of a nucleotide database.
const BASES_PER_BYTE: u64 = 4;
/// Bases of a query, cut out of the database.
const QUERY_BASES: usize = 400;
/// Name of the database.
const NAME: &str = "db";

/// A database on the local disk.
pub struct Database {
    directory: Place,
    /// Its files in order of name.
    files: Vec<PathBuf>,
    /// Beginnings of sequences, to search for.
    queries: Vec<String>,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Where the sequences come from.
pub enum Fasta<'a> {
    /// Random ones, for so many bytes of database.
    Generated(u64),
    /// A file.
    File(&'a Path),
}

/// Fails unless the programs are here, and says how they come here.
pub fn check_installed() -> anyhow::Result<()> {
    for program in ["makeblastdb", "blastn"] {
        let found = Command::new(program).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            bail!("{program} is not installed; it comes with ncbi-blast+: apt-get install ncbi-blast+");
        }
    }
    Ok(())
}

impl Database {
    /// Makes it, in volumes of at most `volume_bytes`.
    pub fn make(fasta: &Fasta<'_>, volume_bytes: u64, place: Option<&Path>) -> anyhow::Result<Self> {
        let directory = Place::new("stria-blast-", place)?;
        let generated = directory.path().join("sequences.fa");
        let input = match fasta {
            Fasta::Generated(bytes) => {
                generate(&generated, bytes * BASES_PER_BYTE).context("cannot write the sequences")?;
                generated.as_path()
            }
            Fasta::File(path) => path,
        };
        let queries = queries(input).with_context(|| format!("cannot read {}", input.display()))?;
        ensure!(!queries.is_empty(), "{} holds no sequence of {QUERY_BASES} bases", input.display());
        let output = Command::new("makeblastdb")
            .args(["-dbtype", "nucl", "-title", NAME, "-out", NAME])
            .arg("-in")
            .arg(fs::canonicalize(input)?)
            .args(["-max_file_sz", &format!("{volume_bytes}B")])
            .current_dir(directory.path())
            .output()
            .context("cannot run makeblastdb")?;
        ensure!(output.status.success(), "makeblastdb: {}", String::from_utf8_lossy(&output.stderr));
        if generated.exists() {
            fs::remove_file(&generated)?;
        }
        let mut files: Vec<PathBuf> =
            fs::read_dir(directory.path())?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        files.sort();
        let lengths: Vec<u64> = files.iter().map(|path| Ok(fs::metadata(path)?.len())).collect::<io::Result<_>>()?;
        Ok(Self { directory, files, queries, bytes: lengths.iter().sum() })
    }

    /// Copies it to `root`, every file as its segment says.
    fn copy(&self, root: &Path, segments: &[Segment]) -> io::Result<()> {
        let mut start = 0;
        for path in &self.files {
            let segment = segments.iter().find(|segment| start < segment.end).or(segments.last());
            let name = path.file_name().unwrap_or_default();
            if let Some(segment) = segment {
                let spec = LayoutSpec::Plain(segment.stripes());
                let name = name.as_encoded_bytes().to_vec();
                let request = ControlRequest::CreateWithLayout { name, mode: 0o600, spec };
                channel::call(root, &request).map_err(io_error)?;
            }
            let mut target = File::options().write(true).open(root.join(name))?;
            start += io::copy(&mut File::open(path)?, &mut target)?;
            target.sync_all()?;
        }
        Ok(())
    }

    /// Copies the database, lets all processes search it, removes the copy.
    pub fn search(&self, root: &Path, job: &Job) -> io::Result<Vec<Outcome>> {
        let Striping::Segments(segments) = &job.striping else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a database needs segments"));
        };
        let place = root.join("blast");
        fs::create_dir(&place)?;
        let searched = self.copy(&place, segments).and_then(|()| self.search_copy(&place, job));
        let removed = fs::remove_dir_all(&place);
        let time = searched?;
        removed?;
        let bytes = self.bytes * u64::from(job.tasks);
        let seconds = time.as_secs_f64();
        Ok(vec![Outcome { job: job.name.clone(), phase: "search", bytes, operations: job.tasks.into(), seconds }])
    }

    fn search_copy(&self, place: &Path, job: &Job) -> io::Result<Duration> {
        drop_caches(CacheKind::Pages);
        workers::run(job.tasks as usize, |rank| {
            let query = self.directory.path().join(format!("query.{rank}"));
            fs::write(&query, format!(">query{rank}\n{}\n", self.queries[rank % self.queries.len()]))?;
            let output = Command::new("blastn")
                .arg("-db")
                .arg(place.join(NAME))
                .arg("-query")
                .arg(&query)
                .args(["-outfmt", "6", "-num_threads", "1"])
                .output()?;
            fs::remove_file(&query)?;
            if !output.status.success() {
                return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
            }
            // The query was cut out of the database, so it must be found.
            if output.stdout.is_empty() {
                Err(io::Error::other("blastn did not find a sequence that is in the database"))
            } else {
                Ok(())
            }
        })
    }
}

/// Random sequences of so many bases in all.
fn generate(path: &Path, bases: u64) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut random = SplitMix64(1);
    for number in 0..bases.div_ceil(SEQUENCE_BASES).max(1) {
        writeln!(file, ">sequence{number}")?;
        let mut line = Vec::with_capacity(SEQUENCE_BASES as usize + 1);
        while line.len() < SEQUENCE_BASES as usize {
            let bits = random.next_u64();
            line.extend((0..32).map(|base| b"ACGT"[(bits >> (2 * base)) as usize & 3]));
        }
        line.truncate(SEQUENCE_BASES as usize);
        line.push(b'\n');
        file.write_all(&line)?;
    }
    file.flush()
}

/// Beginnings of sequences from all over the file, at most a few hundred.
fn queries(path: &Path) -> io::Result<Vec<String>> {
    use io::BufRead;
    const QUERIES_MAX: usize = 512;
    let mut found = Vec::new();
    let (mut sequences, mut step) = (0_usize, 1_usize);
    for line in io::BufReader::new(File::open(path)?).lines() {
        let line = line?;
        let Some(beginning) = line.get(..QUERY_BASES).filter(|_| !line.starts_with('>')) else { continue };
        if sequences.is_multiple_of(step) {
            found.push(beginning.to_owned());
        }
        sequences += 1;
        if found.len() > QUERIES_MAX {
            // Every second one is enough from here on.
            step *= 2;
            let mut number = 0_usize;
            found.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_as_long_as_asked_for_and_queries_are_in_them() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("s.fa");
        generate(&path, 10 * SEQUENCE_BASES).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let sequences: Vec<&str> = text.lines().filter(|line| !line.starts_with('>')).collect();
        assert_eq!((sequences.len(), sequences[0].len()), (10, SEQUENCE_BASES as usize));
        assert!(sequences.windows(2).all(|pair| pair[0] != pair[1]));
        let queries = queries(&path).unwrap();
        assert_eq!(queries.len(), 10);
        assert!(sequences[3].starts_with(&queries[3]));
    }
}
