//! A task of this process that works in the background, and ends before its clients and targets.

use rt::Seams;
use tokio::sync::watch;

/// See the module documentation.
pub struct Worker {
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

impl Worker {
    /// Begins to work; `work` gets what tells it to end.
    pub fn start<W>(seams: &Seams, name: &'static str, work: impl FnOnce(watch::Receiver<bool>) -> W) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopping) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let work = work(stopping);
        seams.spawn.spawn(
            name,
            Box::pin(async move {
                work.await;
                end.send_replace(true);
            }),
        );
        Self { stop, ended }
    }

    /// Ends it.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        // It has ended as well if the task is gone.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }
}
