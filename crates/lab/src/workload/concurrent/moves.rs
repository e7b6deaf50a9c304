//! Clients write their own records of a shared file, closing it each time, while any of them gives
//! it other layouts: acknowledged data are there, whatever layout the file has.

use rt::{BoxFuture, Entropy};

use super::{
    Scenario, Verdict,
    actor::{Actor, told},
    records::Records,
};

const FILE: &str = "moving";
/// Not a multiple of anything: some records span two stripes, or two components.
const RECORD_BYTES: u64 = 23_003;
/// Records of the file.
const PLACES: u64 = 16;
/// Clients at most: each has places of its own.
const CLIENTS: u64 = 4;

/// See the module documentation.
pub struct Moves {
    records: Records,
}

impl Default for Moves {
    fn default() -> Self {
        Self { records: Records::new(RECORD_BYTES) }
    }
}

impl Scenario for Moves {
    fn name(&self) -> &'static str {
        "moves"
    }

    fn prepare<'a>(&'a self, actor: &'a Actor) -> BoxFuture<'a, Verdict> {
        Box::pin(actor.make_file(FILE))
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
                self.records.begin(place, seed);
                let contents = self.records.contents(place, seed);
                told("write", actor.write(&file, self.records.offset(place), contents).await)?;
                self.records.end(place, seed);
                actor.note(format_args!("wrote place {place}"));
                told("close", actor.close(file).await)?;
            }
            Ok(())
        })
    }

    fn judge<'a>(&'a self, actor: &'a Actor, dead: Option<u16>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            // Once more without faults: nothing prevents it, unless a dead client's open has not
            // ended yet.
            if !told("migrate", actor.migrate(FILE, 2).await)? && dead.is_none() {
                return Err("cannot migrate a file that nobody has open".to_owned());
            }
            let data = told("read", actor.contents(FILE).await)?;
            self.records.judge(&data)?;
            let size = told("stat", actor.stat(FILE).await)?.size;
            if size != data.len() as u64 {
                return Err(format!("size {size}, {} bytes read", data.len()));
            }
            Ok(())
        })
    }
}
