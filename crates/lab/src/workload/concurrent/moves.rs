//! Clients write their own records of a shared file, closing it each time, while any of them gives it other layouts: what was
//! acknowledged is in whatever layout the file has.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rt::{BoxFuture, Entropy};

use super::{
    Scenario, Verdict,
    actor::{Actor, CREATE_NEW, told},
};
use crate::reference::pattern;

const FILE: &str = "moving";
/// Not a multiple of anything: some records lie in two stripes, or in two components.
const RECORD_BYTES: u64 = 23_003;
/// Records of the file.
const PLACES: u64 = 16;
/// Clients at most: each has places of its own.
const CLIENTS: u64 = 4;

/// What may lie at a place: the last value that was acknowledged, and one whose fate is open.
type Place = (Option<u8>, Option<u8>);

/// Seeds of the patterns at each place.
#[derive(Default)]
pub struct Moves {
    places: Mutex<BTreeMap<u64, Place>>,
}

fn contents(place: u64, seed: u8) -> Vec<u8> {
    pattern(seed, place * RECORD_BYTES, RECORD_BYTES as usize)
}

impl Scenario for Moves {
    fn name(&self) -> &'static str {
        "moves"
    }

    fn prepare<'a>(&'a self, actor: &'a Actor) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let file = told("create", actor.create(FILE, CREATE_NEW).await)?;
            told("close", actor.close(file).await)
        })
    }

    fn play<'a>(&'a self, actor: &'a Actor, rounds: u64) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            for _ in 0..rounds {
                if actor.random.happens(300_000) {
                    let layout = actor.random.below(256) as u8;
                    let moved = told("migrate", actor.migrate(FILE, layout).await)?;
                    actor.note(format_args!("{} to layout {layout}", if moved { "moved" } else { "did not move" }));
                }
                let place = actor.random.below(PLACES / CLIENTS) * CLIENTS + u64::from(actor.client) % CLIENTS;
                let seed = actor.random.below(256) as u8;
                let file = told("open", actor.open(FILE).await)?;
                self.places.lock().entry(place).or_default().1 = Some(seed);
                told("write", actor.write(&file, place * RECORD_BYTES, contents(place, seed)).await)?;
                self.places.lock().insert(place, (Some(seed), None));
                actor.note(format_args!("wrote place {place}"));
                told("close", actor.close(file).await)?;
            }
            Ok(())
        })
    }

    fn judge<'a>(&'a self, actor: &'a Actor, dead: Option<u16>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            // Once more in peace: nobody is in the way, unless a dead client's open has not ended yet.
            if !told("migrate", actor.migrate(FILE, 2).await)? && dead.is_none() {
                return Err("a file that nobody has open does not move".to_owned());
            }
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
            let size = told("stat", actor.stat(FILE).await)?.size;
            if size != data.len() as u64 {
                return Err(format!("size {size}, {} bytes read", data.len()));
            }
            Ok(())
        })
    }
}
