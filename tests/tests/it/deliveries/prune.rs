//! Forgetting.

use super::*;

// F8
#[tokio::test(flavor = "multi_thread")]
async fn pruning_forgets_only_what_is_finished_and_past_its_window() {
    for place in filled().await {
        let case = place.name();
        let listed = || -> BTreeSet<String> {
            ids(&ok(run(&place, &["list", "--json"])))
                .into_iter()
                .collect()
        };
        let short = run(&place, &["prune", "--retention", "1d"]);
        assert_eq!(short.code, Some(2), "{case}: {short:?}");
        assert!(
            short.stderr.contains("dangerously-short-retention"),
            "{case}: {short:?}"
        );
        let young = ok(run(&place, &["prune"])).stdout;
        assert_eq!(young, "0 records forgotten, 0 payloads dropped\n", "{case}");
        assert_eq!(listed().len(), ALL.len(), "{case}");

        let payloads = ok(run(
            &place,
            &["prune", "--retention-payload", "0s", "--json"],
        ));
        assert_eq!(
            rows(&payloads),
            [serde_json::json!({"records": 0, "payloads": 1})],
            "{case}"
        );
        for (name, stored) in [("completed", false), ("dead", true), ("failed", true)] {
            assert_eq!(
                show(&place, name)["payload_stored"],
                stored,
                "{case}: {name}"
            );
        }
        let now = [
            "prune",
            "--dangerously-short-retention",
            "--retention",
            "0s",
        ];
        let finished = ok(run(&place, &now));
        assert!(
            finished.stdout.starts_with("2 records"),
            "{case}: {finished:?}"
        );
        assert!(
            finished.stderr.contains("is done again"),
            "{case}: {finished:?}"
        );
        let dead = ok(run(&place, &["prune", "--retention-dead", "0s"]));
        assert!(dead.stdout.starts_with("2 records"), "{case}: {dead:?}");
        let left: Vec<_> = listed().into_iter().collect();
        assert_eq!(
            left,
            ["deploy-1", "deploy-2", "failed", "running", "waiting"],
            "{case}"
        );
    }
}

// F8
#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_step_is_pruned_by_the_command_and_by_the_server() {
    const MANY: usize = 1100;
    for place in Place::each().await {
        let case = place.name();
        for by_server in [false, true] {
            with_store!(place, store => {
                let claim = |at| {
                    let name = format!("d-{by_server}-{at}");
                    Claim::bare(github(&name), id(&name), event("push"), keeping())
                };
                let claims = (0..MANY).map(claim).collect();
                for outcome in store.claim_many(claims).await.expect("decided") {
                    let held = outcome.won().expect("it is new");
                    store.complete(&held).await.expect("it is noted");
                }
            });
            if by_server {
                let server = place
                    .serve_durable()
                    .env("DANGEROUSLY_SHORT_RETENTION", "true")
                    .env("RETENTION", "0s")
                    .env("PRUNE_EVERY", "1s")
                    .start();
                eventually("they are forgotten", || async {
                    let left = ids(&ok(run(&place, &["list", "--limit", "1", "--json"])));
                    left.is_empty().then_some(())
                })
                .await;
                let metric = format!("hookclaim_pruned_total{{what=\"records\"}} {MANY}\n");
                eventually("they are counted", || async {
                    metrics(&server).await.contains(&metric).then_some(())
                })
                .await;
            } else {
                let now = [
                    "prune",
                    "--dangerously-short-retention",
                    "--retention",
                    "0s",
                ];
                let pruned = ok(run(&place, &now));
                assert!(
                    pruned.stdout.starts_with("1100 records"),
                    "{case}: {pruned:?}"
                );
            }
        }
    }
}
