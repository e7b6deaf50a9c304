//! Runs the examples of docs/operating.md: one session of a shell, as root, on a minimal Debian
//! with the package.

use crate::{
    build,
    common::{Place, console},
    debian::Debian,
};

const DOCUMENT: &str = include_str!("../../../../docs/operating.md");

#[test]
fn the_tutorial_does_what_it_says() {
    let place = Place::new();
    let debian = Debian::new(&place);
    build(&debian.path("/stria.deb"));
    debian.shell("dpkg -i /stria.deb").succeed();
    let examples = console::examples(console::console_blocks(DOCUMENT));
    assert!(examples.len() > 80, "examples are missing");
    std::fs::write(debian.path("/session"), console::session(&examples)).expect("write");
    // Whatever it leaves running ends with it.
    let output =
        debian.shell("timeout --signal=KILL 300 unshare --pid --fork --kill-child --mount-proc bash /session").output();
    console::check_session("docs/operating.md", &examples, &output.stdout);
}
