//! Runs many operations on a device, a bounded number of them at a time.

use std::{pin::Pin, task::Poll};

/// Completes all futures, up to `count_max` at a time, begun in their order. Ends with the first
/// error; what is in progress then is dropped.
pub(super) async fn overlap<F, E>(futures: impl IntoIterator<Item = F>, count_max: usize) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    assert!(count_max > 0, "something must run at a time");
    let mut waiting = futures.into_iter();
    let mut running: Vec<Pin<Box<F>>> = Vec::with_capacity(count_max);
    std::future::poll_fn(|context| {
        loop {
            running.extend(waiting.by_ref().take(count_max - running.len()).map(Box::pin));
            let mut failure = None;
            let before = running.len();
            running.retain_mut(|future| match future.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(result) => {
                    failure = failure.take().or(result.err());
                    false
                }
            });
            if let Some(error) = failure {
                return Poll::Ready(Err(error));
            }
            if running.is_empty() && before < count_max {
                return Poll::Ready(Ok(()));
            }
            // Those that take the places of the completed ones have not been polled yet.
            if running.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, task::Context, task::Waker};

    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn a_bounded_number_runs_at_a_time_and_all_are_completed() {
        let (begun, ended, gate) = (Cell::new(0), Cell::new(0), Semaphore::new(0));
        let operation = |_| async {
            begun.set(begun.get() + 1);
            gate.acquire().await.unwrap().forget();
            ended.set(ended.get() + 1);
            Ok::<(), ()>(())
        };
        let mut all = std::pin::pin!(overlap((0..10).map(operation), 4));
        let mut context = Context::from_waker(Waker::noop());
        for done in 0..10 {
            assert!(all.as_mut().poll(&mut context).is_pending());
            assert_eq!((begun.get(), ended.get()), ((done + 4).min(10), done));
            gate.add_permits(1);
        }
        assert_eq!(all.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    }

    #[tokio::test]
    async fn the_first_error_ends_it() {
        let numbers = |count| (0..count).map(|number| async move { if number == 5 { Err(number) } else { Ok(()) } });
        assert_eq!(overlap(numbers(9), 2).await, Err(5));
        assert_eq!(overlap(numbers(5), 2).await, Ok(()));
        assert_eq!(overlap(numbers(0), 2).await, Ok(()));
    }
}
