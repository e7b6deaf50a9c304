//! Parameters of the services of a process, under Lustre's names: service threads, the request
//! scheduler (`nrs_*`), statistics.

use std::{ops::RangeInclusive, sync::Arc};

use nrs::{ClassBy, DelaySettings, Selection, Settings, tbf::RuleCommand};
use rpc::{Service, message::kind::RequestKind};
use rt::{
    parameters::{Parameter, ParameterError, ParameterTree, parse_number},
    real::io_threads::{IO_THREADS_MAX, IoThreads},
};

use super::{
    tuner_parameters::{self, Switch},
    tuner_state::TunerState,
};

/// A service, and where its parameters are.
pub struct KnownService {
    /// Its name in the server.
    pub name: &'static str,
    /// What the names of its parameters begin with.
    pub prefix: &'static str,
    /// What has it.
    pub server: ServerKind,
    /// Whether its request scheduler can be chosen. Urgent requests and those of clients that come
    /// back are executed in order of arrival: others wait for them.
    is_scheduled: bool,
}

/// What has a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// A process with object storage targets.
    Oss,
    /// A process with metadata targets.
    Mds,
    /// The process with the management service.
    Mgs,
    /// All of these.
    Any,
}

const fn scheduled(name: &'static str, prefix: &'static str, server: ServerKind) -> KnownService {
    KnownService { name, prefix, server, is_scheduled: true }
}

const fn unscheduled(name: &'static str, prefix: &'static str, server: ServerKind) -> KnownService {
    KnownService { name, prefix, server, is_scheduled: false }
}

/// All that have parameters.
pub const SERVICES: &[KnownService] = &[
    scheduled("ost", "ost.OSS.ost", ServerKind::Oss),
    scheduled("ost_io", "ost.OSS.ost_io", ServerKind::Oss),
    scheduled("mdt", "mds.MDS.mdt", ServerKind::Mds),
    scheduled("mdt_readpage", "mds.MDS.mdt_readpage", ServerKind::Mds),
    scheduled("mdt_io", "mds.MDS.mdt_io", ServerKind::Mds),
    unscheduled("mdt_recovery", "mds.MDS.mdt_recovery", ServerKind::Mds),
    scheduled("mgs", "mgs.MGS.mgs", ServerKind::Mgs),
    unscheduled("ldlm_canceld", "ldlm.services.ldlm_canceld", ServerKind::Any),
];

impl KnownService {
    /// Whether a tuner may choose the number of its service threads. Where others wait for requests
    /// nothing is tried out.
    pub fn is_tuned(&self) -> bool {
        self.is_scheduled && self.server != ServerKind::Mgs
    }

    /// Whether its service threads come with threads that do its disk I/O.
    pub fn has_io_threads(&self) -> bool {
        self.name == "ost_io"
    }

    fn threads(&self) -> RangeInclusive<u64> {
        let most = if self.has_io_threads() { IO_THREADS_MAX as u64 } else { 4096 };
        1..=most
    }
}

/// Registers the parameters of a service. `io_threads`: their number is that of its threads.
pub fn register(
    tree: &ParameterTree,
    known: &KnownService,
    service: Arc<Service>,
    io_threads: Option<Arc<IoThreads>>,
) -> Result<(), ParameterError> {
    register_threads(tree, known, &service, io_threads)?;
    if known.is_tuned() {
        register_tuner(tree, known.prefix, &service)?;
    }
    register_statistics(tree, known.prefix, service.clone())?;
    if known.is_scheduled {
        register_scheduler(tree, known.prefix, &service)?;
    }
    Ok(())
}

fn register_threads(
    tree: &ParameterTree,
    known: &KnownService,
    service: &Arc<Service>,
    io_threads: Option<Arc<IoThreads>>,
) -> Result<(), ParameterError> {
    let (prefix, range) = (known.prefix, known.threads());
    let (shown, changed, allowed) = (service.clone(), service.clone(), range.clone());
    let set = move |text: &str| {
        let number = parse_number(text, &allowed)? as usize;
        let least = changed.threads_min();
        if number < least {
            return Err(format!("threads_min is {least}; lower it first"));
        }
        if let Some(threads) = &io_threads {
            threads.set_threads(number).map_err(|error| error.to_string())?;
        }
        changed.set_threads(number);
        Ok(())
    };
    let doc = "service threads: number of requests of this service executed at the same time";
    let get = move || shown.threads_max().to_string();
    tree.register(&format!("{prefix}.threads_max"), Parameter::writable(doc, get, set).within(range.clone()))?;
    let (shown, changed, allowed) = (service.clone(), service.clone(), range.clone());
    let set = move |text: &str| {
        let number = parse_number(text, &allowed)? as usize;
        let most = changed.threads_max();
        if number > most {
            return Err(format!("threads_max is {most}; raise it first"));
        }
        changed.set_threads_min(number);
        Ok(())
    };
    let doc = "minimum number of service threads; threads_max cannot be set lower";
    let get = move || shown.threads_min().to_string();
    tree.register(&format!("{prefix}.threads_min"), Parameter::writable(doc, get, set).within(range))?;
    let shown = service.clone();
    let doc = "largest number of requests executed at the same time so far, between threads_min and threads_max";
    let get = move || shown.threads_started().to_string();
    tree.register(&format!("{prefix}.threads_started"), Parameter::read_only(doc, get))
}

fn register_tuner(tree: &ParameterTree, prefix: &str, service: &Arc<Service>) -> Result<(), ParameterError> {
    let (shown, changed) = (service.clone(), service.clone());
    let set = move |text: &str| {
        match tuner_parameters::parse(text)? {
            Switch::On => changed.tune(),
            Switch::From(threads) => changed.tune_from(threads.into()),
            Switch::Off => changed.stop_tuning(),
        }
        Ok(())
    };
    let get = move || tuner_parameters::mode(shown.tuning());
    let doc = "whether the number of service threads is chosen by what is measured: on, the default, or off; \
               threads_max that is set by hand switches it off";
    tree.register(&format!("{prefix}.tuner"), Parameter::writable(doc, get, set))?;
    let shown = service.clone();
    let get = move || tuner_parameters::log(shown.tuning(), shown.threads(), shown.threads_max(), "threads");
    let doc = "the number of service threads at present, and the last decisions of the tuner";
    tree.register(&format!("{prefix}.tuner_log"), Parameter::read_only(doc, get))?;
    let shown = service.clone();
    let get = move || TunerState::of(shown.tuning(), shown.threads(), shown.threads_max()).to_text();
    tree.register(&format!("{prefix}.tuner_state"), Parameter::read_only(tuner_parameters::STATE_DOC, get))
}

fn register_statistics(tree: &ParameterTree, prefix: &str, service: Arc<Service>) -> Result<(), ParameterError> {
    let doc = "requests, waiting and in service, with times; writing anything resets them";
    let (shown, reset) = (Arc::clone(&service), service);
    let get = move || {
        let statistics = shown.statistics();
        let line = |name: &str, times: &rpc::Histogram| {
            format!(
                "{name:<24} {} samples [usec] mean {} p50 {} p99 {}\n",
                times.count,
                times.mean_ns() / 1000,
                times.quantile_us(0.5),
                times.quantile_us(0.99)
            )
        };
        let mut text = format!("req_active               {} samples [reqs]\n", statistics.in_flight);
        text.push_str(&format!(
            "req_qdepth               {} waiting, {} at most [reqs]\n",
            statistics.waiting, statistics.waiting_max
        ));
        text.push_str(&format!("req_refused              {} samples [reqs]\n", statistics.refused));
        text.push_str(&line("req_waittime", &statistics.queue_time));
        text.push_str(&line("req_servicetime", &statistics.service_time));
        text
    };
    let reset = move |_: &str| {
        reset.reset_statistics();
        Ok(())
    };
    tree.register(&format!("{prefix}.stats"), Parameter::writable(doc, get, reset))
}

const POLICIES_DOC: &str = "order in which requests are executed: fifo, crrn, orr, trr, tbf [nid|jobid|opcode|uid|gid|projid, or several joined by +], \
     delay";
const RULES_DOC: &str = "rules of tbf: start NAME CONDITIONS rate=RATE [rank=RULE], change NAME rate=RATE, stop NAME";

fn setting_doc(name: &str) -> &'static str {
    match name {
        "nrs_crrn_quantum" => "crrn: requests executed in one turn of a client",
        "nrs_orr_quantum" => "orr: requests executed in one turn of an object",
        "nrs_trr_quantum" => "trr: requests executed in one turn of a target",
        "nrs_orr_offset_type" | "nrs_trr_offset_type" => "offsets by which requests are sorted: logical",
        "nrs_orr_supported" | "nrs_trr_supported" => "requests that are sorted: reads, writes, reads_and_writes",
        "nrs_delay_min" => "delay: shortest delay in seconds",
        "nrs_delay_max" => "delay: longest delay in seconds",
        _ => "delay: percentage of requests that are delayed",
    }
}

fn register_scheduler(tree: &ParameterTree, prefix: &str, service: &Arc<Service>) -> Result<(), ParameterError> {
    let (shown, changed) = (service.clone(), service.clone());
    let set = move |text: &str| {
        changed.set_policy(text.parse::<Selection>().map_err(|refused| refused.to_string())?);
        Ok(())
    };
    let parameter = Parameter::writable(POLICIES_DOC, move || policies(&shown), set);
    tree.register(&format!("{prefix}.nrs_policies"), parameter)?;
    let (shown, changed) = (service.clone(), service.clone());
    let get = move || match shown.policy_rules() {
        rules if rules.is_empty() => "regular_requests:".to_owned(),
        rules => format!("regular_requests:\nCPT 0:\n{}", rules.trim_end()),
    };
    let set = move |text: &str| changed.change_policy_rules(text, &opcodes()).map_err(|refused| refused.to_string());
    tree.register(&format!("{prefix}.nrs_tbf_rule"), Parameter::writable(RULES_DOC, get, set))?;
    for name in Settings::NAMES {
        let (shown, changed) = (service.clone(), service.clone());
        let get = move || shown.policy_settings().get(name).unwrap_or_default();
        let set = move |text: &str| changed.set_policy_setting(name, text).map_err(|refused| refused.to_string());
        tree.register(&format!("{prefix}.{name}"), Parameter::writable(setting_doc(name), get, set))?;
    }
    Ok(())
}

/// The policies of a service, as Lustre shows them.
fn policies(service: &Service) -> String {
    let mut text = "regular_requests:".to_owned();
    for (policy, active) in service.policies() {
        let state = if policy.is_started { "started" } else { "stopped" };
        let fallback = if policy.name == nrs::PolicyName::Fifo { "yes" } else { "no" };
        text.push_str(&format!(
            "\n  - name: {}\n    state: {state}\n    fallback: {fallback}\n    queued: {}\n    active: {active}\n",
            policy.title, policy.queued
        ));
    }
    text.truncate(text.trim_end().len());
    text
}

/// Names of all requests.
fn opcodes() -> Vec<&'static str> {
    RequestKind::all().map(|kind| kind.row().name).collect()
}

/// Registers the parameters of a service that is not there yet: they check values and keep none.
/// Which policy will be in use is not known, so rules for any are accepted.
pub fn register_checks(tree: &ParameterTree, known: &KnownService) -> Result<(), ParameterError> {
    let prefix = known.prefix;
    let register = |name: &str, parameter: Parameter| tree.register(&format!("{prefix}.{name}"), parameter);
    for name in ["threads_max", "threads_min"] {
        let allowed = known.threads();
        let check = move |text: &str| parse_number(text, &allowed).map(drop);
        register(name, Parameter::writable("", String::new, check).within(known.threads()))?;
    }
    register("threads_started", Parameter::read_only("", String::new))?;
    if known.is_tuned() {
        register("tuner", Parameter::writable("", String::new, |text| tuner_parameters::parse(text).map(drop)))?;
        register("tuner_log", Parameter::read_only("", String::new))?;
        register("tuner_state", Parameter::read_only("", String::new))?;
    }
    register("stats", Parameter::writable("", String::new, |_| Ok(())))?;
    if !known.is_scheduled {
        return Ok(());
    }
    let check = |text: &str| text.parse::<Selection>().map(drop).map_err(|refused| refused.to_string());
    register("nrs_policies", Parameter::writable("", String::new, check))?;
    let check = |text: &str| {
        let parsed = RuleCommand::parse(text, ClassBy::EVERYTHING, &opcodes());
        parsed.map(drop).map_err(|refused| refused.to_string())
    };
    register("nrs_tbf_rule", Parameter::writable("", String::new, check))?;
    let delay = DelaySettings { min_s: 0, max_s: u16::MAX, percent: 100 };
    let any = Settings { delay, ..Settings::default() };
    for name in Settings::NAMES {
        let check = move |text: &str| any.with(name, text).map(drop).map_err(|refused| refused.to_string());
        register(name, Parameter::writable("", String::new, check))?;
    }
    Ok(())
}
