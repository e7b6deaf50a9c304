//! What frames cost in processor time, stated for the lab ([`rt::Cpu`]).
//!
//! The data of a frame are received while they are sent: the frame leaves when all but its data has
//! been paid for, and both ends work on the data at the same time.

use std::io;

use rt::{Cpu, CpuKind, Frame, Sender};

/// A frame comes in.
pub(crate) async fn spend_on_frame_in(cpu: &Cpu, frame: &Frame) {
    let bytes = frame.bulk.len() as u64;
    cpu.spend(CpuKind::FrameIn, bytes).await;
    if bytes > 0 {
        cpu.spend(CpuKind::FrameData, bytes).await;
    }
}

/// Sends a frame.
pub(crate) async fn send(cpu: &Cpu, sender: &dyn Sender, frame: Frame) -> io::Result<()> {
    let bytes = frame.bulk.len() as u64;
    if !cpu.is_modelled() {
        return sender.send(frame).await;
    }
    cpu.spend(CpuKind::FrameOut, 0).await;
    if bytes == 0 {
        return sender.send(frame).await;
    }
    tokio::join!(sender.send(frame), cpu.spend(CpuKind::FrameData, bytes)).0
}
