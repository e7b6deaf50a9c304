//! What frames cost over TCP on this machine, without a file system: each comes back as it was.
//!
//! Once on one connection, where every frame finds the cores of its receiver idle, and once on
//! several connections at a time, where most do not: the difference is what it takes to wake a
//! core up. All threads of both ends count.

use std::{io, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use rt::{Address, Connection, Frame, FrameHeader, Listener, Sender, Spawn, real::Cores};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{
    super::workers::{self, own_cpu},
    MIB,
};
use crate::study::shape::least_disturbed;

/// Connections that are busy at a time.
const CONNECTIONS: usize = 4;
/// Bytes of a message without data, such as that of a stat.
const MESSAGE_BYTES: usize = 100;

/// Nanoseconds of processor time of a frame and its return.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    /// On one connection.
    pub alone: f64,
    /// On one of several busy ones.
    pub among: f64,
    /// On one connection, with 1 MiB of data each way.
    pub data_alone: f64,
    /// The same, on one of several busy ones.
    pub data_among: f64,
}

/// A connection, and what comes back.
struct Line {
    sender: Arc<dyn Sender>,
    returned: Mutex<UnboundedReceiver<Frame>>,
}

impl Frames {
    /// Measures with so many frames of each kind.
    pub fn measure(count: u32) -> io::Result<Self> {
        let (server, client) = (Cores::start_all()?, Cores::start_all()?);
        let measured = Self::between(&server, &client, count);
        client.shutdown();
        server.shutdown();
        measured
    }

    fn between(server: &Cores, client: &Cores, count: u32) -> io::Result<Self> {
        let (here, there) = (node::seams(client), node::seams(server));
        let listener = server.block_on(there.transport.listen(&Address::from("127.0.0.1:0")))?;
        let address = listener.address();
        there.spawn.spawn("listener", Box::pin(return_all(there.spawn.clone(), listener)));
        let lines = (0..CONNECTIONS).map(|number| {
            let Connection { sender, mut receiver, .. } = client.block_on(here.transport.connect(&address))?;
            let (arrived, returned) = unbounded_channel();
            let read = async move {
                while let Ok(Some(frame)) = receiver.receive().await {
                    if arrived.send(frame).is_err() {
                        return;
                    }
                }
            };
            here.spawn.spawn_on(number, "reader", Box::pin(read));
            Ok(Line { sender, returned: Mutex::new(returned) })
        });
        let lines = lines.collect::<io::Result<Vec<Line>>>()?;
        let of = |lines: &[Line], data_bytes: usize, count: u32| cost(client, lines, data_bytes, count);
        let (alone, among) = (of(&lines[..1], 0, count)?, of(&lines, 0, count)?);
        let count = count / 10;
        let (data_alone, data_among) = (of(&lines[..1], MIB, count)?, of(&lines, MIB, count)?);
        Ok(Self { alone, among, data_alone, data_among })
    }
}

/// Returns what comes in on all connections.
async fn return_all(spawn: Arc<dyn Spawn>, mut listener: Box<dyn Listener>) {
    while let Ok(Connection { sender, mut receiver, .. }) = listener.accept().await {
        let work = async move {
            while let Ok(Some(frame)) = receiver.receive().await {
                if sender.send(frame).await.is_err() {
                    return;
                }
            }
        };
        spawn.spawn_spread("return", Box::pin(work));
    }
}

/// Of one frame on these connections at once, each of which has one under way, in the
/// least disturbed parts.
fn cost(client: &Cores, lines: &[Line], data_bytes: usize, count: u32) -> io::Result<f64> {
    const PARTS: u32 = 10;
    let each = (count / PARTS / lines.len() as u32).max(1);
    let frame =
        Frame::new(FrameHeader::default(), Bytes::from(vec![1; MESSAGE_BYTES]), Bytes::from(vec![2; data_bytes]))?;
    let mut costs = Vec::new();
    for _ in 0..PARTS {
        let before = own_cpu();
        workers::run(lines.len(), |rank| {
            let Line { sender, returned } = &lines[rank];
            let mut returned = returned.lock();
            (0..each).try_for_each(|_| {
                client.block_on(async {
                    sender.send(frame.clone()).await?;
                    returned.recv().await.map(drop).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
                })
            })
        })?;
        costs.push(own_cpu().saturating_sub(before).as_nanos() as f64 / f64::from(each) / lines.len() as f64);
    }
    Ok(least_disturbed(costs).unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_cost_more_with_data() {
        let frames = Frames::measure(400).unwrap();
        assert!(frames.alone > 0.0 && frames.among > 0.0, "{frames:?}");
        assert!(frames.data_alone > frames.alone && frames.data_among > frames.among, "{frames:?}");
    }
}
