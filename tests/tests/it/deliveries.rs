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

// After the macro, which they use.
mod inbox;
mod prune;
mod retry;

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

async fn metrics(server: &Server) -> String {
    let url = format!("{}/metrics", server.url());
    Client::http1().get(&url).await.text
}
