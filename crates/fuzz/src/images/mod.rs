//! Whole images of an OST with a device: what is on its devices is damaged, then the target is
//! labelled, mapped, opened, read, written, checked, scrubbed, stopped and opened again.
//!
//! An input is a script of damage ([`Script`]): which image, then operations of eight bytes. So an
//! input is short, and each of its bytes changes something.
//!
//! | file | what |
//! |---|---|
//! | `made` | the images, and what their objects held at any time |
//! | `script` | damage |
//! | `session` | a target in memory that is asked |
//! | `faults` | faults built into reads, which examinations must find |
//! | `examination` | what is done with a damaged image, and what must hold |
//!
//! What must hold depends on what was damaged ([`Trust`](examination::Trust)): nothing panics and
//! nothing waits for ever in any case, and what the examination itself writes is read again as it
//! was written, or is an error.
//!
//! - Only data, after a clean end: the target opens; what was not damaged is read as it was
//!   written, what was is an error that names the object.
//! - Tables as well: each block that is read is as it was at some time, or the read is an error.
//!   (The end of a journal can be lost without a trace, as in a power loss; so older states may
//!   return.)
//! - Records whose checksums were made right afterwards: no more than the above, because such
//!   records say what an attacker wants.
//!
//! Downside: the tables that are elsewhere than on the device are a cold store in memory, without
//! bytes of its own; only its records are damaged. The tree on the device is damaged as a whole.

pub mod examination;
mod faults;
mod made;
mod script;
mod session;

pub use self::{
    examination::{Outcome, examine, examine_with},
    faults::ReadFault,
    script::{OPERATION_BYTES, Script},
};
use crate::targets::FuzzTarget;

/// The fuzz target; see the module documentation.
pub fn images() -> FuzzTarget {
    let run = |input: &[u8]| {
        examine(&Script::new(input));
    };
    FuzzTarget { name: "images", inputs: 60, corpus, run, seal: None }
}

/// Damage of every kind to every image.
fn corpus() -> Vec<Vec<u8>> {
    let operations = |image: u8| {
        (0..script::KINDS).flat_map(move |kind| {
            (0..script::CLASSES).map(move |class| {
                let first = [kind * script::CLASSES + class, image, kind, class, 3, 0x10, 0x20, 0x5a];
                let second = [class, 7, image, 1, kind, 2, 0x30, 0x81];
                [&[image][..], &first, &second].concat()
            })
        })
    };
    (0..made::IMAGES as u8).flat_map(operations).collect()
}
