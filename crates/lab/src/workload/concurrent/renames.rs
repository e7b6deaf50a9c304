//! Renames back and forth between two directories: of files of one client each, which always
//! succeed, and of a token that all clients push around.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rt::BoxFuture;
use types::FsError;

use super::{
    Scenario, Verdict,
    actor::{Actor, CREATE_NEW, told},
};

const SIDES: [&str; 2] = ["left", "right"];

/// What clients were told.
#[derive(Default)]
pub struct Renames {
    /// Successful moves of the token to the right and to the left.
    pushed: Mutex<[u64; 2]>,
    /// Side on which each client's file is, and whether a move is in progress.
    own: Mutex<BTreeMap<u16, (usize, bool)>>,
}

fn own_file(client: u16, side: usize) -> String {
    format!("{}/own{client}", SIDES[side])
}

impl Renames {
    async fn push_token(&self, actor: &Actor, from: usize) -> Verdict {
        let (old, new) = (format!("{}/token", SIDES[from]), format!("{}/token", SIDES[1 - from]));
        match actor.rename(&old, &new).await {
            Ok(()) => {
                self.pushed.lock()[from] += 1;
                actor.note(format_args!("pushed the token to the {}", SIDES[1 - from]));
                Ok(())
            }
            Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(format!("rename of the token: {error}")),
        }
    }
}

impl Scenario for Renames {
    fn name(&self) -> &'static str {
        "renames"
    }

    fn prepare<'a>(&'a self, actor: &'a Actor) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            for side in SIDES {
                told("mkdir", actor.make_subdirectory(side).await)?;
            }
            let token = told("create", actor.create("left/token", CREATE_NEW).await)?;
            told("close", actor.close(token).await)
        })
    }

    fn play<'a>(&'a self, actor: &'a Actor, rounds: u64) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let file = told("create", actor.create(&own_file(actor.client, 0), CREATE_NEW).await)?;
            told("close", actor.close(file).await)?;
            self.own.lock().insert(actor.client, (0, false));
            for round in 0..rounds as usize {
                let side = round % 2;
                self.own.lock().insert(actor.client, (side, true));
                let (old, new) = (own_file(actor.client, side), own_file(actor.client, 1 - side));
                told("rename of an own file", actor.rename(&old, &new).await)?;
                self.own.lock().insert(actor.client, (1 - side, false));
                self.push_token(actor, side).await?;
            }
            Ok(())
        })
    }

    fn judge<'a>(&'a self, actor: &'a Actor, dead: Option<u16>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let mut names = Vec::new();
            for side in SIDES {
                names.push(told("list", actor.names(side).await)?);
            }
            let (own, [right, left]) = (self.own.lock().clone(), *self.pushed.lock());
            for (client, (side, moving)) in own {
                let there = [0, 1].map(|side| names[side].contains(&format!("own{client}")));
                let as_told = there[side] && !there[1 - side];
                let moved = moving && dead == Some(client) && there[1 - side] && !there[side];
                if !as_told && !moved {
                    return Err(format!("own file of client {client}: should be on the {}: {there:?}", SIDES[side]));
                }
            }
            let there = [0, 1].map(|side| names[side].contains(&"token".to_owned()));
            if there[0] == there[1] {
                return Err(format!("the token is on the left: {}, on the right: {}", there[0], there[1]));
            }
            let balance = right as i64 - left as i64;
            let expected = i64::from(there[1]);
            // A client that died may have pushed it once without hearing of it.
            if (balance - expected).abs() > i64::from(dead.is_some()) {
                return Err(format!("the token was pushed {right} times right and {left} left, and is at {expected}"));
            }
            Ok(())
        })
    }
}
