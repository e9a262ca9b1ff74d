//! Mistakes that do not compile, and what the compiler says.

use std::path::Path;
use std::process::Command;

/// The cases need nothing but core. Compiled as if they were core's, they wait for its few dependencies, and not for
/// those of this package once more.
#[test]
#[ignore = "it runs within the next test"]
fn cases() {
    if std::env::var("CARGO_MANIFEST_DIR").is_ok_and(|dir| dir.ends_with("core")) {
        let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui/*.rs");
        trybuild::TestCases::new().compile_fail(cases);
    }
}

#[test]
fn misuse_does_not_compile() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("core");
    let cases = Command::new(std::env::current_exe().expect("this process has a path"))
        .args(["--ignored", "--exact", "ui::cases", "--nocapture"])
        .env("CARGO_MANIFEST_DIR", &core)
        .current_dir(&core)
        .output()
        .expect("it can be run");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&cases.stdout),
        String::from_utf8_lossy(&cases.stderr)
    );
    assert!(cases.status.success(), "{said}");
    // A run without cases would pass as well.
    assert!(said.contains("commit_with_the_memory_store.rs"), "{said}");
}
