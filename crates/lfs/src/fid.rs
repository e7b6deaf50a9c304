//! `lfs path2fid`, `lfs fid2path` and `lfs rmfid`.
//!
//! Downside: `rmfid` removes a file's names one by one, each after a check that it still belongs to
//! that file; a rename in between goes unnoticed, as with rm(1).

use std::{
    ffi::{OsStr, OsString},
    io::Write,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rpc::message::control::{ControlReply, ControlRequest};
use types::{Fid, InodeNumber};

use super::{
    channel::{self, Errno, strerror},
    options::{OptionSpec, Takes, long_option, option, parse},
    outcome::{Failure, Outcome, USAGE, print, print_path},
};

/// Options of `lfs path2fid`.
pub const PATH2FID_OPTIONS: &[OptionSpec] =
    &[option('p', &["parents"], Takes::Nothing), long_option(&["help"], Takes::Nothing)];

/// Runs `lfs path2fid [--parents] PATH...`.
pub fn path2fid(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let parsed =
        parse(PATH2FID_OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs path2fid: {error}")))?;
    if parsed.has("help") {
        return print(
            output,
            format_args!(
                "usage: lfs path2fid [-p] PATH...\n\nShows the FID of each path; with -p, --parents the FID of each parent directory and the name in it.\n"
            ),
        );
    }
    if parsed.operands.is_empty() {
        return Err(Failure::new(USAGE, "lfs path2fid: PATH must be specified"));
    }
    let several = parsed.operands.len() > 1;
    for operand in &parsed.operands {
        let path = Path::new(operand);
        let fail = |Errno(errno)| {
            let (shown, problem) = (operand.display(), strerror(errno));
            Failure::new(errno, format!("lfs path2fid: can't get fid for '{shown}': {problem} ({errno})"))
        };
        let begin = |output: &mut dyn Write| match several {
            true => print_path(output, operand, format_args!(": ")),
            false => Ok(()),
        };
        let inode = channel::inode(path).map_err(fail)?;
        if !parsed.has("parents") {
            begin(output)?;
            print(output, format_args!("{}\n", Fid::from(inode)))?;
            continue;
        }
        for (parent, name) in parents(path, inode).map_err(fail)? {
            begin(output)?;
            print(output, format_args!("{parent}/"))?;
            print_path(output, name, format_args!("\n"))?;
        }
    }
    Ok(())
}

/// The directory's FID and the name there, for every link of the inode.
fn parents(path: &Path, inode: InodeNumber) -> Result<Vec<(Fid, OsString)>, Errno> {
    let mount = channel::mount_of(path)?.ok_or(Errno(libc::ENOTTY))?;
    let mut links = Vec::new();
    for relative in paths(&mount.point, inode)? {
        let absolute = mount.point.join(OsStr::from_bytes(&relative));
        let Some(name) = absolute.file_name() else { continue };
        let parent = channel::inode(&channel::parent(&absolute))?;
        links.push((Fid::from(parent), name.to_owned()));
    }
    Ok(links)
}

/// Options of `lfs fid2path`.
pub const FID2PATH_OPTIONS: &[OptionSpec] =
    &[option('l', &["link"], Takes::Value), long_option(&["help"], Takes::Nothing)];

/// Runs `lfs fid2path MOUNT FID...`.
pub fn fid2path(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let parsed =
        parse(FID2PATH_OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs fid2path: {error}")))?;
    if parsed.has("help") {
        return print(
            output,
            format_args!(
                "usage: lfs fid2path [-l N] MOUNT FID...\n\nShows every path of each FID, or with -l, --link only path number N, counted from 0; MOUNT is the mount point, any path below it, or the file system's name.\n"
            ),
        );
    }
    let link = parsed.value("link").map(|text| {
        text.parse::<usize>().map_err(|_| Failure::new(USAGE, format!("lfs fid2path: invalid link number '{text}'")))
    });
    let link = link.transpose()?;
    let (place, fids) = match parsed.operands.split_first() {
        Some((place, fids)) if !fids.is_empty() => (place, fids),
        _ => return Err(Failure::new(USAGE, "lfs fid2path: MOUNT and FID must be specified")),
    };
    let fail = |what: &OsStr, errno: i32| {
        let (shown, problem) = (what.display(), strerror(errno));
        Failure::new(errno, format!("lfs fid2path: cannot find '{shown}': {problem} ({errno})"))
    };
    let point = mount_point(place).map_err(|Errno(errno)| fail(place, errno))?;
    for text in fids {
        let inode = inode_of("fid2path", text)?;
        let mut paths = paths(&point, inode).map_err(|Errno(errno)| fail(text, errno))?;
        if let Some(link) = link {
            paths = vec![paths.into_iter().nth(link).ok_or_else(|| fail(text, libc::ENOENT))?];
        }
        for relative in paths {
            print_path(output, point.join(OsStr::from_bytes(&relative)), format_args!("\n"))?;
        }
    }
    Ok(())
}

/// Options of `lfs rmfid`.
pub const RMFID_OPTIONS: &[OptionSpec] = &[long_option(&["help"], Takes::Nothing)];

/// Runs `lfs rmfid MOUNT FID...`. Continues after files that cannot be removed.
pub fn rmfid(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let parsed = parse(RMFID_OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs rmfid: {error}")))?;
    if parsed.has("help") {
        let help = "usage: lfs rmfid MOUNT FID...\n\nRemoves files by their FIDs, with all their names. Needs permission to remove each name. MOUNT is the mount\npoint, any path below it, or the file system's name. Directories are not removed (21, Is a directory).\n";
        return print(output, format_args!("{help}"));
    }
    let (place, fids) = match parsed.operands.split_first() {
        Some((place, fids)) if !fids.is_empty() => (place, fids),
        _ => return Err(Failure::new(USAGE, "lfs rmfid: MOUNT and FID must be specified")),
    };
    let fail = |what: &OsStr, Errno(errno)| {
        let (shown, problem) = (what.display(), strerror(errno));
        Failure::new(errno, format!("lfs rmfid: cannot remove '{shown}': {problem} ({errno})"))
    };
    let point = mount_point(place).map_err(|errno| fail(place, errno))?;
    let mut outcome = Ok(());
    for text in fids {
        let removed =
            inode_of("rmfid", text).and_then(|inode| remove(&point, inode).map_err(|errno| fail(text, errno)));
        if let Err(failure) = removed
            && let Err(earlier) = std::mem::replace(&mut outcome, Err(failure))
        {
            let Failure { message, .. } = earlier;
            eprintln!("{message}");
        }
    }
    outcome
}

/// Removes all names of a file.
fn remove(point: &Path, inode: InodeNumber) -> Result<(), Errno> {
    let names = paths(point, inode)?;
    if names.is_empty() {
        return Err(Errno(libc::ENOENT));
    }
    for relative in names {
        let path = point.join(OsStr::from_bytes(&relative));
        if channel::inode(&path)? != inode {
            return Err(Errno(libc::EAGAIN));
        }
        // unlink(2), which refuses directories.
        std::fs::remove_file(&path)?;
    }
    Ok(())
}

/// The inode that has a FID.
fn inode_of(command: &str, text: &OsStr) -> Result<InodeNumber, Failure> {
    let shown = text.display();
    let fid = text.to_str().and_then(|text| text.parse::<Fid>().ok()).ok_or_else(|| {
        let expected = "expected [0xSEQUENCE:0xOBJECT:0x0]";
        Failure::new(libc::EINVAL, format!("lfs {command}: invalid FID '{shown}': {expected}"))
    })?;
    fid.inode().ok_or_else(|| {
        let problem = format!("lfs {command}: cannot find '{shown}': not a FID of this file system");
        Failure::new(libc::ENOENT, problem)
    })
}

fn mount_point(place: &OsStr) -> Result<PathBuf, Errno> {
    match channel::mount_of(Path::new(place)) {
        Ok(Some(mount)) => Ok(mount.point),
        Ok(None) => Err(Errno(libc::ENOTTY)),
        Err(error) => {
            let named = |mount: &channel::Mount| channel::name(&mount.point).is_ok_and(|(fsname, _)| *fsname == *place);
            channel::mounts()?.into_iter().find(named).map(|mount| mount.point).ok_or(error)
        }
    }
}

fn paths(point: &Path, inode: InodeNumber) -> Result<Vec<Vec<u8>>, Errno> {
    match channel::call(point, &ControlRequest::InodePaths(inode)) {
        Ok(ControlReply::Paths(paths)) => Ok(paths),
        Ok(_) => Err(Errno(libc::EPROTO)),
        // No inode has this number (any more): to a user of `lfs`, a name that leads nowhere.
        Err(Errno(libc::ESTALE)) => Err(Errno(libc::ENOENT)),
        Err(errno) => Err(errno),
    }
}
