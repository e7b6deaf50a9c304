//! Changes of data that arrived in time and are still under way after their deadlines, on a device that hangs, say, or because the
//! process was stopped: their callers may have given up and closed the file.
//!
//! Who asks for the sizes of objects then may tell them to the MDT as final. So such a question is answered only after all
//! changes that are overdue when it arrives have ended. Nothing waits otherwise: a change whose deadline is to come has a
//! caller, whose file is not at rest.
//!
//! No deadlock: what is overdue arrived before the question. It holds its service thread, or gets it before the question does if they
//! are of one service (first come, first served), and it waits for no question.
//!
//! Life cycle: a change is noted from its arrival until its handler has answered.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rt::Instant;
use tokio::sync::Notify;

use crate::message::{MdtRequest, OstRequest, Request};

/// Changes of data under way that have deadlines, of one target.
#[derive(Default)]
pub(super) struct Overdue {
    /// By deadline; the numbers tell them apart.
    changes: Mutex<BTreeSet<(Instant, u64)>>,
    number_next: AtomicU64,
    ended: Notify,
}

/// A change under way.
pub(super) struct Change<'a> {
    overdue: &'a Overdue,
    key: (Instant, u64),
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.overdue.changes.lock().remove(&self.key);
        self.overdue.ended.notify_waiters();
    }
}

impl Overdue {
    /// Notes a request, if it changes data and has a deadline.
    pub(super) fn note(&self, request: &Request, deadline: Option<Instant>) -> Option<Change<'_>> {
        let (Request::Ost(change) | Request::Mdt(MdtRequest::ChangeData(change))) = request else { return None };
        let deadline = deadline.filter(|_| change.changes_object())?;
        let key = (deadline, self.number_next.fetch_add(1, Ordering::Relaxed));
        self.changes.lock().insert(key);
        Some(Change { overdue: self, key })
    }

    /// Waits for what is overdue at `now`, if the request asks for sizes.
    pub(super) async fn wait(&self, request: &Request, now: Instant) {
        let (Request::Ost(question) | Request::Mdt(MdtRequest::ReadData(question))) = request else { return };
        if !matches!(question, OstRequest::Glimpse(_)) {
            return;
        }
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.changes.lock().first().is_none_or(|(deadline, _)| *deadline >= now) {
                return;
            }
            ended.await;
        }
    }
}
