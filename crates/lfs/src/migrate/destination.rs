//! Where `lfs migrate -m` moves directories: to one MDT, or to stripes over several, as Lustre's
//! options say it.

use std::path::Path;

use types::{MdtIndex, NameHash, Stripes};

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
    let hash = match parsed.value("mdt-hash") {
        None => None,
        Some(name) => {
            Some(NameHash::of_name(name).ok_or_else(|| usage_error(format_args!("bad stripe hash type '{name}'")))?)
        }
    };
    let Some(text) = parsed.value("mdt-index") else {
        return match ["mdt-hash", "directory"].into_iter().find(|name| parsed.has(name)) {
            Some(name) => {
                Err(usage_error(format_args!("--{name} is for directories: migrate should specify MDT index")))
            }
            None => Ok(None),
        };
    };
    let mdts = mdts(text)?;
    let of_directories = ["mdt-index", "mdt-hash", "directory", "stripe-count", "null", "files-from", "verbose"];
    if let Some((name, _)) = parsed.options.iter().find(|(name, _)| !of_directories.contains(name)) {
        return Err(usage_error(format_args!("--{name} is for files: it cannot be combined with --mdt-index")));
    }
    let count = match parsed.value("stripe-count") {
        None => Some(mdts.len().max(1)),
        Some("-1") => None,
        Some(text) => {
            let count = text.parse().ok().filter(|count| *count > 0);
            Some(count.ok_or_else(|| usage_error(format_args!("invalid stripe count '{text}'")))?)
        }
    };
    if mdts.len() > 1 && count != Some(mdts.len()) {
        let given = mdts.len();
        return Err(usage_error(format_args!("the stripe count is not that of the {given} MDT targets given")));
    }
    if hash.is_some() && count == Some(1) {
        return Err(usage_error("--mdt-hash is for several MDTs (-m 0,1 or -c COUNT)"));
    }
    Ok(Some(Wanted::moved(mdts, count, hash.unwrap_or_default())))
}

/// The MDTs that are named; none: any.
fn mdts(text: &str) -> Result<Vec<MdtIndex>, Failure> {
    if text == "-1" {
        return Ok(Vec::new());
    }
    let mdts: Result<Vec<_>, _> = text.split(',').map(|index| index.parse().map(MdtIndex)).collect();
    let mdts = mdts.map_err(|_| usage_error(format_args!("invalid MDT target(s) '{text}'")))?;
    let mut distinct = mdts.clone();
    distinct.sort();
    distinct.dedup();
    match distinct.len() == mdts.len() {
        true => Ok(mdts),
        false => Err(usage_error(format_args!("duplicate MDT target(s) '{text}'"))),
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
