//! Flow records: the 48 bytes that a router reports of one flow in NetFlow version 5 (Cisco), all
//! numbers big endian.
//!
//! ```text
//! offset bytes               offset bytes               offset bytes
//!      0     4  source            16     4  packets          36     1  0
//!      4     4  destination       20     4  octets           37     1  TCP flags
//!      8     4  next hop          24     4  first, ms        38     1  protocol
//!     12     2  input interface   28     4  last, ms         39     1  type of service
//!     14     2  output interface  32     2  source port      40     4  autonomous systems
//!                                 34     2  destination port 44     4  masks, 0
//! ```
//!
//! [`Generator`] makes them: record `n` of a seed is always the same, so a file of any size needs
//! no memory. Hosts of the local network (10.0.0.0/8) appear according to a power law, as in real
//! traffic: a few of them are in most flows.

use std::net::Ipv4Addr;

use types::SplitMix64;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 48;
/// Bytes of a call of the first phase: whole records, about a megabyte.
pub const CALL_BYTES: u64 = (1 << 20) / RECORD_BYTES as u64 * RECORD_BYTES as u64;
/// One host in so many is modelled: some 70 million of 1,150 million records are read again.
const MODELLED_ONE_IN: u32 = 16;
/// Hosts of a generated file for every MiB of it.
const HOSTS_PER_MIB: u64 = 64;

/// Bytes of the whole records in so many bytes.
pub fn whole_records(bytes: u64) -> u64 {
    bytes / RECORD_BYTES as u64 * RECORD_BYTES as u64
}

/// What the study looks at in a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The sender.
    pub source: u32,
    /// The receiver.
    pub destination: u32,
    /// Packets.
    pub packets: u32,
    /// Bytes.
    pub octets: u32,
    /// First packet, in milliseconds since the router started.
    pub first_ms: u32,
    /// Last packet.
    pub last_ms: u32,
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// IP protocol.
    pub protocol: u8,
}

/// The own network, 10.0.0.0/8.
const INTERNAL: u32 = 10 << 24;

impl Flow {
    /// The host of the own network that the flow belongs to: of 10.0.0.0/8, or else of another
    /// private network.
    pub fn internal(&self) -> Option<u32> {
        let ends = [self.source, self.destination];
        let own = ends.into_iter().find(|host| host >> 24 == INTERNAL >> 24);
        own.or_else(|| ends.into_iter().find(|host| Ipv4Addr::from(*host).is_private()))
    }

    /// The host whose model the flow belongs to, if one is made of it.
    pub fn modelled(&self) -> Option<u32> {
        self.internal().filter(|host| host % MODELLED_ONE_IN == 0)
    }

    /// As bytes.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &self.source.to_be_bytes());
        put(4, &self.destination.to_be_bytes());
        put(16, &self.packets.to_be_bytes());
        put(20, &self.octets.to_be_bytes());
        put(24, &self.first_ms.to_be_bytes());
        put(28, &self.last_ms.to_be_bytes());
        put(32, &self.source_port.to_be_bytes());
        put(34, &self.destination_port.to_be_bytes());
        put(38, &[self.protocol]);
        bytes
    }

    /// From bytes.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Self {
        let long = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let short = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        Self {
            source: long(0),
            destination: long(4),
            packets: long(16),
            octets: long(20),
            first_ms: long(24),
            last_ms: long(28),
            source_port: short(32),
            destination_port: short(34),
            protocol: bytes[38],
        }
    }
}

/// Makes records.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    /// Decides everything.
    pub seed: u64,
    /// Hosts of the own network.
    pub hosts: u32,
}

/// A well mixed number.
fn mix(value: u64) -> u64 {
    SplitMix64(value).next_u64()
}

impl Generator {
    /// One for a file of so many bytes.
    pub fn for_bytes(bytes: u64) -> Self {
        Self { seed: 1, hosts: ((bytes >> 20).max(1) * HOSTS_PER_MIB).min(1 << 24) as u32 }
    }

    /// Record `number`.
    pub fn flow(&self, number: u64) -> Flow {
        let mut state = mix(self.seed) ^ number;
        let mut draw = || {
            state = mix(state);
            state
        };
        // A power law: the square of a uniform number favours low ranks.
        let uniform = (draw() >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = (f64::from(self.hosts) * uniform * uniform) as u32;
        let inside = INTERNAL | rank.min(self.hosts.saturating_sub(1));
        let outside = (draw() as u32 & 0x7fff_ffff) | 0x8000_0000;
        let outgoing = draw() & 1 == 0;
        let (source, destination) = if outgoing { (inside, outside) } else { (outside, inside) };
        let well_known = [443, 80, 53, 22, 25, 123][(draw() % 6) as usize];
        let ephemeral = 32768 + (draw() % 28232) as u16;
        let (source_port, destination_port) = if outgoing { (ephemeral, well_known) } else { (well_known, ephemeral) };
        // Most flows are short, few are long: a power of two with an even exponent's chance.
        let packets = 1 + (draw() % (1 << (draw() % 12))) as u32;
        let first_ms = (number / 8) as u32;
        Flow {
            source,
            destination,
            packets,
            octets: packets * (40 + (draw() % 1460) as u32),
            first_ms,
            last_ms: first_ms.wrapping_add((draw() % 60_000) as u32),
            source_port,
            destination_port,
            protocol: if well_known == 53 || well_known == 123 { 17 } else { 6 },
        }
    }

    /// Fills `buffer` with the bytes of the file from `offset` on; both are whole records.
    pub fn fill(&self, offset: u64, buffer: &mut [u8]) {
        let first = offset / RECORD_BYTES as u64;
        for (number, record) in (first..).zip(buffer.chunks_exact_mut(RECORD_BYTES)) {
            record.copy_from_slice(&self.flow(number).encode());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATOR: Generator = Generator { seed: 1, hosts: 1000 };

    #[test]
    fn records_are_read_as_written() {
        for number in 0..1000 {
            let flow = GENERATOR.flow(number);
            assert_eq!(Flow::decode(&flow.encode()), flow);
            let host = flow.internal().expect("every flow has one end inside");
            assert!(host - INTERNAL < 1000);
            assert!(flow.octets >= flow.packets * 40 && flow.last_ms >= flow.first_ms);
        }
        assert_eq!(Flow::default().internal(), None);
        let flow = |source, destination| Flow { source, destination, ..Flow::default() };
        assert_eq!(flow(0xc0a8_0001, 0x0a00_0001).internal(), Some(0x0a00_0001), "192.168.0.1 and 10.0.0.1");
        assert_eq!(flow(0x0808_0808, 0xc0a8_0001).internal(), Some(0xc0a8_0001));
    }

    #[test]
    fn few_hosts_have_most_flows() {
        let low = (0..10_000).filter(|number| GENERATOR.flow(*number).internal().unwrap() - INTERNAL < 250).count();
        assert!((4500..5500).contains(&low), "half of the flows belong to a quarter of the hosts: {low}");
    }

    #[test]
    fn a_file_is_the_same_however_it_is_filled() {
        let mut whole = vec![0; 100 * RECORD_BYTES];
        GENERATOR.fill(0, &mut whole);
        let mut part = vec![0; 10 * RECORD_BYTES];
        GENERATOR.fill(30 * RECORD_BYTES as u64, &mut part);
        assert_eq!(part, whole[30 * RECORD_BYTES..40 * RECORD_BYTES]);
    }
}
