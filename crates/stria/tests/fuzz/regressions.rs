//! Inputs that once made a target fail, each under the name of what was wrong.

use crate::targets;

#[test]
fn an_option_of_mount_that_is_no_ascii_letter_was_cut_within_a_character() {
    (targets::mount_options().run)("10.0.0.1:/stria /mnt -\u{e9}".as_bytes());
}
