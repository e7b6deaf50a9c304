//! The reference model agrees with a local file system: otherwise it could not judge StriaFS.

use lab::reference::{Generator, Local, Model, Operation, Shape};

fn compare(seed: u64, operations: usize) {
    // SAFETY: umask cannot fail; no other test of this binary creates files with modes.
    unsafe { libc::umask(0) };
    let place = tempfile::tempdir().unwrap();
    let (local, mut model) = (Local::new(place.path()), Model::new());
    let generator = Generator::new(seed, Shape::default());
    let mut history: Vec<Operation> = Vec::new();
    for _ in 0..operations {
        let operation = generator.operation();
        history.push(operation.clone());
        let (expected, actual) = (model.apply(&operation), local.apply(&operation));
        assert!(
            expected == actual,
            "seed {seed}, operation {}: {operation:?}\nmodel: {expected:?}\nlocal: {actual:?}",
            history.len()
        );
    }
}

#[test]
fn the_model_agrees_with_the_local_file_system() {
    for seed in 0..20 {
        compare(seed, 1500);
    }
}
