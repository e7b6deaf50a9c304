//! Waiting for several futures at once, in one task.
//!
//! A future is polled only after it was woken itself. So waiting for the objects of a file with
//! thousands of stripes costs one poll per reply, not one per reply and stripe. Downside: one
//! allocation per future.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use parking_lot::Mutex;

/// State shared by the wakers of one join: which futures were woken, and which task to wake.
#[derive(Default)]
struct Woken {
    indices: Vec<usize>,
    task: Option<Waker>,
}

struct ChildWaker {
    index: usize,
    woken: Arc<Mutex<Woken>>,
}

impl Wake for ChildWaker {
    fn wake(self: Arc<Self>) {
        let task = {
            let mut woken = self.woken.lock();
            woken.indices.push(self.index);
            woken.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

enum Child<F: Future> {
    Pending(Pin<Box<F>>, Waker),
    Done(F::Output),
}

/// The outputs of all futures, in their order. All make progress at once, in this task.
pub(crate) async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    if futures.len() <= 1 {
        let mut outputs = Vec::with_capacity(1);
        for future in futures {
            outputs.push(future.await);
        }
        return outputs;
    }
    let woken = Arc::new(Mutex::new(Woken { indices: (0..futures.len()).collect(), task: None }));
    let child = |(index, future)| {
        let waker = Waker::from(Arc::new(ChildWaker { index, woken: woken.clone() }));
        Child::Pending(Box::pin(future), waker)
    };
    let mut children: Vec<Child<F>> = futures.into_iter().enumerate().map(child).collect();
    let mut pending = children.len();
    std::future::poll_fn(|context| {
        // Wake-ups that arrive while the children are polled find the task's waker in place.
        let indices = {
            let mut woken = woken.lock();
            woken.task = Some(context.waker().clone());
            std::mem::take(&mut woken.indices)
        };
        for index in indices {
            if let Child::Pending(future, waker) = &mut children[index]
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker))
            {
                children[index] = Child::Done(output);
                assert!(pending > 0, "a future is done once");
                pending -= 1;
            }
        }
        if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let output = |child| match child {
        Child::Done(output) => output,
        Child::Pending(..) => unreachable!("the join is complete when no child is pending"),
    };
    children.into_iter().map(output).collect()
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn outputs_keep_their_order() {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..50).map(|_| oneshot::channel::<usize>()).unzip();
        let joined = tokio::spawn(join_all(receivers));
        tokio::task::yield_now().await;
        for (index, sender) in senders.into_iter().enumerate().rev() {
            sender.send(index).unwrap();
            if index % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let outputs: Vec<usize> = joined.await.unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(outputs, (0..50).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn none_one_and_ready_ones() {
        assert_eq!(join_all(Vec::<std::future::Ready<u8>>::new()).await, Vec::<u8>::new());
        assert_eq!(join_all(vec![std::future::ready(1)]).await, [1]);
        assert_eq!(join_all(vec![std::future::ready(1), std::future::ready(2)]).await, [1, 2]);
    }
}
