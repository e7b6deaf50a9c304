//! Whether syncs report losses: a successful sync guarantees everything acknowledged before it. If
//! some of that was lost in a power loss of a server, the first sync afterwards must fail, once.

use types::{FsError, FsResult};

/// What is known of a loss.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    /// Acknowledged changes are gone from the MDT.
    pub at_mdt: bool,
    /// Acknowledged changes are gone from an OST.
    pub at_ost: bool,
    /// Something may be gone, even if it does not show (a hole over a hole).
    pub perhaps: bool,
}

impl Lost {
    /// Whether a sync would have had to vouch for what is gone.
    pub fn certainly(self) -> bool {
        self.at_mdt || self.at_ost
    }
}

/// What the next sync may and must say. The default is that of a time without losses.
#[derive(Debug, Default)]
pub struct Alarm {
    /// What was lost, and no sync has told yet.
    owed: Lost,
    /// A sync may tell of a loss.
    allowed: bool,
    /// A sync failed while the power was gone.
    told_early: bool,
}

impl Alarm {
    /// For a client that was not there when something was lost, but may learn of it.
    pub fn allowed(allowed: bool) -> Self {
        Self { allowed, ..Self::default() }
    }

    /// Power was lost, and with it this.
    pub fn lost(&mut self, lost: Lost) {
        if !std::mem::take(&mut self.told_early) {
            self.owed.at_mdt |= lost.at_mdt;
            self.owed.at_ost |= lost.at_ost;
        }
        self.allowed |= lost.certainly() || lost.perhaps;
    }

    /// Whether a sync may still tell of a loss: a close now leaves that to the next open.
    pub fn is_pending(&self) -> bool {
        self.allowed || self.owed.certainly()
    }

    /// Whether the error of a synchronous write tells of a loss; if so it is the MDT's, which the
    /// write asks to commit.
    pub fn judge_write(&mut self, error: &FsError) -> bool {
        let told = self.allowed && is_loss(error);
        if told {
            self.owed.at_mdt = false;
        }
        told
    }

    /// Judges a sync; true if it vouches for what was acknowledged before. `dark`: the power is
    /// gone since.
    pub fn judge(&mut self, outcome: &FsResult<()>, dark: bool) -> Result<bool, String> {
        let (owed, allowed) = (std::mem::take(&mut self.owed), std::mem::take(&mut self.allowed));
        match outcome {
            Ok(()) if owed.certainly() => {
                Err("acknowledged changes were lost, and the sync after that succeeds".to_owned())
            }
            Ok(()) => Ok(true),
            Err(error) if dark => {
                self.told_early = is_loss(error);
                Ok(false)
            }
            Err(error) if allowed && is_loss(error) => Ok(false),
            Err(error) => Err(format!("sync: {error}")),
        }
    }
}

fn is_loss(error: &FsError) -> bool {
    matches!(error, FsError::Device { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: Lost = Lost { at_mdt: false, at_ost: true, perhaps: false };
    const NAMES: Lost = Lost { at_mdt: true, at_ost: false, perhaps: false };
    const PERHAPS: Lost = Lost { at_mdt: false, at_ost: false, perhaps: true };

    fn failed() -> FsResult<()> {
        Err(FsError::Device { target: "t".to_owned(), detail: "lost".to_owned() })
    }

    #[test]
    fn a_loss_must_be_told_once() {
        let mut alarm = Alarm::default();
        assert!(!alarm.is_pending() && alarm.judge(&failed(), false).is_err(), "nothing was lost");
        alarm.lost(DATA);
        assert!(alarm.is_pending());
        assert!(alarm.judge(&Ok(()), false).is_err());
        alarm.lost(DATA);
        assert_eq!(alarm.judge(&failed(), false), Ok(false));
        assert_eq!(alarm.judge(&Ok(()), false), Ok(true));
        assert!(alarm.judge(&failed(), false).is_err(), "told twice");
    }

    #[test]
    fn what_may_have_been_lost_may_be_told() {
        let mut alarm = Alarm::default();
        alarm.lost(PERHAPS);
        assert_eq!(alarm.judge(&failed(), false), Ok(false));
        alarm.lost(PERHAPS);
        assert_eq!(alarm.judge(&Ok(()), false), Ok(true));
    }

    #[test]
    fn a_sync_that_fails_in_the_dark_has_told() {
        let mut alarm = Alarm::default();
        assert_eq!(alarm.judge(&failed(), true), Ok(false));
        alarm.lost(DATA);
        assert_eq!(alarm.judge(&Ok(()), false), Ok(true));
    }

    #[test]
    fn a_synchronous_write_tells_of_the_mdts_losses_only() {
        let error = failed().unwrap_err();
        for (lost, synced) in [(NAMES, Ok(true)), (DATA, Err(()))] {
            let mut alarm = Alarm::default();
            assert!(!alarm.judge_write(&error));
            alarm.lost(lost);
            assert!(alarm.judge_write(&error));
            assert_eq!(alarm.judge(&Ok(()), false).map_err(drop), synced);
        }
    }
}
