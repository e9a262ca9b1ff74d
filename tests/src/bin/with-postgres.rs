//! Runs a command with `DATABASE_URL` naming an empty database of a throw-away Postgres cluster:
//! `with-postgres COMMAND [ARGUMENT …]`. The cluster is gone when the command has ended.

use std::process::{Command, ExitCode};

use hookclaim_tests::postgres::{PgCluster, PgOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: with-postgres COMMAND [ARGUMENT …]");
        return ExitCode::from(2);
    };
    let cluster = PgCluster::start(PgOptions::default());
    let url = cluster.fresh_database().await;
    let status = Command::new(&program)
        .args(arguments)
        .env("DATABASE_URL", url)
        .status();
    match status {
        Ok(status) => status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1)
            .into(),
        Err(error) => {
            eprintln!("with-postgres: cannot run {}: {error}", program.display());
            ExitCode::from(127)
        }
    }
}
