//! Payloads at rest, what waits, and how it is configured.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn sealed_payloads_open_with_their_key_and_no_other() {
    let (old, new) = ("ab".repeat(32), "cd".repeat(32));
    for place in Place::each().await {
        let case = place.name();
        let mut server = place.serve_durable().env("SEAL_KEY", &old).start();
        let name = guid();
        let body = format!("no JSON, and {name}-inside");
        let sent = signed(place.secret(), "issue_comment", &name, body.clone());
        let answer = Client::http1().deliver(&server.webhook(), &sent).await;
        assert_eq!(answer.is(), (202, "accepted"), "{case}");
        becomes(&place, &name, "dead").await;
        let log = server.process().stderr.text();
        assert!(!log.contains(&old), "{case}: {log}");
        drop(server);
        if place.database.is_none() {
            let kept: Vec<u8> = ["hookclaim.db", "hookclaim.db-wal"]
                .iter()
                .filter_map(|file| std::fs::read(place.path().join(file)).ok())
                .flatten()
                .collect();
            let holds = |text: &str| kept.windows(text.len()).any(|part| part == text.as_bytes());
            assert!(
                holds(&name) && !holds(&body),
                "the payload stands there unsealed"
            );
        }
        let open = |environment: &[(&str, &str)]| {
            let show = place.command(&["deliveries", "show", &name, "--payload"]);
            environment
                .iter()
                .fold(show, |show, (name, value)| show.env(name, value))
                .run()
        };
        assert_eq!(
            ok(open(&[("SEAL_KEY", &old)])).stdout,
            format!("{body}\n"),
            "{case}"
        );
        let rotated = open(&[("SEAL_KEY", &new), ("SEAL_KEY_PREVIOUS", &old)]);
        assert_eq!(ok(rotated).stdout, format!("{body}\n"), "{case}");
        for wrong in [&[][..], &[("SEAL_KEY", new.as_str())]] {
            let closed = open(wrong);
            assert_eq!(
                (closed.code, closed.stdout.as_str()),
                (Some(1), ""),
                "{case}"
            );
            assert!(
                closed.stderr.contains("not configured"),
                "{case}: {closed:?}"
            );
        }
        // Everything else about it can be seen.
        let shown = ok(run(&place, &["show", &name])).stdout;
        assert!(shown.contains("cannot be read"), "{case}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_its_limit_the_backlog_grows_no_more_and_is_measured() {
    for place in Place::each().await {
        let case = place.name();
        with_store!(place, store => {
            for name in ["a", "b", "c"] {
                enqueue(&store, github(name), name, "push", HOUR).await;
            }
        });
        let server = place.serve_durable().env("BACKLOG_LIMIT", "3").start();
        let sent = log_comment(&place.secret(), &guid(), 1);
        let answer = Client::http1().deliver(&server.webhook(), &sent).await;
        assert_eq!(answer.is(), (503, "unavailable"), "{case}");
        let expected = [
            "hookclaim_backlog_waiting 3",
            "hookclaim_backlog_leased 0",
            "hookclaim_backlog_overdue 0",
            "hookclaim_backlog_oldest_due_seconds 0",
            "hookclaim_rejected_total{reason=\"backlog\"} 1",
            "mode=\"durable\"",
        ];
        eventually("the gauges are set", || async {
            let metrics = metrics(&server).await;
            let all = expected.iter().all(|line| metrics.contains(line));
            all.then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_inbox_is_told_at_once_and_keys_are_not_quoted() {
    let place = Place::sqlite();
    let finished = place
        .serve_durable()
        .env("MODE", "sometimes")
        .env("WORKERS", "0")
        .env("RETENTION", "6d")
        .env("RETENTION_DEAD", "long")
        .env("RETENTION_PAYLOAD", "-1d")
        .env("PRUNE_EVERY", "daily")
        .env("POLL_INTERVAL", "0s")
        .env("BACKLOG_LIMIT", "-1")
        .env("DANGEROUSLY_SHORT_RETENTION", "perhaps")
        .env("SEAL_KEY", "hunter2hunter2")
        .env("SEAL_KEY_PREVIOUS_FILE", "nowhere")
        .run();
    assert_eq!(finished.code, Some(2), "{finished:?}");
    for name in [
        "HOOKCLAIM_MODE",
        "HOOKCLAIM_WORKERS",
        "HOOKCLAIM_RETENTION: ",
        "HOOKCLAIM_RETENTION_DEAD",
        "HOOKCLAIM_RETENTION_PAYLOAD",
        "HOOKCLAIM_PRUNE_EVERY",
        "HOOKCLAIM_POLL_INTERVAL",
        "HOOKCLAIM_BACKLOG_LIMIT",
        "HOOKCLAIM_DANGEROUSLY_SHORT_RETENTION",
        "HOOKCLAIM_SEAL_KEY: ",
        "HOOKCLAIM_SEAL_KEY_PREVIOUS_FILE",
        "nowhere",
    ] {
        assert!(
            finished.stderr.contains(name),
            "{name}: {}",
            finished.stderr
        );
    }
    assert!(!finished.stderr.contains("hunter2"), "{}", finished.stderr);
}
