//! Running a delivery again.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn retrying_tells_what_happened_to_each() {
    for place in filled().await {
        let case = place.name();
        let retry = |arguments: &[&str]| {
            let common = [
                "retry",
                "--json",
                "--actor",
                "mirela",
                "--reason",
                "it was down",
            ];
            run(&place, &[&common, arguments].concat())
        };
        let results = |finished: &Finished| -> Vec<String> {
            let result = |row: &Value| row["result"].as_str().unwrap().to_owned();
            rows(finished).iter().map(result).collect()
        };
        let told = retry(&["dead", "inline-dead", "failed", "dead", "deploy-2"]);
        assert_eq!(told.code, Some(0), "{case}: {told:?}");
        assert_eq!(
            results(&told),
            ["due", "awaits_redelivery", "due", "due"],
            "{case}: each once"
        );
        assert_eq!(rows(&told)[3]["delivery_id"], "deploy-1", "{case}");
        assert_eq!(rows(&told)[3]["covers"], "deploy-2", "{case}");
        assert_eq!(state(&place, "dead"), "received", "{case}");
        assert_eq!(state(&place, "inline-dead"), "failed", "{case}");
        let audit = &show(&place, "dead")["audit"];
        assert_eq!(audit.as_array().unwrap().len(), 1, "{case}: {audit}");
        assert_eq!(audit[0]["actor"], "mirela", "{case}");
        assert_eq!(audit[0]["reason"], "it was down", "{case}");
        assert_eq!(audit[0]["action"], "retry", "{case}");

        let told = retry(&["running", "completed", "nowhere", "failed"]);
        assert_eq!(told.code, Some(1), "{case}: {told:?}");
        assert_eq!(
            results(&told),
            ["in_progress", "completed", "unknown", "due"],
            "{case}"
        );
        assert!(told.stderr.contains("3 of 4"), "{case}: {told:?}");
        assert_eq!(state(&place, "completed"), "completed", "{case}");
        assert_eq!(
            show(&place, "completed")["audit"],
            serde_json::json!([]),
            "{case}"
        );
        let text = run(&place, &["retry", "completed", "inline-completed"]);
        assert_eq!(
            text.stdout.matches("--force").count(),
            2,
            "{case}: {text:?}"
        );

        let told = retry(&["completed", "inline-completed", "--force"]);
        assert_eq!(told.code, Some(0), "{case}: {told:?}");
        assert_eq!(results(&told), ["due", "awaits_redelivery"], "{case}");
        assert_eq!(
            show(&place, "completed")["audit"][0]["action"],
            "force",
            "{case}"
        );
        let by_user = ok(run(&place, &["retry", "completed"]));
        assert!(
            by_user.stdout.contains("a worker runs it"),
            "{case}: {by_user:?}"
        );
        let audit = &show(&place, "completed")["audit"];
        assert!(
            !audit[1]["actor"].as_str().unwrap().is_empty(),
            "{case}: {audit}"
        );
        let shown = ok(run(&place, &["show", "completed"])).stdout;
        assert!(
            shown.contains("force by mirela: it was down"),
            "{case}: {shown}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_retried_by_filter_and_none_by_accident() {
    for place in filled().await {
        let case = place.name();
        let nothing = run(&place, &["retry"]);
        assert_eq!(nothing.code, Some(2), "{case}: {nothing:?}");
        assert!(
            nothing.stderr.contains("--state dead"),
            "{case}: {nothing:?}"
        );
        let both = run(&place, &["retry", "dead", "--state", "dead"]);
        assert_eq!(both.code, Some(2), "{case}: {both:?}");
        let blank = run(&place, &["retry", "dead", "--actor", " "]);
        assert_eq!(blank.code, Some(2), "{case}: {blank:?}");

        let dead = ["retry", "--state", "dead", "--error", "said no", "--json"];
        assert_eq!(ids(&ok(run(&place, &dead))), ["dead"], "{case}");
        assert_eq!(
            ids(&ok(run(&place, &dead))),
            [""; 0],
            "{case}: it is dead no more"
        );
        // Without a state: what is dead or failed, and nothing else.
        let rest = ok(run(
            &place,
            &["retry", "--newer-than", "1h", "--force", "--json"],
        ));
        let rest: BTreeSet<_> = ids(&rest).into_iter().collect();
        assert_eq!(
            rest.iter().map(String::as_str).collect::<Vec<_>>(),
            ["failed", "inline-dead"],
            "{case}"
        );
        let running = run(&place, &["retry", "--state", "processing"]);
        assert_eq!(running.code, Some(1), "{case}: {running:?}");
        let none = ok(run(&place, &["retry", "--event", "star"]));
        assert!(
            none.stdout.contains("no delivery passes"),
            "{case}: {none:?}"
        );
    }
}

// D12
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_runs_a_completed_delivery_again_and_a_redelivery_does_not() {
    for place in Place::each().await {
        let case = place.name();
        let server = place.serve_durable().start();
        let client = Client::http1();
        let name = guid();
        let sent = log_comment(&place.secret(), &name, 1);
        let answer = client.deliver(&server.webhook(), &sent).await;
        assert_eq!(answer.is(), (202, "accepted"), "{case}");
        let first = becomes(&place, &name, "completed").await;
        let answer = client.deliver(&server.webhook(), &sent).await;
        assert_eq!(answer.is(), (200, "duplicate"), "{case}");
        assert_eq!(show(&place, &name)["fence"], first["fence"], "{case}");

        let refused = run(&place, &["retry", &name]);
        assert_eq!(refused.code, Some(1), "{case}: {refused:?}");
        assert!(refused.stdout.contains("--force"), "{case}: {refused:?}");
        ok(run(
            &place,
            &[
                "retry",
                &name,
                "--force",
                "--actor",
                "amir",
                "--reason",
                "lost its reply",
            ],
        ));
        let again = eventually("it ran again", || async {
            let shown = show(&place, &name);
            (shown["state"] == "completed" && shown["fence"] != first["fence"]).then_some(shown)
        })
        .await;
        assert_eq!(again["attempts"], 1, "{case}: {again}");
        assert_eq!(again["audit"][0]["actor"], "amir", "{case}: {again}");
        assert_eq!(again["audit"][0]["action"], "force", "{case}: {again}");
        assert_eq!(
            place.report().len(),
            1,
            "{case}: the ledger knows the comment"
        );
    }
}

// D12
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_runs_a_dead_delivery_again() {
    for place in Place::each().await {
        let case = place.name();
        let server = place.serve_durable().start();
        let name = guid();
        let sent = signed(place.secret(), "issue_comment", &name, "not JSON");
        let answer = Client::http1().deliver(&server.webhook(), &sent).await;
        assert_eq!(answer.is(), (202, "accepted"), "{case}");
        let first = becomes(&place, &name, "dead").await;
        assert_eq!(first["error_class"], "permanent", "{case}: {first}");
        let again = Client::http1().deliver(&server.webhook(), &sent).await;
        assert_eq!(again.is(), (202, "dead"), "{case}");

        let told = ok(run(
            &place,
            &["retry", "--state", "dead", "--reason", "mended"],
        ));
        assert!(told.stdout.starts_with(&name), "{case}: {told:?}");
        let second = eventually("it ran again", || async {
            let shown = show(&place, &name);
            (shown["state"] == "dead" && shown["fence"] != first["fence"]).then_some(shown)
        })
        .await;
        assert_eq!(second["attempts"], 1, "{case}: {second}");
        assert_eq!(second["audit"][0]["reason"], "mended", "{case}: {second}");
        let payload = ok(run(&place, &["show", &name, "--payload"]));
        assert_eq!(payload.stdout, "not JSON\n", "{case}");
    }
}

// D12, where nothing but a redelivery can run it
#[tokio::test(flavor = "multi_thread")]
async fn without_a_payload_a_retry_waits_for_the_redelivery() {
    for place in Place::each().await {
        let case = place.name();
        let server = place.serve().start();
        let client = Client::http1();
        let name = guid();
        let sent = log_comment(&place.secret(), &name, 1);
        let deliver = async || client.deliver(&server.webhook(), &sent).await;
        assert_eq!(deliver().await.is(), (200, "completed"), "{case}");
        assert_eq!(deliver().await.is(), (200, "duplicate"), "{case}");
        let told = ok(run(&place, &["retry", "--force", &name]));
        assert!(
            told.stdout
                .contains("no payload is stored; redeliver it from GitHub"),
            "{case}: {told:?}"
        );
        assert_eq!(deliver().await.is(), (200, "completed"), "{case}");
        assert_eq!(deliver().await.is(), (200, "duplicate"), "{case}");
        assert_eq!(show(&place, &name)["fence"], 2, "{case}");
        assert_eq!(place.report().len(), 1, "{case}");
    }
}
