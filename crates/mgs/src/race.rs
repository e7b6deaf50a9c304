//! Runs two futures at once and returns the result of the first one.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// The output of `work`, or `None` if `stop` completes first.
pub async fn unless<T>(stop: impl Future, work: impl Future<Output = T>) -> Option<T> {
    let (mut stop, mut work) = (pin!(stop), pin!(work));
    poll_fn(|context| {
        if stop.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}
