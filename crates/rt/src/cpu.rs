//! Processor time: code states what it is about to cost.
//!
//! On real hosts the code itself takes the time, and [`Cpu::default`] ignores what is stated: one
//! comparison, and no suspension. In virtual time code takes no time, so a simulation may give a
//! process [`Processors`] that occupy one of its node's cores for as long as a table of costs says.
//!
//! Kinds are few and coarse, because each has to be measured. What is stated includes what belongs
//! to it: a request that comes in includes the system call, its share of an interrupt, the decoding
//! and the session's decision.
//!
//! Downside: what is not stated costs nothing: timers, background work, directory listings.

use std::{pin::Pin, sync::Arc};

/// Work of processors, as in `BoxFuture`, which the root of the crate has and this file must not
/// name: the root names this file.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What costs processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CpuKind {
    /// A frame comes in: received, decoded, passed on. All but its data, whose bytes are stated for
    /// [`CpuKind::CoreWakeUp`].
    FrameIn,
    /// A frame goes out: encoded and sent. All but its data.
    FrameOut,
    /// Data of a frame, at each end: they go out, or come in.
    FrameData,
    /// A core that had nothing to do wakes up for what came in: a frame, or bytes of its data,
    /// which come in pieces. No code states it, because no code knows whether its core works:
    /// modelled cores add it.
    CoreWakeUp,
    /// A request that had to wait for a service thread gets one.
    WakeUp,
    /// A request to the metadata that changes nothing: its operation.
    MetadataRead,
    /// A request that changes metadata: its operation.
    MetadataChange,
    /// A request that reads an object: all but checksums and copies. Bytes that are read.
    ObjectRead,
    /// A request that writes an object: all but checksums and copies. Bytes that are written.
    ObjectWrite,
    /// Any other request to an object storage target.
    ObjectOther,
    /// Bytes that are copied, such as into the page cache.
    Copy,
    /// Bytes whose checksum is computed.
    Checksum,
    /// A group of batches that is appended to a journal. Bytes of the group.
    JournalAppend,
}

impl CpuKind {
    /// All of them.
    pub const ALL: [CpuKind; 13] = [
        CpuKind::FrameIn,
        CpuKind::FrameOut,
        CpuKind::FrameData,
        CpuKind::CoreWakeUp,
        CpuKind::WakeUp,
        CpuKind::MetadataRead,
        CpuKind::MetadataChange,
        CpuKind::ObjectRead,
        CpuKind::ObjectWrite,
        CpuKind::ObjectOther,
        CpuKind::Copy,
        CpuKind::Checksum,
        CpuKind::JournalAppend,
    ];

    /// Its name in tables of costs.
    pub fn name(self) -> &'static str {
        match self {
            CpuKind::FrameIn => "frame_in",
            CpuKind::FrameOut => "frame_out",
            CpuKind::FrameData => "frame_data",
            CpuKind::CoreWakeUp => "core_wake_up",
            CpuKind::WakeUp => "wake_up",
            CpuKind::MetadataRead => "metadata_read",
            CpuKind::MetadataChange => "metadata_change",
            CpuKind::ObjectRead => "object_read",
            CpuKind::ObjectWrite => "object_write",
            CpuKind::ObjectOther => "object_other",
            CpuKind::Copy => "copy",
            CpuKind::Checksum => "checksum",
            CpuKind::JournalAppend => "journal_append",
        }
    }
}

/// The cores of a node, which take time.
pub trait Processors: Send + Sync {
    /// Completes when a core has worked for what this costs. Dropping the future ends the work.
    fn spend(&self, kind: CpuKind, bytes: u64) -> Work;
}

/// The seam for processor time. Cheap to clone.
#[derive(Clone, Default)]
pub struct Cpu(Option<Arc<dyn Processors>>);

impl Cpu {
    /// One whose costs take time on these cores.
    pub fn on(processors: Arc<dyn Processors>) -> Self {
        Self(Some(processors))
    }

    /// Whether costs take time.
    pub fn is_modelled(&self) -> bool {
        self.0.is_some()
    }

    /// Spends what this costs. Without a model it completes at its first poll.
    #[inline]
    pub async fn spend(&self, kind: CpuKind, bytes: u64) {
        if let Some(processors) = &self.0 {
            processors.spend(kind, bytes).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    struct Never;

    impl Processors for Never {
        fn spend(&self, _: CpuKind, _: u64) -> Work {
            Box::pin(std::future::pending())
        }
    }

    #[test]
    fn without_a_model_nothing_is_waited_for() {
        let context = &mut Context::from_waker(Waker::noop());
        let poll = |cpu: &Cpu| pin!(cpu.spend(CpuKind::Copy, 1 << 40)).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(poll(&Cpu::default()), Poll::Ready(()));
        let modelled = Cpu::on(Arc::new(Never));
        assert!(modelled.is_modelled() && !Cpu::default().is_modelled());
        assert!(pin!(modelled.spend(CpuKind::Copy, 1)).poll(context).is_pending());
    }

    #[test]
    fn every_kind_has_a_place_and_a_name_of_its_own() {
        let names: BTreeSet<&str> = CpuKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), CpuKind::ALL.len());
        for (number, kind) in CpuKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number, "tables of costs are indexed by it");
        }
    }
}
