//! `lfs fiemap`: where the data of files are, object by object.
//!
//! Linux passes FIEMAP to no file system in user space, so `filefrag` cannot be used. The output
//! follows that of Lustre's `filefrag -v`, which names the device of each extent.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Write,
    path::Path,
};

use layout::{Layout, Location};
use rpc::message::{
    control::{ControlReply, ControlRequest, Subject},
    ost::{Extent, ExtentPlace, FoundExtents},
};
use serde::Serialize;
use types::{FsError, MdtIndex, counted, limits::BLOCK_BYTES};

use super::{
    channel::{CallError, Errno, strerror},
    df_json::print_line,
    options::{OptionSpec, Takes, long_option, parse},
    outcome::{Failure, Outcome, USAGE, print, print_path},
};

/// The options.
pub const OPTIONS: &[OptionSpec] = &[long_option(&["json"], Takes::Nothing), long_option(&["help"], Takes::Nothing)];

const HELP: &str = "\
usage: lfs fiemap [--json] FILE...

Shows where the data of each FILE are, object by object, as `filefrag -v` does on Lustre, in blocks
of 4096 bytes: the offset within the object (device_logical), the place on the device of the OST
(physical_offset), the length, and the index of the OST (dev). Flags:

  inline       in the tables of the target: small or recently overwritten data
  unknown_loc  in a file of the OST's directory; the file system there knows its place
  last         the last extent of the file

Places are those of a moment: data that are overwritten move. Holes are left out.

      --json     JSON lines: path, and slot, target (OST0003, MDT0000), offset and bytes within the
                 object, place (device, tables, host_file), device_offset in bytes (null if the place
                 is not device)

Exit status: 0; 4 for a wrong command line; else the error number (13: FILE cannot be read; 25: not
on StriaFS; 71: refused, as by an OST of an earlier version).
";

/// An extent, and the object it is of.
struct Placed {
    slot: u32,
    location: Location,
    extent: Extent,
}

/// What is known of a file.
struct Found {
    size: u64,
    mdt: MdtIndex,
    /// In the order of the objects.
    extents: Vec<Placed>,
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    path: &'a str,
    slot: u32,
    target: String,
    offset: u64,
    bytes: u64,
    place: &'static str,
    device_offset: Option<u64>,
}

/// Runs `lfs fiemap`.
pub fn run(arguments: &[OsString], output: &mut dyn Write) -> Outcome {
    let parsed = parse(OPTIONS, arguments).map_err(|error| Failure::new(USAGE, format!("lfs fiemap: {error}")))?;
    if parsed.has("help") {
        return print(output, format_args!("{HELP}"));
    }
    if parsed.operands.is_empty() {
        return Err(Failure::new(USAGE, "lfs fiemap: FILE must be specified"));
    }
    for path in &parsed.operands {
        let found = find(Path::new(path)).map_err(|error| failed(path, &error))?;
        match parsed.has("json") {
            true => print_json(output, path, &found)?,
            false => print_extents(output, path, &found)?,
        }
    }
    Ok(())
}

fn failed(path: &OsStr, error: &CallError) -> Failure {
    let reason = match error {
        CallError::Refused(FsError::Protocol(cause)) => format!("refused ({cause}); is an OST of an earlier version?"),
        CallError::Refused(FsError::NotFound) => "its layout has just changed; try again".to_owned(),
        error => strerror(error.errno().0),
    };
    Failure::new(error.errno().0, format!("lfs fiemap: {}: {reason}", path.to_string_lossy()))
}

fn call(file: &File, request: &ControlRequest) -> Result<ControlReply, CallError> {
    match host::ioctl::call(file, request)? {
        ControlReply::Error(error) => Err(CallError::Refused(error)),
        reply => Ok(reply),
    }
}

fn find(path: &Path) -> Result<Found, CallError> {
    let file = File::open(path)?;
    let (inode, layout) = match call(&file, &ControlRequest::GetLayout(Subject::This))? {
        ControlReply::Layout { directory: true, .. } => return Err(Errno(libc::EISDIR).into()),
        ControlReply::Layout { inode, layout: Some(layout), .. } => (inode, layout),
        ControlReply::Layout { .. } => return Err(Errno(libc::EINVAL).into()),
        _ => return Err(Errno(libc::EPROTO).into()),
    };
    let size = file.metadata()?.len();
    let mut extents = Vec::new();
    for (slot, location) in layout.objects() {
        let mut add = |extent| extents.push(Placed { slot, location, extent });
        match location {
            Location::Mdt => on_mdt(&layout, slot, size).into_iter().for_each(&mut add),
            Location::Ost(_) => of_object(&file, slot)?.into_iter().for_each(&mut add),
        }
    }
    Ok(Found { size, mdt: inode.mdt(), extents })
}

/// Data on an MDT are in its tables.
fn on_mdt(layout: &Layout, slot: u32, size: u64) -> Option<Extent> {
    let bytes = layout.object_size(slot, size).next_multiple_of(BLOCK_BYTES);
    (bytes > 0).then_some(Extent { offset: 0, bytes, place: ExtentPlace::Tables })
}

/// All pages of an object.
fn of_object(file: &File, slot: u32) -> Result<Vec<Extent>, CallError> {
    let (mut all, mut offset): (Vec<Extent>, u64) = (Vec::new(), 0);
    loop {
        let ControlReply::Extents(FoundExtents { extents, next }) =
            call(file, &ControlRequest::Extents { slot, offset })?
        else {
            return Err(Errno(libc::EPROTO).into());
        };
        for extent in extents {
            match all.last_mut() {
                Some(last) if last.is_followed_by(&extent) => last.bytes += extent.bytes,
                _ => all.push(extent),
            }
        }
        match next {
            None => return Ok(all),
            Some(next) if next > offset => offset = next,
            // It would never end.
            Some(_) => return Err(Errno(libc::EPROTO).into()),
        }
    }
}

fn print_extents(output: &mut dyn Write, path: &OsStr, found: &Found) -> Outcome {
    let Found { size, extents, .. } = found;
    print(output, format_args!("File size of "))?;
    let blocks = size.div_ceil(BLOCK_BYTES);
    print_path(output, path, format_args!(" is {size} ({blocks} blocks of {BLOCK_BYTES} bytes)\n"))?;
    print(output, format_args!(" ext:     device_logical:        physical_offset: length:  dev: flags:\n"))?;
    for (number, Placed { location, extent, .. }) in extents.iter().enumerate() {
        let blocks = (extent.bytes / BLOCK_BYTES).max(1);
        let range = |start: u64| format!("{start:>10}..{:>10}", start.saturating_add(blocks - 1));
        let logical = range(extent.offset / BLOCK_BYTES);
        let (physical, kind) = match extent.place {
            ExtentPlace::Device(start) => (range(start / BLOCK_BYTES), None),
            ExtentPlace::Tables => (format!("{:>22}", "-"), Some("inline")),
            ExtentPlace::HostFile => (format!("{:>22}", "-"), Some("unknown_loc")),
        };
        let is_last = number + 1 == extents.len();
        let flags: Vec<&str> = kind.into_iter().chain(is_last.then_some("last")).collect();
        let device = match location {
            Location::Ost(ost) => format!("{:04x}", ost.0),
            Location::Mdt => "MDT".to_owned(),
        };
        let line = format!("{number:>4}: {logical}: {physical}: {blocks:>6}: {device:>4}: {}", flags.join(","));
        print(output, format_args!("{}\n", line.trim_end()))?;
    }
    print_path(output, path, format_args!(": {} found\n", counted(extents.len() as u64, "extent")))
}

fn print_json(output: &mut dyn Write, path: &OsStr, Found { mdt, extents, .. }: &Found) -> Outcome {
    for Placed { slot, location, extent: Extent { offset, bytes, place } } in extents {
        let target = match location {
            Location::Ost(ost) => ost.to_string(),
            Location::Mdt => mdt.to_string(),
        };
        let (place, device_offset) = match place {
            ExtentPlace::Device(start) => ("device", Some(*start)),
            ExtentPlace::Tables => ("tables", None),
            ExtentPlace::HostFile => ("host_file", None),
        };
        let path = &*path.to_string_lossy();
        let line = Line { path, slot: *slot, target, offset: *offset, bytes: *bytes, place, device_offset };
        print_line(&line, output)?;
    }
    Ok(())
}
