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
    MIB, Took,
};

/// Frames that are sent in one measurement, without data and with them.
const FRAMES: u32 = 2000;
const FRAMES_WITH_DATA: u32 = 80;
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
    /// How much longer that takes than without data: nanoseconds that pass.
    pub data_passes: f64,
    /// The same, on one of several busy ones.
    pub data_among: f64,
}

/// A connection, and what comes back.
struct Line {
    sender: Arc<dyn Sender>,
    returned: Mutex<UnboundedReceiver<Frame>>,
}

/// Both ends of some connections. Dropping it stops them.
pub struct Lines {
    server: Cores,
    client: Cores,
    lines: Vec<Line>,
}

impl Lines {
    /// Connects both ends.
    pub fn connect() -> io::Result<Self> {
        let (server, client) = (Cores::start_all()?, Cores::start_all()?);
        let mut ends = Self { server, client, lines: Vec::new() };
        ends.lines = ends.connections()?;
        Ok(ends)
    }

    fn connections(&self) -> io::Result<Vec<Line>> {
        let (server, client) = (&self.server, &self.client);
        let (here, there) = (node::seams(client), node::seams(server));
        let listener = server.block_on(there.transport.listen(&Address::from("127.0.0.1:0")))?;
        let address = listener.address();
        there.spawn.spawn("listener", Box::pin(return_all(there.spawn.clone(), listener)));
        let connect = |number| {
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
        };
        (0..CONNECTIONS).map(connect).collect()
    }

    /// Measures once.
    pub fn measure(&self) -> io::Result<Frames> {
        let of = |lines: &[Line], data_bytes: usize, count: u32| cost(&self.client, lines, data_bytes, count);
        let (one, all) = (&self.lines[..1], &self.lines[..]);
        let (alone, among) = (of(one, 0, FRAMES)?, of(all, 0, FRAMES)?);
        let (data_alone, data_among) = (of(one, MIB, FRAMES_WITH_DATA)?, of(all, MIB, FRAMES_WITH_DATA)?);
        Ok(Frames {
            alone: alone.cpu,
            among: among.cpu,
            data_alone: data_alone.cpu,
            data_passes: data_alone.passes - alone.passes,
            data_among: data_among.cpu,
        })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.client.shutdown();
        self.server.shutdown();
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

/// Of one frame on these connections at once, each of which has one under way.
fn cost(client: &Cores, lines: &[Line], data_bytes: usize, count: u32) -> io::Result<Took> {
    let each = count / lines.len() as u32;
    let frame =
        Frame::new(FrameHeader::default(), Bytes::from(vec![1; MESSAGE_BYTES]), Bytes::from(vec![2; data_bytes]))?;
    let before = own_cpu();
    let took = workers::run(lines.len(), |rank| {
        let Line { sender, returned } = &lines[rank];
        let mut returned = returned.lock();
        (0..each).try_for_each(|_| {
            client.block_on(async {
                sender.send(frame.clone()).await?;
                returned.recv().await.map(drop).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
            })
        })
    })?;
    let frames = f64::from(each) * lines.len() as f64;
    let cpu = own_cpu().saturating_sub(before).as_nanos() as f64;
    Ok(Took { cpu: cpu / frames, passes: took.as_nanos() as f64 / frames })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_cost_more_with_data() {
        let frames = Lines::connect().unwrap().measure().unwrap();
        assert!(frames.alone > 0.0 && frames.among > 0.0, "{frames:?}");
        assert!(frames.data_alone > frames.alone && frames.data_among > frames.among, "{frames:?}");
    }
}
