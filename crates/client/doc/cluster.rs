// A file system in memory, for the examples in the documentation of this crate, which include this
// file: one MDT and two OSTs as shipped, and a client in the same process.

/// Runs an example with a mounted file system.
pub fn with_file_system<F: Future<Output = types::FsResult<()>>>(
    example: impl FnOnce(std::sync::Arc<client::FileSystem>) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime of one thread");
    runtime.block_on(async {
        let file_system = mounted().await;
        example(std::sync::Arc::clone(&file_system)).await.expect("the example works");
        file_system.unmount().await;
    });
}

async fn mounted() -> std::sync::Arc<client::FileSystem> {
    use std::{sync::Arc, time::Duration};

    use client::{FileSystem, MountOptions};
    use kv::{Config, MemoryCold};
    use mds::{Mdt, MdtOptions, NewRoot};
    use oss::{Ost, OstDevices, OstOptions};
    use rpc::{
        Endpoint, Keyring, Principal, Role, Server, ServerOptions,
        message::mgs::{ClusterMap, MapTarget, TargetRole, TargetState},
    };
    use rt::memory::{MemoryDevice, MemoryTransport, seams};
    use types::{Credentials, MdtIndex, OstIndex};

    const LEASE: Duration = Duration::from_secs(30);
    let network = MemoryTransport::new();
    let server = Server::new(seams(&network, 1), ServerOptions::new(Keyring::of_test()));
    let mut roles = vec![TargetRole::Mdt(MdtIndex(0))];
    let mut endpoints = Vec::new();
    for index in [OstIndex(0), OstIndex(1)] {
        let seams = seams(&network, 2 + u64::from(index.0));
        let devices = OstDevices {
            objects: Arc::new(MemoryDevice::new()),
            journal: Arc::new(MemoryDevice::new()),
            cold: Arc::new(MemoryCold::new()),
            throughput: Arc::default(),
        };
        Ost::format(&seams, &devices, "stria", index, Config::small()).await.expect("empty devices");
        let options = OstOptions { reserve_bytes: 0, ..OstOptions::default() };
        let ost = Ost::open(seams, devices, "stria", index, options, Config::small()).await.expect("formatted devices");
        server.add_target(&format!("stria-{index}"), ost, LEASE);
        roles.push(TargetRole::Ost(index));
        endpoints.push((index, Endpoint::Local(Arc::clone(&server)), true));
    }
    let (device, cold, index) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryCold::new()), MdtIndex(0));
    let (seams_of_mdt, root) = (seams(&network, 4), NewRoot::of(Credentials::root()));
    let options = MdtOptions { store: Config::small(), ..MdtOptions::new("stria", index) };
    let formatted = Mdt::format(&seams_of_mdt, device.clone(), cold.clone(), Config::small(), "stria", index, &root);
    formatted.await.expect("an empty device");
    let mdt = Mdt::open(seams_of_mdt, device, cold, options).await.expect("a formatted device");
    mdt.update_map(&endpoints);
    server.add_target("stria-MDT0000", mdt, LEASE);
    let target =
        |role| MapTarget { role, uuid: String::new(), addresses: vec!["0@lo".to_owned()], state: TargetState::Active };
    let map = ClusterMap {
        version: 1,
        fsname: "stria".to_owned(),
        targets: roles.into_iter().map(target).collect(),
        parameters: Vec::new(),
        pools: Vec::new(),
    };
    let (_, maps) = tokio::sync::watch::channel(Arc::new(map));
    let resolve = move |_: &MapTarget| Endpoint::Local(Arc::clone(&server));
    let options = MountOptions::new(maps, Arc::new(resolve), Principal::of_test(1, Role::Client));
    FileSystem::mount(seams(&network, 5), options).await.expect("all targets are served")
}
