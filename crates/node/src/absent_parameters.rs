//! Parameters of Lustre that do not exist here because there is nothing that they would change,
//! with the reasons, for the message that refuses them.

/// By the last part of the name.
const ABSENT: &[(&str, &str)] = &[
    ("max_dirty_mb", "a write reaches its targets before it returns, so a mount holds no dirty data"),
    (
        "max_pages_per_rpc",
        "a write of up to 1 MiB to one object is one request, so that other writes do not come between its parts",
    ),
    ("max_mod_rpcs_in_flight", "max_rpcs_in_flight limits all requests, since a server keeps a reply for each of them"),
    ("max_ptlrpcds", RPC_THREADS),
    ("ptlrpcd_per_cpt_max", RPC_THREADS),
    ("ptlrpcd_cpts", PROCESSORS),
    ("ptlrpcd_bind_policy", PROCESSORS),
    ("cpu_npartitions", PROCESSORS),
    ("cpu_pattern", PROCESSORS),
    ("cpu_partition_table", PROCESSORS),
    ("cpu_map", PROCESSORS),
];

const RPC_THREADS: &str =
    "a process has one thread for each processor that it may use; start it under taskset for fewer";
const PROCESSORS: &str =
    "a process uses the processors that it may use when it starts; choose them with taskset or a cgroup";

/// Why there is no such parameter, if Lustre has it.
pub fn reason(pattern: &str) -> Option<&'static str> {
    let last = pattern.rsplit(['.', '/']).next()?;
    ABSENT.iter().find(|(name, _)| *name == last).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lustres_names_are_known_and_others_are_not() {
        assert!(reason("osc.*.max_dirty_mb").is_some_and(|reason| reason.contains("no dirty data")));
        assert!(reason("osc/stria-OST0000-osc/max_pages_per_rpc").is_some());
        assert!(reason("mdc.*.max_mod_rpcs_in_flight").is_some());
        assert_eq!(reason("osc.*.max_rpcs_in_flight"), None);
    }
}
