//! Work on several threads, whose results come in order.

use std::{
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// `work` of every item, on so many threads (`None`: one for each core), in the order of the items.
pub(super) fn in_parallel<I: Sync, T: Send>(
    items: &[I],
    threads: Option<NonZero<usize>>,
    work: impl Fn(&I) -> T + Sync,
) -> Vec<T> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                while let Some((index, item)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|index| items.get(index).map(|item| (index, item)))
                {
                    let result = work(item);
                    results.lock().expect("no panic while locked").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no panic while locked");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        let doubled: Vec<u32> = items.iter().map(|item| item * 2).collect();
        for threads in [None, NonZero::new(1), NonZero::new(7)] {
            assert_eq!(in_parallel(&items, threads, |item| item * 2), doubled);
        }
    }
}
