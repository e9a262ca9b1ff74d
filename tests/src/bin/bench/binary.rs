//! P13: how large the server is, and how soon it listens.

use std::io::BufRead as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::method::{Report, median};

pub(crate) fn size_and_start(report: &mut Report) {
    let binary = hookclaim_tests::process::hookclaim();
    let size = std::fs::metadata(binary).map_or(0, |file| file.len()) as f64 / 1e6;
    report.add(
        "P13",
        "release binary, MB",
        format!("{size:.1}"),
        "≤ 15",
        String::new(),
    );
    for (what, rounds) in [
        ("start to listening on a new SQLite file, ms", 5),
        ("start to listening on an old one, ms", 5),
    ] {
        let kept = tempfile::tempdir().expect("a directory");
        let mut times = Vec::new();
        for round in 0..=rounds {
            let fresh = tempfile::tempdir().expect("a directory");
            let directory = if what.contains("new") {
                fresh.path()
            } else {
                kept.path()
            };
            let begin = Instant::now();
            let mut child = Command::new(binary)
                .args(["serve", "--listen", "127.0.0.1:0"])
                .current_dir(directory)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("the server can be run");
            let stdout = child.stdout.take().expect("it is piped");
            let listening = std::io::BufReader::new(stdout)
                .lines()
                .map_while(Result::ok)
                .any(|line| line.starts_with("listening on "));
            let took = begin.elapsed().as_secs_f64() * 1e3;
            child
                .kill()
                .and_then(|()| child.wait())
                .expect("it can be stopped");
            assert!(listening, "the server does not listen");
            if round > 0 {
                times.push(took);
            }
        }
        report.add(
            "P13",
            what,
            format!("{:.1}", median(times)),
            "≤ 50",
            String::new(),
        );
    }
}
