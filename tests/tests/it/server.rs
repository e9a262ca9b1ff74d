//! The server, as the people who use and operate it meet it: the real binary, its commands and its signals.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use tokio::task::JoinSet;

use hookclaim::header;
use hookclaim::testing::sign;
use hookclaim_tests::fixtures;
use hookclaim_tests::http::{Client, RawConnection, Signed, guid, raw, signed, trickle};
use hookclaim_tests::postgres::PgCluster;
use hookclaim_tests::process::{Hookclaim, Server};
use hookclaim_tests::{DEADLINE, eventually};

use crate::place::{Place, SECRET, fixture, log_comment, ok};

const MIB: usize = 1024 * 1024;
// Issue 2, at its end, 1
#[tokio::test(flavor = "multi_thread")]
async fn a_comment_is_booked_once_across_redelivery_and_restart() {
    for place in Place::each().await {
        let case = place.name();
        let file = fixture("issue_comment.created.json");
        let file = file.to_str().unwrap();
        let id = guid();
        let send = |server: &Server| {
            let arguments = ["send", file, "--delivery", &id, "--url", &server.webhook()];
            ok(place.command(&arguments).run()).stdout
        };
        let server = place.serve().start();
        assert!(send(&server).starts_with("200 completed\n"), "{case}");
        assert!(send(&server).starts_with("200 duplicate\n"), "{case}");
        let report = ok(place.command(&["report"]).run()).stdout;
        assert_eq!(report.matches("1h30m").count(), 1, "{case}: {report}");
        drop(server);

        let server = place.serve().start();
        assert!(
            send(&server).starts_with("200 duplicate\n"),
            "{case} after a restart"
        );
        let entries = place.report();
        assert_eq!(entries.len(), 1, "{case}: {entries:?}");
        assert_eq!(entries[0]["duration_minutes"], 90, "{case}");
        assert_eq!(entries[0]["description"], "pairing", "{case}");

        let listed = ok(place.command(&["deliveries", "list", "--json"]).run()).stdout;
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), 1, "{case}");
        let shown = ok(place.command(&["deliveries", "show", &id, "--json"]).run()).stdout;
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        for (field, value) in listed[0].as_object().unwrap() {
            assert_eq!(&shown[0][field], value, "{case}: {field}");
        }
        assert_eq!(shown[0]["state"], "completed", "{case}");
        assert_eq!(shown[0]["attempts"], 1, "{case}");
        assert_eq!(shown[0]["event"], "issue_comment", "{case}");
        assert_eq!(shown[0]["action"], "created", "{case}");
        let missing = place.command(&["deliveries", "show", "no-such-id"]).run();
        assert_eq!(missing.code, Some(1), "{case}: {missing:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_directory_is_all_the_configuration_there_is() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::sqlite();
    let mut server = place.serve().start();
    let said = server.process().stdout.text();
    for name in ["hookclaim.db", "hookclaim.secret"] {
        let path = place.path().canonicalize().unwrap().join(name);
        assert!(
            said.contains(path.to_str().unwrap()),
            "{name} by its whole path: {said}"
        );
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert!(!said.contains(&place.secret()));
    let client = Client::http1();
    for (page, status) in [
        ("healthz", 200),
        ("readyz", 200),
        ("metrics", 200),
        ("nowhere", 404),
    ] {
        let answer = client.get(&format!("{}/{page}", server.url())).await;
        assert_eq!(answer.status, status, "{page}");
    }
    // Both spellings of the path, and HTTP/2.
    let sent = |id: u64| log_comment(&place.secret(), &guid(), id);
    let slash = format!("{}/", server.webhook());
    assert_eq!(
        client.deliver(&server.webhook(), &sent(1)).await.is(),
        (200, "completed")
    );
    assert_eq!(
        client.deliver(&slash, &sent(2)).await.is(),
        (200, "completed")
    );
    let answer = Client::http2().deliver(&server.webhook(), &sent(3)).await;
    assert_eq!(answer.is(), (200, "completed"));
    let ping = signed(place.secret(), "ping", &guid(), fixtures::ping());
    assert_eq!(
        client.deliver(&server.webhook(), &ping).await.is(),
        (200, "pong")
    );
    let star = signed(place.secret(), "star", &guid(), "{}");
    assert_eq!(
        client.deliver(&server.webhook(), &star).await.is(),
        (204, "ignored")
    );
}

// A8, and what operators are told
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_configuration_is_told_at_once_with_exit_code_2() {
    let place = Place::sqlite();
    let postgres = PgCluster::shared().fresh_database().await;
    let blank = place.path().join("blank");
    std::fs::write(&blank, " \n").unwrap();
    let blank = blank.to_str().unwrap();
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);
    let rows: [Row<'_>; 8] = [
        (
            "empty secret",
            &[("WEBHOOK_SECRET", "")],
            &["HOOKCLAIM_WEBHOOK_SECRET"],
        ),
        (
            "blank secret",
            &[("WEBHOOK_SECRET", " \t")],
            &["HOOKCLAIM_WEBHOOK_SECRET"],
        ),
        (
            "blank secret file",
            &[("WEBHOOK_SECRET_FILE", blank)],
            &["HOOKCLAIM_WEBHOOK_SECRET_FILE"],
        ),
        (
            "no secret file",
            &[("WEBHOOK_SECRET_FILE", "nowhere")],
            &["HOOKCLAIM_WEBHOOK_SECRET_FILE", "nowhere"],
        ),
        (
            "Postgres without a secret",
            &[("DATABASE_URL", &postgres)],
            &["HOOKCLAIM_WEBHOOK_SECRET"],
        ),
        (
            "another database",
            &[("DATABASE_URL", "mysql://x")],
            &["HOOKCLAIM_DATABASE_URL"],
        ),
        (
            "no duration",
            &[("LEASE", "soon")],
            &["HOOKCLAIM_LEASE", "soon"],
        ),
        (
            "everything",
            &[
                ("LISTEN", "somewhere"),
                ("TIMEZONE", "Mars/Olympus"),
                ("BODY_LIMIT", "much"),
                ("WEBHOOK_SECRET", ""),
                ("LOG_FORMAT", "verse"),
            ],
            &[
                "HOOKCLAIM_LISTEN",
                "HOOKCLAIM_TIMEZONE",
                "HOOKCLAIM_BODY_LIMIT",
                "HOOKCLAIM_WEBHOOK_SECRET",
                "HOOKCLAIM_LOG_FORMAT",
            ],
        ),
    ];
    for (case, environment, named) in rows {
        let serve = Hookclaim::serve(place.path());
        let serve = environment
            .iter()
            .fold(serve, |serve, (name, value)| serve.env(name, value));
        let finished = serve.run();
        assert_eq!(finished.code, Some(2), "{case}: {finished:?}");
        for name in named {
            assert!(
                finished.stderr.contains(name),
                "{case}: {name} in {}",
                finished.stderr
            );
        }
        assert!(!finished.stdout.contains("listening"), "{case}");
    }
    let usage = Hookclaim::new(place.path(), &["dance"]).run();
    assert_eq!(usage.code, Some(2));
}

// A7, A13
#[tokio::test(flavor = "multi_thread")]
async fn secret_files_lose_one_line_end_with_one_warning_and_rotate() {
    let client = Client::http1();
    for (case, end, warnings) in [
        ("as it is", "", 0),
        ("line feed", "\n", 1),
        ("carriage return", "\r\n", 1),
    ] {
        let place = Place::sqlite();
        let file = place.path().join("new-secret");
        std::fs::write(&file, format!(" new, with  spaces {end}")).unwrap();
        let mut server = place
            .serve()
            .env("WEBHOOK_SECRET_FILE", &file)
            .env("WEBHOOK_SECRET_PREVIOUS", "the old, with a comma")
            .start();
        for (secret, answer) in [
            (" new, with  spaces ", (200, "completed")),
            ("the old, with a comma", (200, "completed")),
            ("new, with  spaces", (401, "rejected")),
            ("the old", (401, "rejected")),
        ] {
            let sent = log_comment(secret, &guid(), u64::from(answer.0) + secret.len() as u64);
            assert_eq!(
                client.deliver(&server.webhook(), &sent).await.is(),
                answer,
                "{case}, {secret:?}"
            );
        }
        let metrics = client.get(&format!("{}/metrics", server.url())).await.text;
        for name in ["current", "previous"] {
            assert!(
                metrics.contains(&format!("secret=\"{name}\"")),
                "{case}: {metrics}"
            );
        }
        let log = server.process().stderr.text();
        assert_eq!(log.matches("line end").count(), warnings, "{case}: {log}");
    }
}

// A14, C3
#[tokio::test(flavor = "multi_thread")]
async fn neither_logs_nor_metrics_nor_answers_tell_what_is_secret_or_unbounded() {
    for mode in ["durable", "inline"] {
        let place = Place::sqlite();
        tells_nothing(&place, place.serve().env("MODE", mode)).await;
    }
}

async fn tells_nothing(place: &Place, serve: Hookclaim) {
    let secret = format!("s3cret-{}", guid());
    let key = guid().replace('-', "").repeat(2);
    let mut server = serve
        .env("WEBHOOK_SECRET", &secret)
        .env("SEAL_KEY", &key)
        .env("LOG", "trace")
        .start();
    let client = Client::http1();
    let mut said = String::new();
    let body = format!("{{\"action\":\"opened\",\"text\":\"payload-{}\"}}", guid());
    let mac = sign(secret.as_bytes(), body.as_bytes())
        .trim_start_matches("sha256=")
        .to_owned();
    let zeros = format!("sha256={}", "0".repeat(64));
    for at in 0..30 {
        let event = format!("made_up_{at}");
        for sent in [
            signed(&secret, &event, &guid(), body.clone()),
            signed(&secret, &event, &guid(), body.clone()).header(header::SIGNATURE, &zeros),
            signed(&secret, &event, &guid(), body.clone()).without(header::SIGNATURE),
            signed(&secret, &event, &guid(), body.clone()).header(CONTENT_TYPE, "text/plain"),
            signed(&secret, "issue_comment", &guid(), body.clone()),
            log_comment(&secret, &guid(), 1000 + at),
        ] {
            let sent = sent.header(
                http::HeaderName::from_static("x-github-encoded-secret"),
                format!("leaked-{secret}"),
            );
            let answer = client.deliver(&server.webhook(), &sent).await;
            said.push_str(&format!("{:?}{}", answer.headers, answer.text));
        }
    }
    let metrics = client.get(&format!("{}/metrics", server.url())).await.text;
    assert!(metrics.contains("event=\"issue_comment\""), "{metrics}");
    assert!(metrics.contains("event=\"other\""), "{metrics}");
    assert!(!metrics.contains("made_up_"), "{metrics}");
    // In durable mode the workers have something to say as well.
    eventually("all have been worked on", || async {
        let waiting = [
            "deliveries",
            "list",
            "--state",
            "received",
            "--state",
            "processing",
        ];
        let waiting = ok(place.command(&waiting).run());
        (waiting.stdout.lines().count() == 1).then_some(())
    })
    .await;
    server.process().sigterm();
    assert!(server.process().wait().success());
    let log = server.process().stderr.text();
    assert!(log.contains("made_up_3"), "the log is of these requests");
    said.push_str(&metrics);
    said.push_str(&log);
    said.push_str(&server.process().stdout.text());
    for (what, needle) in [
        ("secret", secret.as_str()),
        ("seal key", &key),
        ("signature", &mac),
        ("payload", body.split('"').rev().nth(1).unwrap()),
        ("base64", &base64(secret.as_bytes())),
    ] {
        let line = said.lines().find(|line| line.contains(needle));
        assert_eq!(line, None, "the {what} is told");
    }
}

/// All digits that do not depend on what follows.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks_exact(3)
        .flat_map(|group| {
            let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
            [18, 12, 6, 0].map(|shift| char::from(DIGITS[(bits >> shift & 63) as usize]))
        })
        .collect()
}

// A4
#[tokio::test(flavor = "multi_thread")]
async fn a_chunked_delivery_with_trailers_leaves_no_busy_loop_behind() {
    let place = Place::sqlite();
    let mut server = place.serve().start();
    let sent = log_comment(&place.secret(), &guid(), 1);
    let mut wire = sent.raw_head("/webhook").into_bytes();
    wire.extend(b"transfer-encoding: chunked\r\n\r\n");
    for byte in sent.body() {
        wire.extend([b'1', b'\r', b'\n', *byte, b'\r', b'\n']);
    }
    wire.extend(b"0\r\nx-trailer: 1\r\n\r\n");
    let mut connection = RawConnection::open(server.url()).await;
    connection.write(wire).await.unwrap();
    assert_eq!(
        connection.answer().await.expect("an answer").is(),
        (200, "completed")
    );
    // The connection stays open, and nothing happens on it.
    let before = server.process().cpu();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let spent = server.process().cpu() - before;
    assert!(
        spent < Duration::from_millis(500),
        "{spent:?} in a second of silence"
    );
}

// A5
#[tokio::test(flavor = "multi_thread")]
async fn absurd_content_lengths_take_no_memory() {
    let place = Place::sqlite();
    let mut server = place.serve().start();
    let sent = log_comment(&place.secret(), &guid(), 1);
    let head = sent.raw_head("/webhook");
    let (_, before) = server.process().memory();
    for length in [
        "1099511627776",
        "1152921504606846976",
        "18446744073709551616",
    ] {
        for _ in 0..20 {
            let wire = format!("{head}content-length: {length}\r\n\r\n{{}}");
            let answer = raw(server.url(), wire).await.expect("an answer");
            let expected: &[u16] = if length.len() > 19 {
                &[413, 400]
            } else {
                &[413]
            };
            assert!(
                expected.contains(&answer.status.as_u16()),
                "{length}: {answer:?}"
            );
        }
    }
    let (_, after) = server.process().memory();
    assert!(
        after - before < 16 * MIB as u64,
        "{} bytes more",
        after - before
    );
    let answer = Client::http1().deliver(&server.webhook(), &sent).await;
    assert_eq!(answer.is(), (200, "completed"));
}

// B4
#[tokio::test(flavor = "multi_thread")]
async fn large_unauthenticated_bodies_stay_within_the_memory_budget() {
    const BUDGET: usize = 25 * MIB;
    let place = Place::sqlite();
    let mut server = place
        .serve()
        .env("MEMORY_BUDGET", "25MiB")
        // Hashing without optimization is slow.
        .env("BODY_TIMEOUT", "45s")
        .start();
    let forged = log_comment("not the secret", &guid(), 1);
    let head = forged.raw_head("/webhook") + &format!("content-length: {}\r\n\r\n", 25 * MIB);
    let (_, before) = server.process().memory();
    let piece = Bytes::from(vec![b' '; 256 * 1024]);
    let mut senders = JoinSet::new();
    for _ in 0..200 {
        let (url, head, piece) = (
            server.url().to_owned(),
            Bytes::from(head.clone()),
            piece.clone(),
        );
        senders.spawn(async move {
            let pieces = std::iter::once(head).chain(std::iter::repeat_n(piece, 100));
            trickle(&url, pieces, Duration::from_millis(1)).await
        });
    }
    let mut statuses = std::collections::BTreeMap::<u16, usize>::new();
    for answer in senders.join_all().await.into_iter().flatten() {
        *statuses.entry(answer.status.as_u16()).or_default() += 1;
    }
    let refused = |status: &u16| [401, 408, 503].contains(status);
    assert!(statuses.keys().all(refused), "{statuses:?}");
    assert!(
        statuses.contains_key(&503),
        "more came than the budget holds: {statuses:?}"
    );
    let (_, after) = server.process().memory();
    // The rest is for what 200 connections and the allocator take.
    let bound = (BUDGET + 64 * MIB) as u64;
    let more = after - before;
    assert!(more < bound, "{} MiB more", more / MIB as u64);
    let genuine = log_comment(&place.secret(), &guid(), 1);
    let answer = Client::http1().deliver(&server.webhook(), &genuine).await;
    assert_eq!(answer.is(), (200, "completed"));
}

// B5
#[tokio::test(flavor = "multi_thread")]
async fn senders_that_trickle_are_cut_off_while_others_are_served() {
    let place = Place::sqlite();
    let server = place
        .serve()
        .env("HEADER_TIMEOUT", "500ms")
        .env("BODY_TIMEOUT", "500ms")
        .start();
    let sent = log_comment(&place.secret(), &guid(), 1);
    let head = sent.raw_head("/webhook") + "content-length: 100000\r\n\r\n";
    let bytes = |text: &str| text.bytes().map(|byte| vec![byte]).collect::<Vec<_>>();
    let rows = [
        ("header bytes", bytes(&head)),
        ("a preface", bytes("PRI * HTTP/2.0")),
        ("nothing", Vec::new()),
        (
            "body bytes",
            [vec![head.clone().into_bytes()], vec![vec![b' ']; 10_000]].concat(),
        ),
    ];
    let mut slow = JoinSet::new();
    for (case, pieces) in rows {
        let url = server.url().to_owned();
        slow.spawn(async move {
            (
                case,
                trickle(&url, pieces, Duration::from_millis(100)).await,
            )
        });
    }
    let answer = Client::http1().deliver(&server.webhook(), &sent).await;
    assert_eq!(answer.is(), (200, "completed"));
    for (case, answer) in slow.join_all().await {
        // Cut off without a word, or with one.
        if let Some(answer) = answer {
            assert_eq!(answer.status, 408, "{case}: {answer:?}");
        }
    }
}

// D1
#[tokio::test(flavor = "multi_thread")]
async fn of_racing_deliveries_to_several_replicas_one_is_booked() {
    for (place, replicas) in Place::each().await.into_iter().zip([2, 3]) {
        let case = place.name();
        let servers: Vec<_> = (0..replicas).map(|_| place.serve().start()).collect();
        let id = guid();
        let sent = log_comment(&place.secret(), &id, 1);
        let client = Client::http1();
        let mut senders = JoinSet::new();
        for at in 0..200 {
            let (client, sent) = (client.clone(), sent.clone());
            let url = servers[at % replicas].webhook();
            senders.spawn(async move { client.deliver(&url, &sent).await });
        }
        let answers = senders.join_all().await;
        let of = |is| answers.iter().filter(|answer| answer.is() == is).count();
        assert_eq!(of((200, "completed")), 1, "{case}");
        let others = of((202, "in-progress")) + of((200, "duplicate"));
        assert_eq!(others, 199, "{case}: {answers:?}");
        assert_eq!(place.report().len(), 1, "{case}");
    }
}

// D3, D9: whatever was under way when the server died is booked once in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_under_load_books_everything_once_after_its_restart() {
    for place in Place::each().await {
        let case = place.name();
        let lease = "1s";
        let mut server = place.serve().env("LEASE", lease).start();
        let (sent, answered) = load(&place, &server, 0).await;
        eventually("some are booked", || async {
            (answered.lock().unwrap().len() > 20).then_some(())
        })
        .await;
        server.process().kill9();
        let sent = sent.stop().await;
        let before: Vec<_> = answered.lock().unwrap().clone();
        assert!(sent.len() > before.len(), "{case}: it died under load");

        let server = place.serve().env("LEASE", lease).start();
        let client = Client::http1();
        let url = server.webhook();
        for delivery in &sent {
            eventually("it is completed", || async {
                let answer = client.deliver(&url, delivery).await;
                assert!(!answer.status.is_server_error(), "{case}: {answer:?}");
                (answer.status == 200).then_some(())
            })
            .await;
        }
        let booked = comments(&place);
        assert_eq!(booked.len(), sent.len(), "{case}: each of them");
        assert_eq!(
            booked.iter().collect::<HashSet<_>>().len(),
            booked.len(),
            "{case}: once"
        );
    }
}

// D3, D10, E6: nobody sends anything again, and what was answered with 202 is booked, once.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_is_booked_once_however_the_server_ends() {
    for place in Place::each().await {
        let mut before = Vec::new();
        for kill in [true, false] {
            let case = (place.name(), if kill { "SIGKILL" } else { "SIGTERM" });
            let serve = || place.serve_durable().env("LEASE", "1s");
            // One at a time, so that much is left over.
            let mut server = serve().env("WORKERS", "1").start();
            let (sent, answered) = load(&place, &server, before.len() as u64).await;
            eventually("some are accepted", || async {
                (answered.lock().unwrap().len() > 50).then_some(())
            })
            .await;
            if kill {
                server.process().kill9();
            } else {
                server.process().sigterm();
                let status = server.process().wait();
                assert_eq!(status.code(), Some(0), "{case:?}");
            }
            sent.stop().await;
            let mut accepted: Vec<_> = answered.lock().unwrap().clone();
            accepted.append(&mut before);

            let _server = serve().start();
            eventually("all of them are booked", || async {
                let booked: HashSet<_> = comments(&place).into_iter().collect();
                accepted
                    .iter()
                    .all(|comment| booked.contains(comment))
                    .then_some(())
            })
            .await;
            let booked = comments(&place);
            let once: HashSet<_> = booked.iter().collect();
            assert_eq!(once.len(), booked.len(), "{case:?}");
            before = booked;
        }
    }
}

// E6, as far as the inline mode goes
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_load_finishes_what_was_begun_and_ends_with_0() {
    for place in Place::each().await {
        let case = place.name();
        let mut server = place.serve().start();
        let (sent, answered) = load(&place, &server, 0).await;
        eventually("some are booked", || async {
            (answered.lock().unwrap().len() > 20).then_some(())
        })
        .await;
        server.process().sigterm();
        let status = server.process().wait();
        assert_eq!(
            status.code(),
            Some(0),
            "{case}: {}",
            server.process().stderr.text()
        );
        let sent = sent.stop().await;
        let completed: Vec<_> = answered.lock().unwrap().clone();
        let booked = comments(&place);
        for comment in &completed {
            assert_eq!(
                booked.iter().filter(|at| *at == comment).count(),
                1,
                "{case}: {comment}"
            );
        }
        // Nothing is left half done.
        let listed = ok(place
            .command(&["deliveries", "list", "--limit", "100000", "--json"])
            .run());
        let listed: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
        for delivery in listed.as_array().unwrap() {
            assert_eq!(delivery["state"], "completed", "{case}: {delivery}");
        }
        // What was turned away is booked once it is sent again.
        let server = place.serve().start();
        for delivery in &sent {
            let answer = Client::http1().deliver(&server.webhook(), delivery).await;
            assert_eq!(answer.status, 200, "{case}: {answer:?}");
        }
        assert_eq!(comments(&place).len(), sent.len(), "{case}");
    }
}

/// The comments that are booked, by their URL.
fn comments(place: &Place) -> Vec<String> {
    let comment = |entry: &serde_json::Value| {
        let url = entry["source_comment_url"]
            .as_str()
            .expect("an entry has it");
        url.rsplit('-').next().expect("an id").to_owned()
    };
    place.report().iter().map(comment).collect()
}

/// Eight senders, each a delivery after the other, until they are stopped.
struct Load {
    over: Arc<std::sync::atomic::AtomicBool>,
    senders: JoinSet<Vec<Signed>>,
}

impl Load {
    /// What they sent, answered or not.
    async fn stop(self) -> Vec<Signed> {
        self.over.store(true, std::sync::atomic::Ordering::Relaxed);
        self.senders.join_all().await.concat()
    }
}

/// The second value has the comments whose deliveries were answered as completed, or as accepted in durable mode.
async fn load(place: &Place, server: &Server, from: u64) -> (Load, Arc<Mutex<Vec<String>>>) {
    let answered = Arc::new(Mutex::new(Vec::new()));
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut senders = JoinSet::new();
    for sender in 0..8 {
        let (url, secret) = (server.webhook(), place.secret());
        let (answered, over) = (Arc::clone(&answered), Arc::clone(&over));
        let client = Client::http1();
        senders.spawn(async move {
            let mut sent = Vec::new();
            for at in 0.. {
                let comment = sender * 1_000_000 + from + at;
                let delivery = log_comment(&secret, &guid(), comment);
                sent.push(delivery.clone());
                match client.try_send(delivery.to(&url)).await {
                    Ok(answer)
                        if [(200, "completed"), (202, "accepted")].contains(&answer.is()) =>
                    {
                        answered.lock().unwrap().push(comment.to_string());
                    }
                    Ok(answer) => {
                        assert_eq!(answer.is(), (503, "unavailable"));
                        break;
                    }
                    // It is gone.
                    Err(_) => break,
                }
                if over.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
            sent
        });
    }
    (Load { over, senders }, answered)
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_follows_the_database_and_health_does_not() {
    let cluster = PgCluster::start(hookclaim_tests::postgres::PgOptions { fsync: false });
    let place = Place {
        database: Some(cluster.fresh_database().await),
        ..Place::sqlite()
    };
    let server = place.serve().start();
    let client = Client::http1();
    let page = async |page: &str| client.get(&format!("{}/{page}", server.url())).await.status;
    assert_eq!(
        (page("healthz").await, page("readyz").await),
        (http::StatusCode::OK, http::StatusCode::OK)
    );
    cluster.crash();
    let sent = log_comment(SECRET, &guid(), 1);
    let down = client.deliver(&server.webhook(), &sent).await;
    assert_eq!(down.is(), (503, "unavailable"));
    assert_eq!(page("readyz").await, 503);
    assert_eq!(page("healthz").await, 200);
    cluster.resume();
    eventually("it is ready again", || async {
        (page("readyz").await == 200).then_some(())
    })
    .await;
    let answer = tokio::time::timeout(DEADLINE, client.deliver(&server.webhook(), &sent)).await;
    assert_eq!(answer.unwrap().is(), (200, "completed"));
    assert_eq!(place.report().len(), 1);
}

// F2
#[tokio::test(flavor = "multi_thread")]
async fn five_servers_start_at_once_on_an_empty_database() {
    for place in Place::each().await {
        let place = Arc::new(place);
        let starts: Vec<_> = (0..5)
            .map(|_| {
                let place = Arc::clone(&place);
                std::thread::spawn(move || place.serve().start())
            })
            .collect();
        let servers: Vec<_> = starts
            .into_iter()
            .map(|start| start.join().expect("it starts"))
            .collect();
        // They all verify with the one secret that was made.
        for (at, server) in servers.iter().enumerate() {
            let sent = log_comment(&place.secret(), &guid(), at as u64);
            let answer = Client::http1().deliver(&server.webhook(), &sent).await;
            assert_eq!(answer.is(), (200, "completed"), "{}", place.name());
        }
        assert_eq!(place.report().len(), 5, "{}", place.name());
    }
}
