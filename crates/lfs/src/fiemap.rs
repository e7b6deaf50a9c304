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
use types::{FsError, InodeNumber, MdtIndex, counted, limits::BLOCK_BYTES};

use super::{
    channel::{CallError, Errno, strerror},
    df_json::print_line,
    options::{OptionSpec, Takes, long_option, parse},
    outcome::{Failure, Outcome, USAGE, print, print_path, write_failure},
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

Places are those of a moment: data that are overwritten move. Holes are left out. Extents are
printed as the targets name them, so an error may come after some of them.

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
    parsed.operands.iter().try_for_each(|path| Shown::new(path, parsed.has("json")).run(output))
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

/// Data on an MDT are in its tables.
fn on_mdt(layout: &Layout, slot: u32, size: u64) -> Option<Extent> {
    let bytes = layout.object_size(slot, size).next_multiple_of(BLOCK_BYTES);
    (bytes > 0).then_some(Extent { offset: 0, bytes, place: ExtentPlace::Tables })
}

/// The pages of an object, one after the other.
struct Pages<'a> {
    file: &'a File,
    slot: u32,
    /// Where the next one begins; `None`: there is none.
    next: Option<u64>,
}

impl Pages<'_> {
    fn next(&mut self) -> Result<Option<Vec<Extent>>, CallError> {
        let Some(offset) = self.next else { return Ok(None) };
        let ControlReply::Extents(FoundExtents { extents, next }) =
            call(self.file, &ControlRequest::Extents { slot: self.slot, offset })?
        else {
            return Err(Errno(libc::EPROTO).into());
        };
        // It would never end.
        if next.is_some_and(|next| next <= offset) {
            return Err(Errno(libc::EPROTO).into());
        }
        self.next = next;
        Ok(Some(extents))
    }
}

/// The extents of a file, printed as they come. One is held back until the next one is known: that
/// may go on with it.
struct Shown<'a> {
    path: &'a OsStr,
    is_json: bool,
    size: u64,
    mdt: MdtIndex,
    /// Printed so far.
    count: u64,
    held: Option<Placed>,
}

impl<'a> Shown<'a> {
    fn new(path: &'a OsStr, is_json: bool) -> Self {
        Self { path, is_json, size: 0, mdt: MdtIndex(0), count: 0, held: None }
    }

    fn run(mut self, output: &mut dyn Write) -> Outcome {
        let path = self.path;
        let failed = |error: CallError| failed(path, &error);
        let file = File::open(Path::new(path)).map_err(|error| failed(error.into()))?;
        let (inode, layout) = layout_of(&file).map_err(failed)?;
        self.mdt = inode.mdt();
        self.size = file.metadata().map_err(|error| failed(error.into()))?.len();
        for (slot, location) in layout.objects() {
            if location == Location::Mdt {
                if let Some(extent) = on_mdt(&layout, slot, self.size) {
                    self.add(Placed { slot, location, extent }, output)?;
                }
                continue;
            }
            let mut pages = Pages { file: &file, slot, next: Some(0) };
            while let Some(extents) = pages.next().map_err(failed)? {
                for extent in extents {
                    self.add(Placed { slot, location, extent }, output)?;
                }
                output.flush().map_err(write_failure)?;
            }
        }
        let last = self.held.take();
        last.map_or(Ok(()), |last| self.print(&last, true, output))?;
        if self.is_json {
            return Ok(());
        }
        self.print_header(output)?;
        print_path(output, path, format_args!(": {} found\n", counted(self.count, "extent")))
    }

    fn add(&mut self, next: Placed, output: &mut dyn Write) -> Outcome {
        match &mut self.held {
            Some(held) if held.slot == next.slot && held.extent.is_followed_by(&next.extent) => {
                held.extent.bytes += next.extent.bytes;
                Ok(())
            }
            held => match held.replace(next) {
                Some(complete) => self.print(&complete, false, output),
                None => Ok(()),
            },
        }
    }

    /// Once, before the first line.
    fn print_header(&self, output: &mut dyn Write) -> Outcome {
        if self.count > 0 {
            return Ok(());
        }
        print(output, format_args!("File size of "))?;
        let (size, blocks) = (self.size, self.size.div_ceil(BLOCK_BYTES));
        print_path(output, self.path, format_args!(" is {size} ({blocks} blocks of {BLOCK_BYTES} bytes)\n"))?;
        print(output, format_args!(" ext:     device_logical:        physical_offset: length:  dev: flags:\n"))
    }

    fn print(&mut self, placed: &Placed, is_last: bool, output: &mut dyn Write) -> Outcome {
        if self.is_json {
            return print_json(output, (self.path, self.mdt), placed);
        }
        self.print_header(output)?;
        self.count += 1;
        print(output, format_args!("{}\n", line(self.count - 1, placed, is_last)))
    }
}

fn layout_of(file: &File) -> Result<(InodeNumber, Layout), CallError> {
    match call(file, &ControlRequest::GetLayout(Subject::This))? {
        ControlReply::Layout { directory: true, .. } => Err(Errno(libc::EISDIR).into()),
        ControlReply::Layout { inode, layout: Some(layout), .. } => Ok((inode, layout)),
        ControlReply::Layout { .. } => Err(Errno(libc::EINVAL).into()),
        _ => Err(Errno(libc::EPROTO).into()),
    }
}

fn line(number: u64, Placed { location, extent, .. }: &Placed, is_last: bool) -> String {
    let blocks = (extent.bytes / BLOCK_BYTES).max(1);
    let range = |start: u64| format!("{start:>10}..{:>10}", start.saturating_add(blocks - 1));
    let logical = range(extent.offset / BLOCK_BYTES);
    let (physical, kind) = match extent.place {
        ExtentPlace::Device(start) => (range(start / BLOCK_BYTES), None),
        ExtentPlace::Tables => (format!("{:>22}", "-"), Some("inline")),
        ExtentPlace::HostFile => (format!("{:>22}", "-"), Some("unknown_loc")),
    };
    let flags: Vec<&str> = kind.into_iter().chain(is_last.then_some("last")).collect();
    let device = match location {
        Location::Ost(ost) => format!("{:04x}", ost.0),
        Location::Mdt => "MDT".to_owned(),
    };
    let line = format!("{number:>4}: {logical}: {physical}: {blocks:>6}: {device:>4}: {}", flags.join(","));
    line.trim_end().to_owned()
}

fn print_json(output: &mut dyn Write, (path, mdt): (&OsStr, MdtIndex), placed: &Placed) -> Outcome {
    let Placed { slot, location, extent: Extent { offset, bytes, place } } = placed;
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
    print_line(&Line { path, slot: *slot, target, offset: *offset, bytes: *bytes, place, device_offset }, output)
}

#[cfg(test)]
mod tests {
    use types::OstIndex;

    use super::*;

    fn extent(slot: u32, block: u64, at: u64) -> Placed {
        let extent = Extent { offset: block * BLOCK_BYTES, bytes: BLOCK_BYTES, place: ExtentPlace::Device(at * 4096) };
        Placed { slot, location: Location::Ost(OstIndex(0)), extent }
    }

    #[test]
    fn extents_are_printed_as_soon_as_nothing_can_go_on_with_them() {
        let mut shown = Shown { size: 5 * BLOCK_BYTES, ..Shown::new(OsStr::new("file"), false) };
        let mut output = Vec::new();
        for next in [extent(0, 0, 10), extent(0, 1, 11)] {
            shown.add(next, &mut output).unwrap();
        }
        assert!(output.is_empty(), "more may follow on the device");
        shown.add(extent(0, 2, 20), &mut output).unwrap();
        let text = String::from_utf8(output.clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 3 && lines[2].starts_with("   0:          0..         1:         10.."), "{text}");
        // The same blocks of another object do not go on with it.
        shown.add(extent(1, 3, 21), &mut output).unwrap();
        assert_eq!((shown.count, shown.held.as_ref().map(|held| held.slot)), (2, Some(1)));
    }
}
