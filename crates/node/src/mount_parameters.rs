//! Parameters of this process's mount: how requests come from the kernel, and what the kernel
//! caches.
//!
//! They are registered with those of the client, before there is a mount; until then they are
//! empty.

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicU64, Ordering},
};

use client::FileSystem;
use fuse::{KernelCache, Mount, session::Transport};
use rt::parameters::{Parameter, ParameterError, ParameterTree};

/// What is shown of the mount.
#[derive(Clone, Default)]
pub struct ShownMount(Arc<OnceLock<Shown>>);

struct Shown {
    transport: Transport,
    ring_entries_refused: Arc<AtomicU64>,
    /// Weak: it keeps the connection to the kernel open.
    kernel_cache: Weak<KernelCache>,
}

impl ShownMount {
    /// The process has this mount from now on.
    pub fn show(&self, mount: &Mount) {
        let shown = Shown {
            transport: mount.transport(),
            ring_entries_refused: mount.ring_entries_refused().clone(),
            kernel_cache: mount.kernel_cache().map(Arc::downgrade).unwrap_or_default(),
        };
        assert!(self.0.set(shown).is_ok(), "a process has one mount");
    }

    /// Registers the parameters of the mount of `client`.
    pub fn register(&self, tree: &ParameterTree, client: &FileSystem) -> Result<(), ParameterError> {
        let register = |name: &str, doc: &'static str, text: fn(&Shown) -> String| {
            let mount = self.0.clone();
            let get = move || mount.get().map(text).unwrap_or_default();
            tree.register(name, Parameter::read_only(doc, get))
        };
        let doc = "how requests come from the kernel: io_uring or dev_fuse";
        register("fuse.transport", doc, |shown| shown.transport.to_string())?;
        let doc = "io_uring entries that the kernel returned without a request; the first one is logged";
        let refused = |shown: &Shown| shown.ring_entries_refused.load(Ordering::Relaxed).to_string();
        register("fuse.ring_entries_refused", doc, refused)?;
        let doc =
            "kernel cache of this mount: replies that made entries valid, and notifications that made them invalid";
        register(&format!("llite.{}.kernel_cache", client.name()), doc, kernel_cache)
    }
}

fn kernel_cache(shown: &Shown) -> String {
    let Some(cache) = shown.kernel_cache.upgrade() else { return String::new() };
    let (inodes, names) = cache.counts();
    let leaving = cache.leaving().len();
    let known = [("inodes_known", inodes as u64), ("names_known", names as u64), ("names_leaving", leaving as u64)];
    let lines = known.into_iter().chain(cache.statistics().all());
    lines.map(|(name, count)| format!("{name:<24} {count} samples\n")).collect()
}
