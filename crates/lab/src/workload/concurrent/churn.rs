//! Files come and go: linked and unlinked while other clients use them, and used after they were
//! unlinked. At the end no file is left, and (as the checkers verify) no object either.

use rt::{BoxFuture, Entropy};
use types::{FsError, FsResult};

use super::{
    Scenario, Verdict,
    actor::{Actor, READ_WRITE, told},
};
use crate::reference::pattern;

/// Shared names: few, so that clients meet.
const NAMES: u64 = 3;
const BYTES_MAX: u64 = 150_000;

/// Keeps no evidence: what is left is enough.
pub struct Churn;

/// Errors that other clients' doings explain.
fn tolerate(what: &str, result: FsResult<()>) -> Verdict {
    match result {
        Ok(()) | Err(FsError::NotFound | FsError::Exists) => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

impl Churn {
    /// An unlinked file keeps its data as long as it is open.
    async fn use_unlinked(actor: &Actor, name: &str) -> Verdict {
        let file = told("create", actor.create(name, READ_WRITE).await)?;
        told("unlink", actor.unlink(name).await)?;
        let bytes = actor.random.below(BYTES_MAX) as usize;
        let data = pattern(actor.client as u8, 0, bytes);
        told("write to an unlinked file", actor.write(&file, 0, data.clone()).await)?;
        told("sync of an unlinked file", actor.sync(&file).await)?;
        let read = told("read of an unlinked file", actor.read(&file, 0, bytes + 1).await)?;
        if read != data {
            return Err(format!("an unlinked file of {bytes} bytes reads as {} others", read.len()));
        }
        told("close of an unlinked file", actor.close(file).await)
    }

    async fn use_shared(actor: &Actor, name: &str, other: &str) -> Verdict {
        match actor.random.below(4) {
            0 => match actor.create(name, READ_WRITE).await {
                Ok(file) => {
                    let written = actor.write(&file, actor.random.below(BYTES_MAX), vec![1; 5000]).await;
                    told("write to a shared file", written)?;
                    told("close", actor.close(file).await)
                }
                // Somebody unlinked it between look-up and creation of the reply's inode.
                Err(FsError::NotFound) => Ok(()),
                Err(error) => Err(format!("create of a shared file: {error}")),
            },
            1 => tolerate("unlink of a shared file", actor.unlink(name).await),
            2 => tolerate("link of a shared file", actor.link(name, other).await),
            _ => tolerate("rename of a shared file", actor.rename(name, other).await),
        }
    }
}

impl Scenario for Churn {
    fn name(&self) -> &'static str {
        "churn"
    }

    fn prepare<'a>(&'a self, _actor: &'a Actor) -> BoxFuture<'a, Verdict> {
        Box::pin(async { Ok(()) })
    }

    fn play<'a>(&'a self, actor: &'a Actor, rounds: u64) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            for round in 0..rounds {
                if round % 3 == 0 {
                    Self::use_unlinked(actor, &format!("own{}", actor.client)).await?;
                } else {
                    let name = || format!("shared{}", actor.random.below(NAMES));
                    let (name, other) = (name(), name());
                    Self::use_shared(actor, &name, &other).await?;
                }
                actor.note(format_args!("round {round}"));
            }
            Ok(())
        })
    }

    fn judge<'a>(&'a self, actor: &'a Actor, _dead: Option<u16>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            for name in told("list", actor.names("").await)? {
                told(&format!("unlink of {name}"), actor.unlink(&name).await)?;
            }
            let left = told("list", actor.names("").await)?;
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?} are left after all was removed")) }
        })
    }
}
