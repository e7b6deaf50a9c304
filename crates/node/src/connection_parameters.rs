//! Parameters of a mount's connections, one to each target: `osc.*` and `mdc.*`.

use std::sync::Arc;

use client::FileSystem;
use rpc::{ImportStatistics, message::mgs::TargetRole};
use rt::parameters::{Parameter, ParameterError, ParameterTree, parse_number};
use types::MdtIndex;

use super::{
    pages::{self, PAGE_BYTES, PAGES_PER_RPC},
    parameter_names::{CHANGES_IN_FLIGHT, RPCS_IN_FLIGHT},
    tuner_parameters::{self, Switch},
    tuner_state::TunerState,
};

/// Registers the parameters of a mount's connection to a target.
pub fn register(
    tree: &ParameterTree,
    fsname: &str,
    client: &Arc<FileSystem>,
    role: TargetRole,
) -> Result<(), ParameterError> {
    let kind = match role {
        TargetRole::Mdt(_) => "mdc",
        TargetRole::Ost(_) => "osc",
    };
    let prefix = format!("{kind}.{}-{kind}", role.target_name(fsname));
    let shown = Arc::clone(client);
    let state = move || {
        let found = shown.connections().into_iter().find(|(known, ..)| *known == role);
        found.map(|(_, state, _)| state.to_string()).unwrap_or_default()
    };
    tree.register(&format!("{prefix}.state"), Parameter::read_only("state of the connection", state))?;
    let shown = Arc::clone(client);
    let statistics = move || {
        let found = shown.connections().into_iter().find(|(known, ..)| *known == role);
        found.map(|(_, _, statistics)| connection_statistics(&statistics)).unwrap_or_default()
    };
    tree.register(&format!("{prefix}.rpc_stats"), Parameter::read_only("requests to this target", statistics))?;
    let (shown, changed) = (Arc::clone(client), Arc::clone(client));
    let get = move || {
        let setting = shown.tuning(role).and_then(|tuning| tuning.setting()).map(|setting| setting as u16);
        setting.or_else(|| shown.rpcs_in_flight_max(role)).map(|count| count.to_string()).unwrap_or_default()
    };
    let set = move |text: &str| {
        let value = parse_number(text, &RPCS_IN_FLIGHT)?;
        changed.set_rpcs_in_flight_max(role, value as u16);
        Ok(())
    };
    let doc = "requests to this target outstanding at once, without what the tuner tries at the moment; setting it switches \
               the tuner off";
    let parameter = Parameter::writable(doc, get, set).within(RPCS_IN_FLIGHT);
    tree.register(&format!("{prefix}.max_rpcs_in_flight"), parameter)?;
    register_size(tree, client, role, &prefix)?;
    if let TargetRole::Mdt(mdt) = role {
        register_changes(tree, client, mdt, &prefix)?;
    }
    register_tuner(tree, client, role, &prefix)
}

/// How much data a request has.
fn register_size(
    tree: &ParameterTree,
    client: &Arc<FileSystem>,
    role: TargetRole,
    prefix: &str,
) -> Result<(), ParameterError> {
    let (shown, changed) = (Arc::clone(client), Arc::clone(client));
    let get = move || (shown.bulk_bytes_max(role) as u64 / PAGE_BYTES).to_string();
    let set = move |text: &str| {
        changed.set_bulk_bytes_max(role, (pages::parse(text)? * PAGE_BYTES) as usize);
        Ok(())
    };
    let doc = "largest amount of data in one request to this target, in pages of 4096 bytes, or with a unit (K, M): \
               reads and writes of more to one object are several requests";
    let parameter = Parameter::writable(doc, get, set).within(PAGES_PER_RPC);
    tree.register(&format!("{prefix}.max_pages_per_rpc"), parameter)
}

/// How many requests change names or attributes at once.
fn register_changes(
    tree: &ParameterTree,
    client: &Arc<FileSystem>,
    mdt: MdtIndex,
    prefix: &str,
) -> Result<(), ParameterError> {
    let (shown, changed) = (Arc::clone(client), Arc::clone(client));
    let get = move || shown.changes_in_flight_max(mdt).map(|count| count.to_string()).unwrap_or_default();
    let set = move |text: &str| {
        let most = changed.rpcs_in_flight_limit(TargetRole::Mdt(mdt)).map_or(1, |limit| limit.saturating_sub(1).max(1));
        let allowed = *CHANGES_IN_FLIGHT.start()..=(*CHANGES_IN_FLIGHT.end()).min(most.into());
        let value = parse_number(text, &allowed)
            .map_err(|expected| format!("{expected}, which is less than max_rpcs_in_flight"))?;
        changed.set_changes_in_flight_max(mdt, value as u16);
        Ok(())
    };
    let doc = "requests to this target outstanding at once that change names or attributes: fewer than \
               max_rpcs_in_flight, which lowers it if it is set to less";
    let parameter = Parameter::writable(doc, get, set).within(CHANGES_IN_FLIGHT);
    tree.register(&format!("{prefix}.max_mod_rpcs_in_flight"), parameter)
}

/// The tuner of the requests to a target.
fn register_tuner(
    tree: &ParameterTree,
    client: &Arc<FileSystem>,
    role: TargetRole,
    prefix: &str,
) -> Result<(), ParameterError> {
    let (shown, changed) = (Arc::clone(client), Arc::clone(client));
    let set = move |text: &str| {
        match tuner_parameters::parse(text)? {
            Switch::On => changed.set_tuner(role, true),
            Switch::From(count) => changed.tune_from(role, count),
            Switch::Off => changed.set_tuner(role, false),
        }
        Ok(())
    };
    let get = move || shown.tuning(role).map(|tuning| tuner_parameters::mode(&tuning)).unwrap_or_default();
    let doc = "whether the number of requests outstanding at once is chosen by what is measured: on, the default, or off; \
               max_rpcs_in_flight that is set by hand switches it off";
    tree.register(&format!("{prefix}.tuner"), Parameter::writable(doc, get, set))?;
    let shown = Arc::clone(client);
    let get = move || {
        let (count, most) = (shown.rpcs_in_flight_max(role)?, shown.rpcs_in_flight_limit(role)?);
        Some(tuner_parameters::log(&*shown.tuning(role)?, count.into(), most.into(), "requests"))
    };
    let doc = "the number of requests outstanding at once at present, and the last decisions of the tuner";
    tree.register(&format!("{prefix}.tuner_log"), Parameter::read_only(doc, move || get().unwrap_or_default()))?;
    let shown = Arc::clone(client);
    let get = move || {
        let (count, most) = (shown.rpcs_in_flight_max(role)?, shown.rpcs_in_flight_limit(role)?);
        Some(TunerState::of(&*shown.tuning(role)?, count.into(), most.into()).to_text())
    };
    let state = Parameter::read_only(tuner_parameters::STATE_DOC, move || get().unwrap_or_default());
    tree.register(&format!("{prefix}.tuner_state"), state)
}

fn connection_statistics(statistics: &ImportStatistics) -> String {
    let mut text = format!(
        "in_flight {}\nresent {}\nconnections {}\nevictions {}\n",
        statistics.in_flight, statistics.resent, statistics.connections, statistics.evictions
    );
    for opcode in &statistics.opcodes {
        text.push_str(&format!(
            "{:<24} {} samples, {} errors [usec] mean {} p99 {}\n",
            opcode.name,
            opcode.calls,
            opcode.errors,
            opcode.time.mean_ns() / 1000,
            opcode.time.quantile_us(0.99)
        ));
    }
    text
}
