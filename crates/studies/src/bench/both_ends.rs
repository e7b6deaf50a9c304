//! Servers and a client in this process, connected over TCP: the processor time of both ends is
//! that of this process, which is known to the nanosecond, and both can be changed by calls.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use client::FileSystem;
use node::{Node, NodeOptions, key_file};
use rpc::{Service, auth::KeyKind};
use rt::{Address, Clock, real::Cores};

use super::target::NativeTarget;

/// See the module documentation. Dropping it stops both ends.
pub struct BothEnds {
    server: Option<Node>,
    server_cores: Cores,
    client: Option<Node>,
    /// The client's.
    pub client_cores: Cores,
    /// What the client has mounted.
    pub file_system: Arc<FileSystem>,
    /// The same, for benchmarks.
    pub target: NativeTarget,
}

impl BothEnds {
    /// Starts both, with the data in a new directory.
    pub fn start(directory: &Path, osts: u16) -> anyhow::Result<Self> {
        let (server_cores, client_cores) = (Cores::start_all()?, Cores::start_all()?);
        let listen = Some(Address::from("127.0.0.1:0"));
        let options = NodeOptions { listen, ..NodeOptions::up(directory.into(), 1, osts) };
        options.format_missing()?;
        let server = server_cores.block_on(Node::start(server_cores.clone(), options))?;
        let address = server.address.clone().context("the server does not listen")?;
        let key = directory.join("mgs").join(key_file::CLIENT_KEY_FILE);
        let keys = key_file::read(&key, "stria", KeyKind::Client)?;
        let mgs = address.into();
        let connected = Node::connect(client_cores.clone(), &mgs, "stria", keys);
        let (client, file_system) = client_cores.block_on(connected)?;
        let target = NativeTarget::new(file_system.clone(), client_cores.clone());
        Ok(Self { server: Some(server), server_cores, client: Some(client), client_cores, file_system, target })
    }

    /// Services of the servers.
    pub fn services(&self) -> Vec<Arc<Service>> {
        self.server.iter().flat_map(|server| server.server.services()).collect()
    }

    /// The clock of both.
    pub fn clock(&self) -> Arc<dyn Clock> {
        node::seams(&self.client_cores).clock
    }
}

impl Drop for BothEnds {
    fn drop(&mut self) {
        for (node, cores) in [(self.client.take(), &self.client_cores), (self.server.take(), &self.server_cores)] {
            if let Some(Err(error)) = node.map(|node| cores.block_on(node.stop())) {
                eprintln!("stopping: {error:#}");
            }
            cores.shutdown();
        }
    }
}
