//! Clients write their own records of a shared file, interleaved, and read them back at once: no
//! write spoils a neighbour's.

use rt::{BoxFuture, Entropy};

use super::{
    Scenario, Verdict,
    actor::{Actor, told},
    records::Records,
};

const FILE: &str = "shared";
/// Not a multiple of anything: records share blocks, and some span two stripes.
const RECORD_BYTES: u64 = 9_001;
/// Clients the file has room for.
const CLIENTS: u64 = 4;

/// See the module documentation.
pub struct Writes {
    records: Records,
}

impl Default for Writes {
    fn default() -> Self {
        Self { records: Records::new(RECORD_BYTES) }
    }
}

impl Scenario for Writes {
    fn name(&self) -> &'static str {
        "writes"
    }

    fn prepare<'a>(&'a self, actor: &'a Actor) -> BoxFuture<'a, Verdict> {
        Box::pin(actor.make_file(FILE))
    }

    fn play<'a>(&'a self, actor: &'a Actor, rounds: u64) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let file = told("open", actor.open(FILE).await)?;
            for _ in 0..rounds {
                let place = actor.random.below(1 + rounds / 2) * CLIENTS + u64::from(actor.client);
                let seed = actor.random.below(256) as u8;
                self.records.begin(place, seed);
                let contents = self.records.contents(place, seed);
                told("write", actor.write(&file, self.records.offset(place), contents).await)?;
                self.records.end(place, seed);
                actor.note(format_args!("wrote place {place}"));
                let read = told("read", actor.read(&file, self.records.offset(place), self.records.bytes()).await)?;
                if read != self.records.contents(place, seed) {
                    return Err(format!("place {place} does not read as written"));
                }
            }
            told("close", actor.close(file).await)
        })
    }

    fn judge<'a>(&'a self, actor: &'a Actor, _dead: Option<u16>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let data = told("read", actor.contents(FILE).await)?;
            self.records.judge(&data)?;
            let expected = self.records.end_of_last();
            let size = told("stat", actor.stat(FILE).await)?.size;
            let dead = self.records.is_any_under_way();
            if size != data.len() as u64 || size < expected || (size > expected && !dead) {
                return Err(format!("size {size}, {} bytes read, {expected} written", data.len()));
            }
            Ok(())
        })
    }
}
