//! Whole images of an OST with a device, damaged at random from a seed: as the target `images`,
//! with more damage of each kind, and with a look at what was reached.

use std::{sync::mpsc, thread, time::Duration};

use fuzz::images::{OPERATION_BYTES, Outcome, ReadFault, Script, examine_with};
use rt::{Entropy, memory::SeededEntropy};

/// Scripts of a run.
const SCRIPTS: u64 = 240;
/// Far longer than one takes: it waits for something.
const PATIENCE: Duration = Duration::from_secs(60);

/// Examines on a thread of its own; an error is what it fails with. One that does not end is told
/// of.
fn attempt(script: &[u8], fault: Option<ReadFault>) -> Result<Outcome, String> {
    let (sender, outcome) = mpsc::channel();
    let input = script.to_vec();
    let worker = thread::spawn(move || {
        // Nobody waits any more if it took too long.
        let _ = sender.send(examine_with(&Script::new(&input), fault));
    });
    match outcome.recv_timeout(PATIENCE) {
        Ok(outcome) => Ok(outcome),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("an examination does not end: {script:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panicked = worker.join().expect_err("what ends without an outcome has panicked");
            Err(panicked.downcast_ref::<String>().cloned().unwrap_or_default())
        }
    }
}

fn examined(script: Vec<u8>) -> Outcome {
    attempt(&script, None).unwrap_or_else(|error| panic!("an examination fails on {script:?}: {error}"))
}

/// One to four operations on an image.
fn script(random: &SeededEntropy, image: u8) -> Vec<u8> {
    let operations = 1 + random.below(4) as usize;
    let mut script = vec![image];
    script.extend((0..operations * OPERATION_BYTES).map(|_| random.next_u64() as u8));
    script
}

#[test]
fn a_damaged_image_is_refused_or_read_right() {
    let random = SeededEntropy::new(crate::number("STRIA_FUZZ_SEED", crate::SEED));
    let scripts = SCRIPTS * crate::number("STRIA_FUZZ_FACTOR", 1);
    let outcomes: Vec<Outcome> = (0..scripts).map(|number| examined(script(&random, number as u8))).collect();
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    let reached = [
        ("only data damaged, and opened", count(|one| one.data_only && one.opened)),
        ("tables damaged, and opened", count(|one| !one.data_only && !one.sealed && one.opened)),
        ("tables damaged, and refused", count(|one| !one.data_only && !one.sealed && !one.opened)),
        ("damage with right checksums, and opened", count(|one| one.sealed && one.opened)),
        ("damage with right checksums, and refused", count(|one| one.sealed && !one.opened)),
        ("mapped and refused", count(|one| one.mapped && !one.opened)),
        ("blocks refused", count(|one| one.opened && one.blocks_refused > 0)),
        ("opened again", count(|one| one.reopened && one.new_data_read > 0)),
        ("scrubbed twice", count(|one| one.scrubs == 2)),
    ];
    println!("{reached:#?}");
    for (what, times) in reached {
        assert!(times > 0, "of {scripts} images none was: {what}");
    }
}

#[test]
fn an_image_without_damage_is_as_it_was_left() {
    for image in 0..4 {
        let outcome = examined(vec![image]);
        assert!(outcome.mapped && outcome.opened && outcome.reopened, "image {image}: {outcome:?}");
        assert_eq!((outcome.blocks_refused, outcome.scrubs), (0, 2), "image {image}: {outcome:?}");
        assert!(outcome.blocks_read > 500 && outcome.new_data_read >= 10, "image {image}: {outcome:?}");
    }
}

/// With a fault in reads, the same scripts must fail, and say why: otherwise that they pass without
/// shows nothing.
#[test]
fn faults_that_are_built_into_reads_are_found() {
    for fault in ReadFault::ALL {
        let random = SeededEntropy::new(crate::number("STRIA_FUZZ_SEED", crate::SEED));
        let fails = |number| attempt(&script(&random, number as u8), Some(fault)).err().map(|error| (number, error));
        let (number, error) = (0..SCRIPTS).find_map(fails).unwrap_or_else(|| panic!("nothing finds {fault:?}"));
        println!("{fault:?} is found by script {number}: {error}");
        assert!(error.contains("as it was written"), "{fault:?}: {error}");
    }
    // That nothing is compared shows only where something is damaged.
    assert_eq!(attempt(&[1], Some(ReadFault::NotCompared)), attempt(&[1], None));
}
