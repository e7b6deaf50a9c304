//! Counters in files, each guarded by a lock: no increment is lost, so the lock excludes and data
//! are coherent under it.

use parking_lot::Mutex;
use rpc::message::mdt::LockFamily;
use rt::BoxFuture;

use super::{
    Scenario, Verdict,
    actor::{Actor, CREATE_NEW, told},
};

/// A file for each family of locks.
const FILES: [(&str, LockFamily); 2] = [("fcntl", LockFamily::Posix), ("flock", LockFamily::Flock)];

/// Increments that were acknowledged.
#[derive(Default)]
pub struct Counter {
    counts: Mutex<[u64; 2]>,
}

fn number(data: &[u8]) -> Result<u64, String> {
    let bytes = data.try_into().map_err(|_| format!("a counter of {} bytes", data.len()))?;
    Ok(u64::from_le_bytes(bytes))
}

impl Scenario for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn prepare<'a>(&'a self, actor: &'a Actor) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            for (name, _) in FILES {
                let file = told("create", actor.create(name, CREATE_NEW).await)?;
                told("write", actor.write(&file, 0, vec![0; 8]).await)?;
                told("close", actor.close(file).await)?;
            }
            Ok(())
        })
    }

    fn play<'a>(&'a self, actor: &'a Actor, rounds: u64) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            for round in 0..rounds {
                let which = (round % 2) as usize;
                let (name, family) = FILES[which];
                let file = told("open", actor.open(name).await)?;
                told("lock", actor.lock(&file, family).await)?;
                let count = number(&told("read", actor.read(&file, 0, 9).await)?)?;
                told("write", actor.write(&file, 0, (count + 1).to_le_bytes().to_vec()).await)?;
                self.counts.lock()[which] += 1;
                actor.note(format_args!("{name} counts {}", count + 1));
                told("unlock", actor.unlock(&file, family).await)?;
                told("close", actor.close(file).await)?;
            }
            Ok(())
        })
    }

    fn judge<'a>(&'a self, actor: &'a Actor, dead: Option<u16>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let counts = *self.counts.lock();
            for ((name, _), count) in FILES.iter().zip(counts) {
                let found = number(&told("read", actor.contents(name).await)?)?;
                if !(count..=count + u64::from(dead.is_some())).contains(&found) {
                    return Err(format!("{name} counts {found} of {count} increments"));
                }
            }
            Ok(())
        })
    }
}
