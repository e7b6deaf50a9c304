//! The parameter tree of a process: Lustre's names for what its parts can show and change.

use std::{sync::Arc, time::Duration};

use client::{FileSystem, Operation};
use rpc::message::mgs::TargetRole;
use rt::{
    parameters::{Parameter, ParameterError, ParameterTree, parse_number},
    real::ProcessorTime,
};
use types::{JobName, MdtIndex};

use super::{
    Node, connection_parameters,
    parameter_names::{CLOSE_DELAYS_MS, LOCK_AGES_MS, LOCKS_CACHED, SMALL_CACHED_MB, STATAHEAD_NAMES, TIMEOUT_SECONDS},
    service_parameters::{self, SERVICES, ServerKind},
};

/// Lets tuners choose the numbers of service threads, and tells them how busy the processors are.
pub fn tune_services(node: &Node) {
    let processors = Arc::new(ProcessorTime::default());
    for service in SERVICES.iter().filter(|service| service.is_tuned() && serves(node, service.server)) {
        let (service, processors) = (node.server.service(service.name), processors.clone());
        service.tuning().watch_processors(Arc::new(move || processors.used()));
        service.tune();
    }
}

/// Whether `node` has what has such services.
fn serves(node: &Node, kind: ServerKind) -> bool {
    match kind {
        ServerKind::Oss => !node.osts.is_empty(),
        ServerKind::Mds => !node.mdts.is_empty(),
        ServerKind::Mgs => node.mgs.is_some(),
        ServerKind::Any => !node.osts.is_empty() || !node.mdts.is_empty() || node.mgs.is_some(),
    }
}

/// Registers everything `node` has, but for what comes with the targets of a mount
/// ([`register_target`]).
pub fn register(tree: &ParameterTree, node: &Node) -> Result<(), ParameterError> {
    tree.register("version", Parameter::read_only("version of this program", || env!("CARGO_PKG_VERSION").to_owned()))?;
    let doc = "panics in requests that this process contained, in its targets and its mount";
    tree.register("panics", Parameter::read_only(doc, || rt::contain::count().to_string()))?;
    super::processors::register(tree, node.cores().count())?;
    for service in SERVICES {
        if serves(node, service.server) {
            let io_threads = service.has_io_threads().then(|| node.threads.ost_io.clone());
            service_parameters::register(tree, service, node.server.service(service.name), io_threads)?;
        }
    }
    if !node.osts.is_empty() {
        let doc = "limit in MiB/s of all targets of this server together, for studies; 0: none";
        tree.register("oss.OSS.limit_mbps", node.oss_limit.rate_parameter(doc))?;
    }
    for ost in &node.osts {
        ost.target.register_parameters(tree)?;
    }
    let of_mdts = node.mdts.iter().map(|mdt| ("mdt", mdt.target.name()));
    let of_osts = node.osts.iter().map(|ost| ("obdfilter", ost.target.name()));
    for (prefix, name) in of_mdts.chain(of_osts) {
        let (server, target) = (Arc::clone(&node.server), name.to_owned());
        let doc = "panics in requests of this target; above 0 it is out of service until its process is restarted";
        let get = move || server.panics(&target).to_string();
        tree.register(&format!("{prefix}.{name}.panics"), Parameter::read_only(doc, get))?;
    }
    for (mdt, balancer) in node.mdts.iter().zip(&node.balancers) {
        let report = balancer.report();
        let doc = "directories moved to other metadata targets that have less than their part of all inodes, and whether there is more to move";
        let name = format!("mdt.{}.balance", mdt.target.name());
        tree.register(&name, Parameter::read_only(doc, move || report.lock().to_string()))?;
    }
    for (mdt, mover) in node.mdts.iter().zip(&node.movers) {
        super::mdt_parameters::register(tree, &mdt.target)?;
        let (waiting, counters) = (Arc::clone(&mdt.target), mover.counters());
        let get = move || format!("{:<24} {} samples [files]\n{}", "waiting", waiting.moves_waiting(), counters.lock());
        let doc = "files migrated in the background because of a poor layout";
        tree.register(&format!("mdt.{}.migration", mdt.target.name()), Parameter::read_only(doc, get))?;
    }
    for client in node.clients.lock().expect("no panic while locked").iter() {
        register_client(tree, node, client)?;
    }
    Ok(())
}

fn register_client(tree: &ParameterTree, node: &Node, client: &Arc<FileSystem>) -> Result<(), ParameterError> {
    let prefix = format!("llite.{}", client.name());
    let (shown, reset) = (Arc::clone(client), Arc::clone(client));
    let doc = "operations of this mount; writing anything resets them";
    let get = move || client_statistics(&shown);
    let set = move |_: &str| {
        reset.statistics().reset();
        Ok(())
    };
    tree.register(&format!("{prefix}.stats"), Parameter::writable(doc, get, set))?;
    let shown = Arc::clone(client);
    let get = move || shown.open_count().to_string();
    tree.register(&format!("{prefix}.opencount"), Parameter::read_only("files this mount has open", get))?;
    register_close_delay(tree, client, &prefix)?;
    register_statahead(tree, client, &prefix)?;
    node.shown_mount.register(tree, client)?;
    let (shown, changed) = (Arc::clone(client), Arc::clone(client));
    let doc = "source of the job name in requests: disable, procname_uid, nodelocal (jobid_name)";
    let set = move |text: &str| text.parse().map(|source| changed.job_ids().set_source(source));
    let get = move || shown.job_ids().source().to_string();
    tree.register("jobid_var", Parameter::writable(doc, get, set))?;
    let (shown, changed) = (Arc::clone(client), Arc::clone(client));
    let set = move |text: &str| {
        changed.job_ids().set_name(JobName::new(text));
        Ok(())
    };
    let get = move || shown.job_ids().name().as_str().to_owned();
    tree.register(
        "jobid_name",
        Parameter::writable("name of the job of this mount, for jobid_var=nodelocal", get, set),
    )?;
    let (seconds, changed) = (Arc::new(std::sync::atomic::AtomicU64::new(100)), Arc::clone(client));
    let shown = Arc::clone(&seconds);
    let get = move || shown.load(std::sync::atomic::Ordering::Relaxed).to_string();
    let set = move |text: &str| {
        let value = parse_number(text, &TIMEOUT_SECONDS)?;
        seconds.store(value, std::sync::atomic::Ordering::Relaxed);
        changed.set_timeout(Duration::from_secs(value));
        Ok(())
    };
    let doc = "seconds a call waits for a server that does not answer";
    tree.register("timeout", Parameter::writable(doc, get, set).within(TIMEOUT_SECONDS))
}

/// Registers what a mount has for one target.
pub fn register_target(
    tree: &ParameterTree,
    fsname: &str,
    client: &Arc<FileSystem>,
    role: TargetRole,
) -> Result<(), ParameterError> {
    connection_parameters::register(tree, fsname, client, role)?;
    match role {
        TargetRole::Mdt(mdt) => register_locks(tree, fsname, client, mdt),
        TargetRole::Ost(_) => Ok(()),
    }
}

/// Closes that go along with other requests.
fn register_close_delay(tree: &ParameterTree, client: &Arc<FileSystem>, prefix: &str) -> Result<(), ParameterError> {
    let (shown, changed) = (Arc::clone(client), Arc::clone(client));
    let get = move || shown.close_delay_ms().to_string();
    let set = move |text: &str| {
        changed.set_close_delay_ms(parse_number(text, &CLOSE_DELAYS_MS)? as u32);
        Ok(())
    };
    let doc = "milliseconds for which the close of a file that was written waits for another request to the MDT \
               that takes it along; 0: it is sent at once";
    tree.register(&format!("{prefix}.close_delay_ms"), Parameter::writable(doc, get, set).within(CLOSE_DELAYS_MS))
}

/// Attributes that are asked for ahead of lookups.
fn register_statahead(tree: &ParameterTree, client: &Arc<FileSystem>, prefix: &str) -> Result<(), ParameterError> {
    let (shown, changed) = (Arc::clone(client), Arc::clone(client));
    let get = move || shown.statahead_max().to_string();
    let set = move |text: &str| {
        changed.set_statahead_max(parse_number(text, &STATAHEAD_NAMES)? as u32);
        Ok(())
    };
    let doc =
        "largest number of names whose attributes are prefetched at once while a program walks a directory; 0: none";
    tree.register(&format!("{prefix}.statahead_max"), Parameter::writable(doc, get, set).within(STATAHEAD_NAMES))?;
    let (shown, reset) = (Arc::clone(client), Arc::clone(client));
    let get = move || {
        let (pages, names, wrong) = shown.statistics().statahead.get();
        format!("statahead total: {pages}\nstatahead names: {names}\nstatahead wrong: {wrong}\n")
    };
    let set = move |_: &str| {
        reset.statistics().statahead.reset();
        Ok(())
    };
    let doc = "requests for attributes ahead of lookups, names that came with them, and walks that left the order; \
               writing anything resets them";
    tree.register(&format!("{prefix}.statahead_stats"), Parameter::writable(doc, get, set))
}

/// Locks of an MDT under which this mount caches names and attributes: Lustre's `ldlm.namespaces`.
fn register_locks(
    tree: &ParameterTree,
    fsname: &str,
    client: &Arc<FileSystem>,
    mdt: MdtIndex,
) -> Result<(), ParameterError> {
    let prefix = format!("ldlm.namespaces.{}-mdc", TargetRole::Mdt(mdt).target_name(fsname));
    let (counted, shown, changed) = (Arc::clone(client), Arc::clone(client), Arc::clone(client));
    let get = move || counted.cached_locks(mdt).map(|(count, _)| count.to_string()).unwrap_or_default();
    let doc = "locks of this target that protect cached names and attributes";
    tree.register(&format!("{prefix}.lock_count"), Parameter::read_only(doc, get))?;
    let counted = Arc::clone(client);
    let get = move || counted.cached_locks(mdt).map(|(count, _)| count.to_string()).unwrap_or_default();
    let doc = "locks of this target that can be given back at any time: all of them";
    tree.register(&format!("{prefix}.lock_unused_count"), Parameter::read_only(doc, get))?;
    let counted = Arc::clone(client);
    let get = move || counted.locked_inodes(mdt).map(|count| count.to_string()).unwrap_or_default();
    let doc = "inodes of this target on which there are such locks";
    tree.register(&format!("{prefix}.resource_count"), Parameter::read_only(doc, get))?;
    let get = move || shown.cached_locks(mdt).map(|(_, most)| most.to_string()).unwrap_or_default();
    let set = move |text: &str| {
        let outcome = match text.trim() {
            "clear" => changed.clear_cached_locks(mdt),
            text => changed.set_cached_locks_max(mdt, parse_number(text, &LOCKS_CACHED)? as usize),
        };
        outcome.map_err(|error| error.to_string())
    };
    let doc = "largest number of locks, missing names, and further names of inodes with several links cached for this \
               target; 0: nothing is cached; clear: gives all locks back, and leaves the number as it is";
    tree.register(&format!("{prefix}.lru_size"), Parameter::writable(doc, get, set).within(LOCKS_CACHED))?;
    let (shown, changed) = (Arc::clone(client), Arc::clone(client));
    let get = move || shown.lock_age_max(mdt).map(|age| age.as_millis().to_string()).unwrap_or_default();
    let set = move |text: &str| {
        let age_max = Duration::from_millis(parse_number(text, &LOCK_AGES_MS)?);
        changed.set_lock_age_max(mdt, age_max).map_err(|error| error.to_string())
    };
    let doc = "milliseconds for which a lock that is not used is kept";
    tree.register(&format!("{prefix}.lru_max_age"), Parameter::writable(doc, get, set).within(LOCK_AGES_MS))?;
    register_small_files(tree, fsname, client, mdt)
}

/// Memory for data of small files on an MDT.
fn register_small_files(
    tree: &ParameterTree,
    fsname: &str,
    client: &Arc<FileSystem>,
    mdt: MdtIndex,
) -> Result<(), ParameterError> {
    let prefix = format!("mdc.{}-mdc", TargetRole::Mdt(mdt).target_name(fsname));
    let (used, shown, changed) = (Arc::clone(client), Arc::clone(client), Arc::clone(client));
    let get = move || used.cached_small_bytes(mdt).map(|(bytes, _)| bytes.to_string()).unwrap_or_default();
    let doc = "bytes of memory used by cached data of this target's small files";
    tree.register(&format!("{prefix}.cached_small_bytes"), Parameter::read_only(doc, get))?;
    let get = move || shown.cached_small_bytes(mdt).map(|(_, most)| (most >> 20).to_string()).unwrap_or_default();
    let set = move |text: &str| {
        let mebibytes = parse_number(text, &SMALL_CACHED_MB)?;
        changed.set_cached_small_bytes_max(mdt, mebibytes << 20).map_err(|error| error.to_string())
    };
    let doc = "memory for cached data of small files of this target, in MiB; 0: none are cached";
    let parameter = Parameter::writable(doc, get, set).within(SMALL_CACHED_MB);
    tree.register(&format!("{prefix}.max_cached_small_mb"), parameter)
}

fn client_statistics(client: &FileSystem) -> String {
    let mut text = String::new();
    for operation in Operation::ALL {
        let count = client.statistics().get(operation);
        if count.samples == 0 {
            continue;
        }
        text.push_str(&format!("{:<24} {} samples", operation.name(), count.samples));
        if count.max > 0 {
            text.push_str(&format!(" [bytes] {} {} {}", count.min, count.max, count.sum));
        }
        text.push('\n');
    }
    text
}
