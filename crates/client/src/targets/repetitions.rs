//! When requests that an MDT answered `Waiting` are sent again: when it calls back about their
//! inode. There is no polling.
//!
//! A task listens from before its request is sent, because the callback may overtake the answer.
//! Until the answer is there, any callback for the inode counts; so a request may be sent again
//! once more than necessary, and never too rarely. After a restart of the MDT, and when the session
//! ends, all ask again: the MDT has forgotten that they wait.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use types::InodeNumber;

#[derive(Debug)]
struct Listener {
    /// `None`: what it waits for is not known.
    inode: Option<InodeNumber>,
    heard: Arc<Notify>,
}

/// Those that listen to one MDT.
#[derive(Debug, Default)]
pub(crate) struct Repetitions {
    listeners: Arc<Mutex<BTreeMap<u64, Listener>>>,
    last: AtomicU64,
}

/// A task that listens, until this is dropped.
pub(crate) struct Listening {
    listeners: Arc<Mutex<BTreeMap<u64, Listener>>>,
    number: u64,
    heard: Arc<Notify>,
}

impl Repetitions {
    /// A request about this inode is about to be sent; `None`: about one that is not known.
    pub fn listen(&self, inode: Option<InodeNumber>) -> Listening {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let heard = Arc::new(Notify::new());
        let former = self.listeners.lock().insert(number, Listener { inode, heard: heard.clone() });
        assert!(former.is_none(), "each listener has a number of its own");
        Listening { listeners: self.listeners.clone(), number, heard }
    }

    /// The MDT calls back for an inode; `None`: for all of them.
    pub fn ask_again(&self, inode: Option<InodeNumber>) {
        let listeners = self.listeners.lock();
        let concerned = listeners
            .values()
            .filter(|listener| inode.is_none() || listener.inode.is_none() || listener.inode == inode);
        concerned.for_each(|listener| listener.heard.notify_one());
    }
}

impl Listening {
    /// Waits for a callback; for none if one came since this began to listen.
    pub async fn heard(&self) {
        self.heard.notified().await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        assert!(self.listeners.lock().remove(&self.number).is_some(), "a listener is in the table until it is dropped");
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Context};

    use super::*;

    #[tokio::test]
    async fn what_came_before_the_answer_counts() {
        let repetitions = Repetitions::default();
        let (file, other) = (InodeNumber(1), InodeNumber(2));
        let (of_file, of_other, of_any) =
            (repetitions.listen(Some(file)), repetitions.listen(Some(other)), repetitions.listen(None));
        repetitions.ask_again(Some(file));
        of_file.heard().await;
        of_any.heard().await;
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(pin!(of_other.heard()).poll(&mut context).is_pending());
        assert!(pin!(of_file.heard()).poll(&mut context).is_pending(), "a callback counts once");
        repetitions.ask_again(None);
        of_other.heard().await;
        of_file.heard().await;
        drop((of_file, of_other, of_any));
        assert!(repetitions.listeners.lock().is_empty());
    }
}
