//! Where `lfs migrate -m` moves directories: to one MDT, or to stripes over several, as Lustre's
//! options say it.

use std::path::Path;

use types::{MdtIndex, NameHash, ShardCount, Stripes};

use super::{Stop, usage_error};
use crate::{
    channel::{self, Errno},
    dirstripe::Wanted,
    options::Parsed,
    outcome::Failure,
};

/// Where directories shall be; `None`: files are meant. Refuses what goes with directories only, or
/// with files only. No MDT: any (-1).
pub(super) fn destination(parsed: &Parsed) -> Result<Option<Wanted>, Failure> {
    let hash = parsed.value("mdt-hash");
    if let Some(name) = hash.filter(|name| NameHash::of_name(name).is_none()) {
        return Err(usage_error(format_args!("bad stripe hash type '{name}'")));
    }
    if !parsed.has("mdt-index") {
        return match ["mdt-hash", "directory"].into_iter().find(|name| parsed.has(name)) {
            Some(name) => {
                Err(usage_error(format_args!("--{name} is for directories: migrate should specify MDT index")))
            }
            None => Ok(None),
        };
    }
    let counts = ["stripe-count", "overstripe-count"];
    let wanted = Wanted::of(parsed, counts).map_err(usage_error)?;
    let of_directories = ["mdt-index", "mdt-hash", "directory", "null", "files-from", "verbose"];
    let is_of_directories = |name: &str| of_directories.iter().chain(&counts).any(|of| *of == name);
    if let Some((name, _)) = parsed.options.iter().find(|(name, _)| !is_of_directories(name)) {
        return Err(usage_error(format_args!("--{name} is for files: it cannot be combined with --mdt-index")));
    }
    match wanted.count {
        ShardCount::Exactly(0) => Err(usage_error("invalid stripe count '0'")),
        ShardCount::Exactly(1) if hash.is_some() => {
            Err(usage_error("--mdt-hash is for several MDTs (-m 0,1 or -c COUNT)"))
        }
        _ => Ok(Some(wanted)),
    }
}

/// The stripes of the directory at `path`, and of all below it, where there are these MDTs; one
/// alone: no stripes.
pub(super) fn stripes(wanted: &Wanted, there: Vec<MdtIndex>, path: &Path) -> Result<Stripes, Stop> {
    let first = match wanted.mdts.first() {
        Some(first) => *first,
        None => channel::inode(path)?.mdt(),
    };
    let missing = |problem: String| {
        if !wanted.is_plain() {
            eprintln!("lfs migrate: {}: {problem}", path.display());
        }
        Stop::from(Errno(libc::ENODEV))
    };
    let stripes = wanted.stripes(there, first).map_err(missing)?;
    // Without stripes it is on the first one.
    let mdts = if stripes.mdts.is_empty() { vec![first] } else { stripes.mdts };
    Ok(Stripes { mdts, ..stripes })
}
