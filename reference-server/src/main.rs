//! The `hookclaim` program.

use std::process::ExitCode;

use hookclaim_server::{Invocation, execute};

#[tokio::main]
async fn main() -> ExitCode {
    let invocation = Invocation::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match execute(invocation).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.report());
            ExitCode::from(error.exit_code())
        }
    }
}
