//! What is logged: `STRIA_LOG`, or what suits the command.

use tracing_subscriber::filter::{LevelFilter, Targets};

/// The crates that log, by the names that `STRIA_LOG` uses.
const MODULES: [&str; 21] = [
    "blocks", "client", "fuse", "fuzz", "host", "kv", "lab", "layout", "lfs", "lock", "mds", "mgs", "node", "nrs",
    "oss", "rpc", "rt", "stria", "studies", "tuner", "types",
];

/// The filter for `wanted`, the value of `STRIA_LOG`: a level, or levels of modules as in
/// `client=debug,rpc=trace`. Whatever of it has no meaning is told in the second part, because
/// otherwise nothing would be logged and nobody would know why.
pub(crate) fn filter(wanted: Option<&str>, default: LevelFilter) -> (Targets, Option<String>) {
    let usual = Targets::new().with_default(default);
    let Some(wanted) = wanted.filter(|wanted| !wanted.trim().is_empty()) else { return (usual, None) };
    let explain = |part: &str| {
        let modules = MODULES.join(", ");
        format!(
            "STRIA_LOG={wanted}: {part}; allowed: a level (off, error, warn, info, debug, trace), or levels of \
             modules as in client=debug,rpc=trace; modules: {modules}"
        )
    };
    let targets: Targets = match wanted.parse() {
        Ok(targets) => targets,
        Err(error) => return (usual, Some(explain(&format!("{error}, logging as without it")))),
    };
    let unknown = targets.iter().map(|(module, _)| module).find(|module| !is_known(module));
    match unknown {
        // A misspelt level reads as a module: what is known of the rest is little.
        Some(module) => (usual, Some(explain(&format!("'{module}' is neither, logging as without it")))),
        None => (targets, None),
    }
}

/// Modules of StriaFS, and of the libraries below them if their path is given (`fjall::tree`).
fn is_known(module: &str) -> bool {
    module.split_once("::").map_or_else(|| MODULES.contains(&module), |_| true)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn warned(wanted: &str) -> String {
        let (targets, warning) = filter(Some(wanted), LevelFilter::WARN);
        assert_eq!(targets, Targets::new().with_default(LevelFilter::WARN), "{wanted}");
        warning.expect(wanted)
    }

    #[test]
    fn levels_and_modules_are_taken() {
        let taken = |wanted: &str| {
            let (targets, warning) = filter(Some(wanted), LevelFilter::WARN);
            assert_eq!(warning, None, "{wanted}");
            targets
        };
        assert_eq!(taken("debug"), Targets::new().with_default(LevelFilter::DEBUG));
        let both =
            Targets::new().with_target("client", LevelFilter::DEBUG).with_target("rpc::import", LevelFilter::TRACE);
        assert_eq!(taken("client=debug,rpc::import=trace"), both);
        assert_eq!(taken(""), Targets::new().with_default(LevelFilter::WARN));
        assert_eq!(filter(None, LevelFilter::INFO), (Targets::new().with_default(LevelFilter::INFO), None));
    }

    #[test]
    fn what_has_no_meaning_is_told() {
        assert!(warned("verbose").contains("'verbose' is neither"), "a misspelt level");
        assert!(warned("info,clent=debug").contains("'clent' is neither"), "a misspelt module");
        assert!(warned("client=loud").contains("allowed: a level"), "a misspelt level of a module");
    }

    #[test]
    fn all_crates_are_modules() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut names: Vec<_> =
            crates.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, MODULES);
    }
}
