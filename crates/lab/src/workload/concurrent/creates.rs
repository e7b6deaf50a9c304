//! All clients try to create the same names exclusively: each name has exactly one winner, which
//! knows that it won.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rt::BoxFuture;
use types::FsError;

use super::{
    Scenario, Verdict,
    actor::{Actor, CREATE_NEW, told},
};

/// The client that was told that it created a name.
#[derive(Default)]
pub struct Creates {
    winners: Mutex<BTreeMap<u64, Vec<u16>>>,
}

impl Scenario for Creates {
    fn name(&self) -> &'static str {
        "creates"
    }

    fn prepare<'a>(&'a self, _actor: &'a Actor) -> BoxFuture<'a, Verdict> {
        Box::pin(async { Ok(()) })
    }

    fn play<'a>(&'a self, actor: &'a Actor, rounds: u64) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            for number in 0..rounds {
                match actor.create(&format!("name{number}"), CREATE_NEW).await {
                    Ok(file) => {
                        self.winners.lock().entry(number).or_default().push(actor.client);
                        actor.note(format_args!("made name {number}"));
                        told("write", actor.write(&file, 0, vec![actor.client as u8 + 1; 100]).await)?;
                        told("close", actor.close(file).await)?;
                    }
                    Err(FsError::Exists) => {}
                    Err(error) => return Err(format!("create of name {number}: {error}")),
                }
            }
            Ok(())
        })
    }

    fn judge<'a>(&'a self, actor: &'a Actor, dead: Option<u16>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let names = told("list", actor.names("").await)?;
            let winners = self.winners.lock().clone();
            for (number, winners) in &winners {
                let [winner] = winners[..] else {
                    return Err(format!("clients {winners:?} all made name {number}"));
                };
                let data = told("read", actor.contents(&format!("name{number}")).await)?;
                let expected = vec![winner as u8 + 1; 100];
                if data != expected && !(dead == Some(winner) && data.is_empty()) {
                    return Err(format!("name {number} does not hold what its maker, client {winner}, wrote"));
                }
            }
            // A client that died may have made one name without hearing of it.
            let unknown = names.len().saturating_sub(winners.len());
            if names.len() < winners.len() || unknown > usize::from(dead.is_some()) {
                return Err(format!("{} names, {} made", names.len(), winners.len()));
            }
            Ok(())
        })
    }
}
