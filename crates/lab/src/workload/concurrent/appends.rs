//! Appends of all clients to one file: each record is in it exactly once, whole, in its client's
//! order.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rt::{BoxFuture, Entropy};

use super::{
    Scenario, Verdict,
    actor::{Actor, told},
};
use crate::reference::pattern;

const FILE: &str = "log";
const MAGIC: [u8; 4] = *b"REC:";
/// Magic, client (2), number (4), length of the payload (4), checksum of the payload (4).
const HEADER_BYTES: usize = 18;
/// Largest payload: several stripes.
const PAYLOAD_BYTES_MAX: u64 = 200_000;

/// Records that were acknowledged, by client: all numbers below.
#[derive(Default)]
pub struct Appends {
    acknowledged: Mutex<BTreeMap<u16, u32>>,
}

fn record(client: u16, number: u32, payload_bytes: usize) -> Vec<u8> {
    let payload = pattern((client as u8).wrapping_mul(50).wrapping_add(number as u8), 0, payload_bytes);
    let mut record = MAGIC.to_vec();
    record.extend(client.to_le_bytes());
    record.extend(number.to_le_bytes());
    record.extend((payload.len() as u32).to_le_bytes());
    record.extend(rpc::checksum::crc32c(&payload).to_le_bytes());
    record.extend(payload);
    record
}

/// The record at the beginning of `data`: client, number and length, if it is whole.
fn parse(data: &[u8]) -> Option<(u16, u32, usize)> {
    let header: &[u8; HEADER_BYTES] = data.get(..HEADER_BYTES)?.try_into().ok()?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (client, number) = (u16::from_le_bytes([header[4], header[5]]), word(6));
    let length = HEADER_BYTES + word(10) as usize;
    let payload = data.get(HEADER_BYTES..length)?;
    (header[..4] == MAGIC && rpc::checksum::crc32c(payload) == word(14)).then_some((client, number, length))
}

impl Scenario for Appends {
    fn name(&self) -> &'static str {
        "appends"
    }

    fn prepare<'a>(&'a self, actor: &'a Actor) -> BoxFuture<'a, Verdict> {
        Box::pin(actor.make_file(FILE))
    }

    fn play<'a>(&'a self, actor: &'a Actor, rounds: u64) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let mut file = told("open", actor.open(FILE).await)?;
            for number in 0..rounds as u32 {
                let bytes = match actor.random.below(3) {
                    0 => actor.random.below(PAYLOAD_BYTES_MAX),
                    _ => actor.random.below(3000),
                };
                told("append", actor.append(&file, record(actor.client, number, bytes as usize)).await)?;
                self.acknowledged.lock().insert(actor.client, number + 1);
                actor.note(format_args!("appended record {number} of {bytes} bytes"));
                if actor.random.happens(100_000) {
                    told("close", actor.close(file).await)?;
                    file = told("open", actor.open(FILE).await)?;
                }
            }
            told("close", actor.close(file).await)
        })
    }

    fn judge<'a>(&'a self, actor: &'a Actor, dead: Option<u16>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let data = told("read", actor.contents(FILE).await)?;
            judge(&data, &self.acknowledged.lock(), dead)
        })
    }
}

/// Whether a file holds what was acknowledged. What a client that died had in progress may be
/// there, whole or in part.
fn judge(data: &[u8], acknowledged: &BTreeMap<u16, u32>, dead: Option<u16>) -> Verdict {
    let mut found: BTreeMap<u16, u32> = BTreeMap::new();
    let (mut position, mut garbage) = (0, 0);
    while position < data.len() {
        let Some((client, number, length)) = parse(&data[position..]) else {
            (position, garbage) = (position + 1, garbage + 1);
            continue;
        };
        let expected = found.entry(client).or_default();
        if number != *expected {
            return Err(format!("at byte {position} record {number} of client {client}, expected record {expected}"));
        }
        *expected += 1;
        position += length;
    }
    let garbage_max = if dead.is_some() { HEADER_BYTES + PAYLOAD_BYTES_MAX as usize } else { 0 };
    if garbage > garbage_max {
        return Err(format!("{garbage} of {} bytes belong to no whole record", data.len()));
    }
    for (client, count) in acknowledged {
        let there = found.get(client).copied().unwrap_or_default();
        let more = u32::from(dead == Some(*client));
        if !(*count..=count + more).contains(&there) {
            return Err(format!("client {client} got {count} records acknowledged, {there} are there"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_judge_finds_lost_doubled_and_torn_records() {
        let records: Vec<Vec<u8>> = (0..3).map(|number| record(1, number, 100 * number as usize)).collect();
        let told = |count| BTreeMap::from([(1, count)]);
        assert_eq!(judge(&records.concat(), &told(3), None), Ok(()));
        assert!(judge(&records[..2].concat(), &told(3), None).is_err(), "lost");
        assert!(judge(&[records.concat(), records[2].clone()].concat(), &told(3), None).is_err(), "doubled");
        assert!(judge(&[records[1].clone(), records[0].clone()].concat(), &told(2), None).is_err(), "out of order");
        assert!(judge(&records.concat()[..200], &told(2), None).is_err(), "torn");
        assert_eq!(judge(&records.concat()[..200], &told(2), Some(1)), Ok(()), "torn by the death of its client");
        assert_eq!(judge(&records.concat(), &told(2), Some(1)), Ok(()), "under way when its client died");
        assert!(judge(&records.concat(), &told(1), Some(1)).is_err());
    }
}
