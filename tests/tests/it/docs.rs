//! What the pages say is so.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_readme_shows_the_examples_as_they_are() {
    for name in ["inline_axum", "durable_sqlite"] {
        let example = read(format!("tower-layer/examples/{name}.rs"));
        let shown = example.split("// [app]\n").nth(1).expect("it is marked");
        assert!(read("README.md").contains(shown), "{name}");
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    for page in [
        "README.md",
        "core/README.md",
        "core/docs/ARCHITECTURE.md",
        "core/docs/duplicates-in-flight.md",
        "core/docs/failures.md",
        "core/docs/performance.md",
        "core/docs/redis.md",
        "core/docs/scale.md",
        "reference-server/README.md",
        "reference-server/docs/operations.md",
        "tower-layer/README.md",
    ] {
        let here = Path::new(page).parent().expect("a page is in a directory");
        for link in read(page).split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.starts_with("https://") {
                continue;
            }
            let there = root().join(here).join(target);
            assert!(there.exists(), "{page} links to {target}");
        }
    }
}

#[test]
fn the_code_map_names_every_module_of_the_libraries() {
    let map = read("core/docs/ARCHITECTURE.md");
    for crate_dir in ["core", "tower-layer", "reference-server"] {
        for entry in std::fs::read_dir(root().join(crate_dir).join("src")).expect("it is there") {
            let name = entry.expect("it can be read").file_name();
            let name = name.to_str().expect("a name is text");
            let named = map.contains(&format!("`{name}`")) || map.contains(&format!("`{name}/`"));
            let plain = matches!(
                name,
                "lib.rs" | "main.rs" | "testing.rs" | "timetracking.rs"
            );
            assert!(named || plain, "the code map lacks {crate_dir}/src/{name}");
        }
    }
}

/// The parts of `text` that begin with `prefix`, as far as their characters are of a name.
fn names<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(prefix).map(move |(at, _)| {
        let name = &text[at..];
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &name[..end.unwrap_or(name.len())]
    })
}

#[test]
fn operators_are_told_of_every_metric_and_every_option() {
    let page = read("reference-server/docs/operations.md");
    for file in [
        "tower-layer/src/observe/metrics.rs",
        "reference-server/src/telemetry.rs",
    ] {
        let source = read(file);
        let metrics: Vec<_> = source
            .split('"')
            .filter(|text| text.starts_with("hookclaim_"))
            .collect();
        assert!(metrics.len() > 5, "{file} has the names of metrics");
        for metric in metrics {
            let told = page.contains(&format!("`{metric}`"));
            assert!(told || metric == "hookclaim_server", "{metric} of {file}");
        }
    }
    let options = read("reference-server/src/cli/options.rs");
    for variable in names(&options, "HOOKCLAIM_") {
        let option = variable["HOOKCLAIM_".len()..]
            .to_lowercase()
            .replace('_', "-");
        // Where there is a file for it, the table has both in one row.
        let told = page.contains(&format!("`{option}`")) || option.ends_with("-file");
        assert!(told || option == "config", "{option}");
    }
}

#[test]
fn the_tests_that_the_page_of_failures_names_are_there() {
    let page = read("core/docs/failures.md");
    let mut sources = String::new();
    for directory in [
        "tests/tests/it",
        "tests/tests/it/inbox_postgres",
        "tests/tests/it/deliveries",
        "tower-layer/tests/it",
    ] {
        for entry in std::fs::read_dir(root().join(directory)).expect("it is there") {
            let path = entry.expect("it can be read").path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                sources += &std::fs::read_to_string(path).expect("it is text");
            }
        }
    }
    let mut named = 0;
    for name in page.split('`').filter(|code| code.contains("::")) {
        let function = name.rsplit("::").next().unwrap_or_default();
        if name.starts_with("LeasePolicy") || function.len() < 12 {
            continue;
        }
        assert!(
            sources.contains(&format!("fn {function}"))
                || sources.contains(&format!("mod {function}")),
            "{name}"
        );
        named += 1;
    }
    assert!(named > 30, "{named}");
}
