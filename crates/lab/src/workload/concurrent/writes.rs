//! Clients write their own records of a shared file, interleaved, and read them back at once: no write spoils a neighbour's.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rt::{BoxFuture, Entropy};

use super::{
    Scenario, Verdict,
    actor::{Actor, CREATE_NEW, told},
};
use crate::reference::pattern;

const FILE: &str = "shared";
/// Not a multiple of anything: records share blocks, and some lie in two stripes.
const RECORD_BYTES: u64 = 9_001;
/// Clients the file has room for.
const CLIENTS: u64 = 4;

/// What may lie at a place: the last value that was acknowledged, and one whose fate is open.
type Place = (Option<u8>, Option<u8>);

/// The last record each place was told to hold, and the one that may be under way: seeds of their patterns.
#[derive(Default)]
pub struct Writes {
    places: Mutex<BTreeMap<u64, Place>>,
}

fn contents(place: u64, seed: u8) -> Vec<u8> {
    pattern(seed, place * RECORD_BYTES, RECORD_BYTES as usize)
}

impl Scenario for Writes {
    fn name(&self) -> &'static str {
        "writes"
    }

    fn prepare<'a>(&'a self, actor: &'a Actor) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let file = told("create", actor.create(FILE, CREATE_NEW).await)?;
            told("close", actor.close(file).await)
        })
    }

    fn play<'a>(&'a self, actor: &'a Actor, rounds: u64) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let file = told("open", actor.open(FILE).await)?;
            for _ in 0..rounds {
                let place = actor.random.below(1 + rounds / 2) * CLIENTS + u64::from(actor.client);
                let seed = actor.random.below(256) as u8;
                self.places.lock().entry(place).or_default().1 = Some(seed);
                told("write", actor.write(&file, place * RECORD_BYTES, contents(place, seed)).await)?;
                self.places.lock().insert(place, (Some(seed), None));
                actor.note(format_args!("wrote place {place}"));
                let read = told("read", actor.read(&file, place * RECORD_BYTES, RECORD_BYTES as usize).await)?;
                if read != contents(place, seed) {
                    return Err(format!("place {place} does not read as written"));
                }
            }
            told("close", actor.close(file).await)
        })
    }

    fn judge<'a>(&'a self, actor: &'a Actor, _dead: Option<u16>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let data = told("read", actor.contents(FILE).await)?;
            let places = self.places.lock().clone();
            for (place, (written, under_way)) in &places {
                let range = (place * RECORD_BYTES) as usize..((place + 1) * RECORD_BYTES) as usize;
                let found = data.get(range.clone());
                let as_told = written.is_some_and(|seed| found == Some(&contents(*place, seed)[..]));
                if !as_told && under_way.is_none() {
                    return Err(format!("place {place} (bytes {range:?} of {}) is not as written", data.len()));
                }
            }
            let last = places.iter().rev().find_map(|(place, (written, _))| written.map(|_| place));
            let expected = last.map_or(0, |place| (place + 1) * RECORD_BYTES);
            let size = told("stat", actor.stat(FILE).await)?.size;
            let dead = places.values().any(|(_, under_way)| under_way.is_some());
            if size != data.len() as u64 || size < expected || (size > expected && !dead) {
                return Err(format!("size {size}, {} bytes read, {expected} written", data.len()));
            }
            Ok(())
        })
    }
}
