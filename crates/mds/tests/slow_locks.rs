//! What the log says of changes that wait for locks for a long time.

use crate::common;

use std::time::{Duration, Instant};

use common::{caching::*, log::Log, *};

#[tokio::test]
async fn a_change_that_waits_for_a_second_names_the_client_and_what_it_has() {
    let (log, _guard) = Log::of_this_thread();
    let test = Test::new().await;
    let files = [test.fs.file(ROOT, "one").await, test.fs.file(ROOT, "two").await];
    let held = [test.stat(BOB, files[0]).await, test.stat(CAROL, files[1]).await];
    let begun = Instant::now();
    let first = test.begin(chmod(files[0], 0o600));
    test.holders.heard(1).await;
    let line = log.wait_for(&["a change has waited for a second or longer for locks"]).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "not before: {line}");
    let words = [format!("client={BOB}"), format!("inode={}", files[0]), "locks=1".into(), "left_out=0".into()];
    assert!(words.iter().all(|word| line.contains(word)), "{line}");
    let parts = line.split_once("parts=").expect("it says what is held").1.split(' ').next().unwrap();
    assert!(parts.split('|').any(|part| part == "attributes"), "{line}");
    // Another change waits for another client.
    let second = test.begin(chmod(files[1], 0o600));
    let line = log.wait_for(&[&format!("client={CAROL}")]).await;
    assert!(line.contains(&format!("inode={}", files[1])), "{line}");
    assert_eq!(log.lines(&["a change has waited"]).len(), 2, "each wait is logged once");
    for (client, granted) in [BOB, CAROL].into_iter().zip(held) {
        test.cancel(client, granted.iter().map(|granted| granted.handle).collect()).await;
    }
    for change in [first, second] {
        entry(change.await.unwrap().unwrap()).unwrap();
    }
}

#[tokio::test]
async fn a_change_that_waits_less_is_not_logged() {
    let (log, _guard) = Log::of_this_thread();
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let granted = test.stat(BOB, file).await;
    let change = test.begin(chmod(file, 0o600));
    test.holders.heard(1).await;
    let begun = Instant::now();
    test.cancel(BOB, granted.iter().map(|granted| granted.handle).collect()).await;
    entry(change.await.unwrap().unwrap()).unwrap();
    let is_quiet = log.lines(&["a change has waited"]).is_empty();
    assert!(is_quiet || begun.elapsed() >= Duration::from_secs(1));
}
