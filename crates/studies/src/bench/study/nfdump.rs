//! Files of nfdump (`nfcapd`, `nfpcapd`) as records of NetFlow version 5.
//!
//! nfdump itself reads them: their blocks have records of several forms and versions, often
//! compressed, and no other program decodes them better. It prints a flow per line, in the
//! requested format, and each line becomes a record of [`Flow`]. Flows of IPv6 have no such record
//! and are left out; counts that do not fit into 32 bits are the largest that do.
//!
//! Needs Debian's nfdump.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write},
    net::Ipv4Addr,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, bail, ensure};

use crate::study::flow::Flow;

/// First two bytes of nfdump's files, versions 1 and 2, as a little or a big endian host writes
/// them.
const MAGIC: u16 = 0xa50c;

/// What nfdump is asked for: plain numbers, in the order of [`parse`].
const FORMAT: &str = "fmt:%tsr|%ter|%pr|%sa|%sp|%da|%dp|%pkt|%byt";

/// Whether a file that begins with these bytes is one of nfdump's.
pub fn is_nfdump(magic: [u8; 2]) -> bool {
    [u16::from_le_bytes(magic), u16::from_be_bytes(magic)].contains(&MAGIC)
}

/// Appends the flows of a file to `target`, as records.
pub fn convert(path: &Path, target: &File) -> anyhow::Result<()> {
    let mut complaints = tempfile::tempfile().context("cannot create a temporary file")?;
    let mut running = Command::new("nfdump")
        .args(["-C", "none", "-q", "-N", "-o", FORMAT, "-r"])
        .arg(path)
        .arg("ipv4")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(complaints.try_clone()?)
        .spawn()
        .map_err(|error| not_started(path, error))?;
    let lines = BufReader::new(running.stdout.take().expect("it is a pipe")).lines();
    let converted = append(lines, target);
    if converted.is_err() {
        // It may be waiting for a reader that is gone; that it is dead already is no news.
        let _ = running.kill();
    }
    let status = running.wait().context("cannot wait for nfdump")?;
    let mut complaint = String::new();
    complaints.rewind()?;
    complaints.read_to_string(&mut complaint)?;
    let failed = || format!("nfdump cannot read {}: {}", path.display(), complaint.trim());
    ensure!(status.success(), failed());
    let flows = converted.with_context(failed)?;
    // It succeeds with some files that it cannot read.
    ensure!(flows > 0, "{}; it contains no IPv4 flow", failed());
    Ok(())
}

fn not_started(path: &Path, error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::NotFound {
        return anyhow::anyhow!(
            "{} is an nfdump file, and nfdump is not installed: apt-get install nfdump",
            path.display()
        );
    }
    anyhow::Error::from(error).context("cannot run nfdump")
}

/// Writes a record for every line; how many.
fn append(lines: impl Iterator<Item = io::Result<String>>, target: &File) -> anyhow::Result<u64> {
    let mut target = BufWriter::new(target);
    let mut flows = 0;
    for line in lines {
        let line = line?;
        let Some(flow) = parse(&line) else { bail!("nfdump printed a line that is not a flow: {line}") };
        target.write_all(&flow.encode())?;
        flows += 1;
    }
    target.flush()?;
    Ok(flows)
}

/// A flow from a line of [`FORMAT`].
fn parse(line: &str) -> Option<Flow> {
    let mut fields = line.split('|').map(str::trim);
    let mut field = || fields.next();
    let flow = Flow {
        first_ms: milliseconds(field()?)?,
        last_ms: milliseconds(field()?)?,
        protocol: field()?.parse().ok()?,
        source: address(field()?)?,
        source_port: port(field()?)?,
        destination: address(field()?)?,
        destination_port: port(field()?)?,
        packets: count(field()?)?,
        octets: count(field()?)?,
    };
    field().is_none().then_some(flow)
}

/// Seconds since 1970 with a fraction, as milliseconds of a router's clock, which begins again
/// every 49 days.
fn milliseconds(text: &str) -> Option<u32> {
    let (seconds, fraction) = text.split_once('.')?;
    if fraction.len() != 3 {
        return None;
    }
    let (seconds, milliseconds): (u64, u64) = (seconds.parse().ok()?, fraction.parse().ok()?);
    Some(seconds.wrapping_mul(1000).wrapping_add(milliseconds) as u32)
}

fn address(text: &str) -> Option<u32> {
    text.parse::<Ipv4Addr>().ok().map(u32::from)
}

/// A port; of ICMP, type and code with a point between them, which version 5 has in the two bytes
/// of a port.
fn port(text: &str) -> Option<u16> {
    match text.split_once('.') {
        None => text.parse().ok(),
        Some((kind, code)) => Some(u16::from_be_bytes([kind.parse().ok()?, code.parse().ok()?])),
    }
}

fn count(text: &str) -> Option<u32> {
    text.parse::<u64>().ok().map(|count| u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "1600000000.001|1600000060.250|17   |       10.0.0.30| 30001|  198.51.100.253|    53|       1|     437";

    #[test]
    fn a_line_of_nfdump_is_a_flow() {
        let flow = parse(LINE).unwrap();
        assert_eq!((flow.source, flow.destination), (0x0a00_001e, 0xc633_64fd));
        assert_eq!((flow.source_port, flow.destination_port, flow.protocol), (30001, 53, 17));
        assert_eq!((flow.packets, flow.octets, flow.last_ms - flow.first_ms), (1, 437, 60_249));
        assert_eq!(u64::from(flow.first_ms), 1_600_000_000_001 % (1 << 32));
    }

    #[test]
    fn ports_of_icmp_and_counts_beyond_32_bits_have_their_places() {
        let flow = parse("1.000|2.000|1|10.0.0.1|0|10.0.0.2|3.4|5000000000|1").unwrap();
        assert_eq!((flow.destination_port, flow.packets), (0x0304, u32::MAX));
    }

    #[test]
    fn what_is_not_a_flow_is_refused() {
        let fields: Vec<&str> = LINE.split('|').collect();
        for missing in 0..fields.len() {
            let mut fields = fields.clone();
            fields.remove(missing);
            assert_eq!(parse(&fields.join("|")), None, "without field {missing}");
        }
        for bad in ["", "No matching flows", "1.000|2.000|UDP|10.0.0.1|0|10.0.0.2|0|1|1", &format!("{LINE}|1")] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let lines = [LINE.to_owned(), "Summary".to_owned()].map(Ok).into_iter();
        let error = append(lines, &tempfile::tempfile().unwrap()).unwrap_err().to_string();
        assert!(error.contains("Summary"), "{error}");
    }

    #[test]
    fn files_of_nfdump_are_known_by_their_first_bytes() {
        assert!(is_nfdump([0x0c, 0xa5]) && is_nfdump([0xa5, 0x0c]) && !is_nfdump([0x0a, 0]));
    }
}
