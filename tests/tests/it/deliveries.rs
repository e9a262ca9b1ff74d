//! `hookclaim deliveries`, as operators use it: on what a store holds, and beside a server that runs.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use hookclaim::{
    Acquire, BusinessKey, Claim, ClaimKey, DeliveryId, DeliveryStore, DurableStore, Enqueue,
    EventName, Failure, LeasePolicy, PostgresStore, Source, SqliteStore, StoredRequest,
};
use hookclaim_tests::eventually;
use hookclaim_tests::http::{Client, guid, signed};
use hookclaim_tests::process::{Finished, Server};

use crate::place::{Place, log_comment, ok};

/// What is in the payload of every delivery that is stored here.
const BODY: &str = "{\"marker\":\"pa-y1oad\"}\r\n";

const HOUR: Duration = Duration::from_secs(3600);

/// Runs the same on the store of a place, whichever it is.
macro_rules! with_store {
    ($place:expr, $store:ident => $work:expr) => {
        match &$place.database {
            None => {
                let file = $place.path().join("hookclaim.db");
                let $store = SqliteStore::open(file).await.expect("it opens");
                $store.migrate().await.expect("tables");
                $work
            }
            Some(url) => {
                let $store = PostgresStore::connect(url).await.expect("it connects");
                $store.migrate().await.expect("tables");
                $work
            }
        }
    };
}

fn id(name: &str) -> DeliveryId {
    DeliveryId::new(name).expect("an id")
}

fn event(name: &str) -> EventName {
    EventName::new(name).expect("an event")
}

fn github(name: &str) -> ClaimKey {
    ClaimKey::delivery(Source::default(), &id(name))
}

fn keeping() -> LeasePolicy {
    LeasePolicy::default().lease(HOUR).keep_payload(true)
}

/// Stores a delivery.
async fn enqueue(store: &impl DurableStore, key: ClaimKey, name: &str, of: &str, delay: Duration) {
    let work = Enqueue::work(key, id(name), event(of), StoredRequest::new(BODY));
    let work = work.action(Some("created")).delay(delay);
    store.enqueue(work).await.expect("it is stored");
}

/// Stores a delivery and begins it: nothing else is due here.
async fn begin(store: &impl DurableStore, name: &str, of: &str) -> hookclaim::Held {
    enqueue(store, github(name), name, of, Duration::ZERO).await;
    let acquire = Acquire::new(Source::default(), 10, keeping());
    let mut started = store.acquire(acquire).await.expect("it is taken").started;
    assert_eq!(started.len(), 1, "{name} alone is due");
    started.remove(0).held
}

/// Claims a delivery within its request, so that no payload is stored.
async fn claim(store: &impl DeliveryStore, name: &str, policy: LeasePolicy) -> hookclaim::Held {
    let claim = Claim::bare(github(name), id(name), event("issue_comment"), policy);
    store
        .claim(claim)
        .await
        .expect("decided")
        .won()
        .expect("it is new")
}

/// One delivery of every kind, named after what it is.
async fn fill(store: &impl DurableStore) {
    let held = begin(store, "dead", "issue_comment").await;
    let error = Failure::permanent("the ledger said No");
    store.fail(&held, &error).await.expect("it is noted");
    let held = begin(store, "failed", "push").await;
    let error = Failure::transient("timed out", HOUR);
    store.fail(&held, &error).await.expect("it is noted");
    let held = begin(store, "completed", "issue_comment").await;
    store.complete(&held).await.expect("it is noted");
    enqueue(store, github("waiting"), "waiting", "push", HOUR).await;
    let held = claim(store, "inline-dead", keeping()).await;
    let error = Failure::permanent("not JSON");
    store.fail(&held, &error).await.expect("it is noted");
    let held = claim(store, "inline-completed", keeping()).await;
    store.complete(&held).await.expect("it is noted");
    let _ = claim(store, "running", keeping()).await;
    let commit = || {
        let key = BusinessKey::new().text("octo-org/atelier").text("6dcb09b5");
        ClaimKey::business(Source::new("deploy").expect("a source"), &key)
    };
    for name in ["deploy-1", "deploy-2"] {
        enqueue(store, commit(), name, "push", HOUR).await;
    }
}

async fn filled() -> [Place; 2] {
    let places = Place::each().await;
    for place in &places {
        with_store!(place, store => fill(&store).await);
    }
    places
}

const ALL: [&str; 9] = [
    "dead",
    "failed",
    "completed",
    "waiting",
    "inline-dead",
    "inline-completed",
    "running",
    "deploy-1",
    "deploy-2",
];

fn run(place: &Place, arguments: &[&str]) -> Finished {
    let arguments: Vec<_> = ["deliveries"].iter().chain(arguments).copied().collect();
    place.command(&arguments).run()
}

/// The rows that a command prints as JSON, which it does whether it succeeds or not.
fn rows(finished: &Finished) -> Vec<Value> {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

fn ids(finished: &Finished) -> Vec<String> {
    let id = |row: &Value| row["delivery_id"].as_str().expect("it has one").to_owned();
    rows(finished).iter().map(id).collect()
}

fn show(place: &Place, name: &str) -> Value {
    rows(&ok(run(place, &["show", name, "--json"]))).remove(0)
}

fn state(place: &Place, name: &str) -> String {
    show(place, name)["state"]
        .as_str()
        .expect("it has one")
        .to_owned()
}

/// Waits until a delivery is in this state.
async fn becomes(place: &Place, name: &str, expected: &str) -> Value {
    eventually(&format!("{name} is {expected}"), || async {
        let listed = run(
            place,
            &["list", "--delivery", name, "--state", expected, "--json"],
        );
        (!rows(&ok(listed)).is_empty()).then(|| show(place, name))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_are_found_by_what_operators_know_of_them() {
    for place in filled().await {
        let case = place.name();
        type Found<'a> = &'a [&'a str];
        let found: [(&[&str], Found<'_>); 16] = [
            (&[], &ALL),
            (&["--state", "dead"], &["dead", "inline-dead"]),
            (
                &["--state", "dead", "--state", "failed"],
                &["dead", "inline-dead", "failed"],
            ),
            (&["--state", "processing"], &["running"]),
            (&["--state", "received", "--source", "github"], &["waiting"]),
            (&["--event", "push", "--state", "failed"], &["failed"]),
            (&["--source", "deploy"], &["deploy-1", "deploy-2"]),
            (&["--delivery", "deploy-2"], &["deploy-2"]),
            (&["--error", "permanent"], &["dead", "inline-dead"]),
            (&["--error", "said no"], &["dead"]),
            (&["--error", "100%"], &[]),
            (&["--older-than", "1h"], &[]),
            (&["--newer-than", "1h"], &ALL),
            (&["--newer-than", "7d", "--older-than", "1h"], &[]),
            (&["--event", "star"], &[]),
            (&["--source", "elsewhere"], &[]),
        ];
        for (filters, expected) in found {
            let arguments = [&["list", "--json"], filters].concat();
            let listed: BTreeSet<_> = ids(&ok(run(&place, &arguments))).into_iter().collect();
            let expected = expected.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(listed, expected, "{case}: {filters:?}");
        }
        let covered = rows(&ok(run(
            &place,
            &["list", "--delivery", "deploy-2", "--json"],
        )));
        assert_eq!(covered[0]["covered_by"], "deploy-1", "{case}");
        assert_eq!(covered[0]["state"], "received", "{case}");
        let table = ok(run(&place, &["list"])).stdout;
        let line = table
            .lines()
            .find(|line| line.contains("deploy-2"))
            .unwrap();
        assert!(line.contains("deploy-1"), "{case}: {table}");
        assert!(!table.contains("marker"), "{case}: {table}");

        for wrong in [
            &["--older-than", "soon"][..],
            &["--older-than", "7d", "--newer-than", "1h"],
            &["--state", "gone"],
            &["--source", " "],
            &["--limit", "5", "--all"],
        ] {
            let finished = run(&place, &[&["list"], wrong].concat());
            assert_eq!(finished.code, Some(2), "{case}: {finished:?}");
            assert!(finished.stderr.contains(wrong[0]), "{case}: {finished:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_read_page_by_page_and_never_cut_without_a_word() {
    const MANY: usize = 1100;
    for place in Place::each().await {
        let case = place.name();
        let names: Vec<_> = (0..MANY).map(|at| format!("d-{at}")).collect();
        with_store!(place, store => {
            let claim = |name: &String| {
                Claim::bare(github(name), id(name), event("push"), keeping())
            };
            let claims = names.iter().map(claim).collect();
            let _ = store.claim_many(claims).await.expect("decided");
        });
        let json = |arguments: &[&str]| ok(run(&place, &[&["list", "--json"], arguments].concat()));
        for all in [&[][..], &["--all"], &["--limit", "0"], &["--limit", "1100"]] {
            let listed = json(all);
            let found = ids(&listed);
            assert_eq!(found.len(), MANY, "{case}: {all:?}");
            let found: BTreeSet<_> = found.iter().collect();
            assert_eq!(found, names.iter().collect(), "{case}: {all:?}");
            assert!(!listed.stderr.contains("there are more"), "{case}: {all:?}");
        }
        let some = json(&["--limit", "600"]);
        assert_eq!(ids(&some).len(), 600, "{case}");
        assert!(some.stderr.contains("there are more"), "{case}: {some:?}");
        let table = ok(run(&place, &["list"]));
        assert_eq!(table.stdout.lines().count(), 51, "{case}");
        assert!(table.stderr.contains("--all"), "{case}: {table:?}");
        let table = ok(run(&place, &["list", "--all"]));
        assert_eq!(table.stdout.lines().count(), MANY + 1, "{case}");
        assert_eq!(table.stdout.matches("RECEIVED").count(), 1, "{case}");
        let none = ok(run(&place, &["list", "--event", "star"]));
        assert_eq!(none.stdout.lines().count(), 1, "{case}: {none:?}");
        assert_eq!(json(&["--event", "star"]).stdout, "[]\n", "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_delivery_is_shown_whole_and_its_payload_only_on_request() {
    for place in filled().await {
        let case = place.name();
        let shown = ok(run(&place, &["show", "dead"])).stdout;
        for part in [
            "issue_comment",
            "created",
            "permanent",
            "the ledger said No",
            "stored, 23 bytes",
        ] {
            assert!(shown.contains(part), "{case}: {part} in {shown}");
        }
        let as_json = show(&place, "dead");
        assert_eq!(as_json["payload_bytes"], BODY.len(), "{case}");
        assert_eq!(as_json["payload_stored"], true, "{case}");
        assert_eq!(as_json["audit"], serde_json::json!([]), "{case}");
        for text in [shown, as_json.to_string()] {
            assert!(!text.contains("marker"), "{case}: {text}");
        }
        let payload = ok(run(&place, &["show", "dead", "--payload"]));
        assert_eq!(payload.stdout, BODY, "{case}");
        let payload = ok(run(&place, &["show", "dead", "--payload", "--json"]));
        assert_eq!(rows(&payload)[0]["payload"], BODY, "{case}");

        assert_eq!(
            show(&place, "inline-dead")["payload_stored"],
            false,
            "{case}"
        );
        let none = run(&place, &["show", "inline-dead", "--payload"]);
        assert_eq!((none.code, none.stdout.as_str()), (Some(1), ""), "{case}");
        assert!(
            none.stderr.contains("no payload of `inline-dead`"),
            "{case}: {none:?}"
        );

        let work = show(&place, "deploy-1");
        assert_eq!(
            work["covers"][0]["delivery_id"], "deploy-2",
            "{case}: {work}"
        );
        assert_eq!(
            work["covers"].as_array().unwrap().len(),
            1,
            "{case}: {work}"
        );
        let covered = show(&place, "deploy-2");
        assert_eq!(covered["covered_by"], "deploy-1", "{case}: {covered}");
        let by = &covered["covered_by_work"];
        assert_eq!(by["delivery_id"], "deploy-1", "{case}: {covered}");
        let text = ok(run(&place, &["show", "deploy-2"])).stdout;
        assert!(text.contains("deploy-1"), "{case}: {text}");
        let key = work["key"].as_str().unwrap();
        let by_key = ok(run(&place, &["show", key, "--source", "deploy", "--json"]));
        assert_eq!(ids(&by_key), ["deploy-1"], "{case}");

        for missing in [
            &["show", "no-such-id"][..],
            &["show", "dead", "--source", "elsewhere"],
        ] {
            let finished = run(&place, missing);
            assert_eq!(finished.code, Some(1), "{case}: {finished:?}");
            assert!(finished.stderr.contains(missing[1]), "{case}: {finished:?}");
        }
    }
}

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

async fn metrics(server: &Server) -> String {
    let url = format!("{}/metrics", server.url());
    Client::http1().get(&url).await.text
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
