//! The demo, as anybody runs it first.

use crate::harness::program::run;

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_plays_to_its_end_and_shows_the_error_of_the_run_that_waited_in_vain() {
    let played = run(&["demo"], &[]).await;
    assert_eq!(played.code, Some(0), "{played:#?}");
    assert!(played.stdout.contains("no worker matched the selector {zone: c} within 3s"), "{}", played.stdout);
    assert!(played.stdout.contains("All as promised."), "{}", played.stdout);
    let folder = played.stdout.lines().next().and_then(|line| line.split_once(" in ")).map(|(_, folder)| folder);
    assert!(!std::path::Path::new(folder.unwrap()).exists(), "its database is gone afterwards");
}
