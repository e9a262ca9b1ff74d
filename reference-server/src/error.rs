//! Why a command of the program failed.

use std::error::Error as StdError;
use std::fmt;

/// What a command can end with; [`exit_code`](Self::exit_code) tells the shell.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used. Every problem is named, so that one look is enough to mend them all.
    Config(Vec<String>),
    /// The command was understood and did not succeed.
    Failed {
        /// What failed.
        message: String,
        /// Why.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },
}

impl Error {
    /// A failure with a message that says it all.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
            source: None,
        }
    }

    /// A configuration with this one problem.
    pub(crate) fn config(problem: impl Into<String>) -> Self {
        Self::Config(vec![problem.into()])
    }

    /// The exit code: 1 for a failure, 2 for usage and configuration.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed { .. } => 1,
            Self::Config(_) => 2,
        }
    }

    /// The message and its causes, as the operator reads them.
    #[must_use]
    pub fn report(&self) -> String {
        with_causes(self)
    }
}

/// A message and its causes.
pub(crate) fn with_causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        // Some libraries repeat the cause in the message.
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problems) => match problems.as_slice() {
                [problem] => f.write_str(problem),
                problems => {
                    write!(f, "the configuration has {} problems", problems.len())?;
                    problems
                        .iter()
                        .try_for_each(|problem| write!(f, "\n  - {problem}"))
                }
            },
            Self::Failed { message, .. } => f.write_str(message),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Failed {
                source: Some(source),
                ..
            } => Some(source.as_ref()),
            Self::Failed { source: None, .. } | Self::Config(_) => None,
        }
    }
}

/// Says what was being done when something failed.
pub(crate) trait Context<T> {
    /// The error, with `message` before it.
    fn context(self, message: impl Into<String>) -> Result<T, Error>;
}

impl<T, E: StdError + Send + Sync + 'static> Context<T> for Result<T, E> {
    fn context(self, message: impl Into<String>) -> Result<T, Error> {
        self.map_err(|source| Error::Failed {
            message: message.into(),
            source: Some(Box::new(source)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_every_cause_once_and_config_errors_every_problem() {
        let io = std::io::Error::other("disk on fire");
        let error = Err::<(), _>(io).context("cannot open x").unwrap_err();
        assert_eq!(error.report(), "cannot open x: disk on fire");
        assert_eq!(error.exit_code(), 1);
        let error = Error::Config(vec!["a".into(), "b".into()]);
        assert_eq!(
            error.report(),
            "the configuration has 2 problems\n  - a\n  - b"
        );
        assert_eq!(error.exit_code(), 2);
    }
}
