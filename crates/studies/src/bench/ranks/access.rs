//! How processes of this host use a file system that one of them has started.

use std::path::{Path, PathBuf};

use node::{Node, NodeOptions, key_file};
use rpc::auth::KeyKind;
use rt::{Address, real::Cores};
use serde::{Deserialize, Serialize};

use crate::bench::target::{BenchTarget, NativeTarget, PosixTarget};

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// A directory.
    Directory(PathBuf),
    /// A native client of the MGS at this address, with the key in this file.
    Server {
        /// Address of the MGS.
        address: String,
        /// File with the key of clients.
        key: PathBuf,
    },
}

/// A client in this process.
pub struct Joined {
    /// What its operations go to.
    pub target: Box<dyn BenchTarget>,
    node: Option<(Node, Cores)>,
}

impl Joined {
    /// Starts it.
    pub fn new(access: &Access) -> anyhow::Result<Self> {
        match access {
            Access::Directory(directory) => {
                Ok(Self { target: Box::new(PosixTarget::new(directory, false)), node: None })
            }
            Access::Server { address, key } => {
                let (node, cores) = connect(address, key)?;
                let file_system = cores.block_on(node.mount_client())?;
                let target = Box::new(NativeTarget::new(file_system, cores.clone()));
                Ok(Self { target, node: Some((node, cores)) })
            }
        }
    }
}

/// What native clients of this process share.
pub fn connect(address: &str, key: &Path) -> anyhow::Result<(Node, Cores)> {
    const FSNAME: &str = "stria";
    let cores = Cores::start_all()?;
    let keys = key_file::read(key, FSNAME, KeyKind::Client)?;
    let options = NodeOptions::client(&Address::from(address).into(), FSNAME, rpc::Role::Client, keys);
    let node = cores.block_on(Node::start(cores.clone(), options))?;
    Ok((node, cores))
}

impl Drop for Joined {
    fn drop(&mut self) {
        let Some((node, cores)) = self.node.take() else { return };
        if let Err(error) = cores.block_on(node.stop()) {
            eprintln!("stopping a client: {error:#}");
        }
        cores.shutdown();
    }
}
