//! Parameters of Lustre that do not exist here because there is nothing that they would change,
//! with the reasons, for the message that refuses them.

/// By a part of the name.
const ABSENT: &[(&str, &str)] = &[
    ("max_dirty_mb", "a write reaches its targets before it returns, so a mount holds no dirty data"),
    ("ost_create", "an object is created by its first write, in ost_io: there is no service for it"),
    (
        "req_history",
        "a service keeps no requests that have ended; stats counts them and their times, tuner_log decisions",
    ),
    ("timeouts", TIMEOUTS),
    ("at_min", TIMEOUTS),
    ("at_max", TIMEOUTS),
    ("parallel_dio", "direct I/O is always parallel, as far as the kernel sends requests at once"),
    ("contended_locks", CONTENTION),
    ("contention_seconds", CONTENTION),
    ("pool", LOCK_POOL),
    ("max_ptlrpcds", RPC_THREADS),
    ("ptlrpcd_per_cpt_max", RPC_THREADS),
    ("ptlrpcd_cpts", PROCESSORS),
    ("ptlrpcd_bind_policy", PROCESSORS),
    ("cpu_npartitions", PROCESSORS),
    ("cpu_map", PROCESSORS),
];

const TIMEOUTS: &str = "timeouts are not estimated: a call waits for the number of seconds in the parameter timeout";
const CONTENTION: &str = "a lock that several clients want is not refused to any of them: it is asked back when another one \
     changes what it protects";
const LOCK_POOL: &str = "there is no pool of locks: what a client keeps is limited by number (lru_size), by the time without \
     use (lru_max_age) and by memory (max_cached_small_mb), and a server asks for the oldest locks back at its limit";
const RPC_THREADS: &str = "the number of cores, its ptlrpcd threads, is fixed when a process starts (mount option \
     cores=N, stria up --cores N, cores = N in the configuration); while it runs, cpu_pattern chooses its processors";
const PROCESSORS: &str = "a process has one CPU partition; cpu_pattern chooses its processors";

/// Why there is no such parameter, if Lustre has it.
pub fn reason(pattern: &str) -> Option<&'static str> {
    let named = |part| ABSENT.iter().find(|(name, _)| *name == part).map(|(_, reason)| *reason);
    pattern.rsplit(['.', '/']).find_map(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lustres_names_are_known_and_others_are_not() {
        assert!(reason("osc.*.max_dirty_mb").is_some_and(|reason| reason.contains("no dirty data")));
        assert!(reason("osc/stria-OST0000-osc/max_dirty_mb").is_some());
        assert_eq!(reason("mdc.*.max_mod_rpcs_in_flight"), None);
        assert!(reason("ost.OSS.ost_create.threads_max").is_some_and(|reason| reason.contains("its first write")));
        assert!(reason("ost.OSS.ost_io.timeouts").is_some() && reason("llite.*.parallel_dio").is_some());
        assert!(reason("ldlm.namespaces.mdt-*.contention_seconds").is_some_and(|reason| reason.contains("asked back")));
        for name in ["limit", "recalc_period", "stats"] {
            let pool = reason(&format!("ldlm.namespaces.*.pool.{name}"));
            assert!(pool.is_some_and(|reason| reason.contains("lru_size") && reason.contains("lru_max_age")));
        }
        assert_eq!(reason("osc.*.max_rpcs_in_flight"), None);
        assert_eq!(reason("timeout"), None);
    }
}
