//! All clients try to create the same names exclusively: each name has exactly one winner, which
//! knows that it won. Every second file is made and read by compounds.

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

/// Whether this name is made, and read, by one request.
fn is_at_once(number: u64) -> bool {
    number % 2 == 1
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
                let (name, data) = (format!("name{number}"), vec![actor.client as u8 + 1; 100]);
                let won = || {
                    self.winners.lock().entry(number).or_default().push(actor.client);
                    actor.note(format_args!("made name {number}"));
                };
                if is_at_once(number) {
                    match actor.create_at_once(&name, data).await {
                        Ok(()) => won(),
                        Err(FsError::Exists) => {}
                        Err(error) => return Err(format!("creation of name {number} with data: {error}")),
                    }
                    continue;
                }
                match actor.create(&name, CREATE_NEW).await {
                    Ok(file) => {
                        won();
                        told("write", actor.write(&file, 0, data).await)?;
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
                let name = format!("name{number}");
                let data = match is_at_once(*number) {
                    true => told("read at once", actor.contents_at_once(&name).await)?,
                    false => told("read", actor.contents(&name).await)?,
                };
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
