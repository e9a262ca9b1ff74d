//! The commands of a comment.

use std::fmt;

use super::duration::{self, DurationError, Minutes};

/// The marker that begins the hidden line of everything we post ourselves.
pub const OUR_MARKER: &str = "<!-- hookclaim:";

/// The most commands that one comment may hold: they are written in one transaction.
pub const MAX_COMMANDS: usize = 50;

/// `/log <duration> [description]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// How long.
    pub minutes: Minutes,
    /// What for; may be empty.
    pub description: String,
}

/// A command that cannot be understood. `Display` is for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {error}")]
pub struct CommandError {
    /// The line of the comment, from 1.
    pub line: usize,
    /// What is wrong.
    pub error: DurationError,
}

/// Why none of a comment's commands is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// Some cannot be understood.
    Commands(Vec<CommandError>),
    /// There are too many.
    TooMany,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commands(errors) => {
                for (index, error) in errors.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "\n" };
                    write!(f, "{separator}{error}")?;
                }
                Ok(())
            }
            Self::TooMany => write!(
                f,
                "one comment holds at most {MAX_COMMANDS} commands; spread them over several comments"
            ),
        }
    }
}

impl std::error::Error for BatchError {}

/// The commands of a comment, in order. They are one batch: all of them are good, or none is carried out.
///
/// Lines in fenced or indented code, in quotes and in HTML comments hold no commands. The rule goes line by line and
/// errs on the side of finding none.
///
/// # Errors
///
/// [`BatchError`] if any command cannot be understood; it names each of those.
///
/// # Examples
///
/// ```
/// use hookclaim_server::timetracking::command::parse;
///
/// let logs = parse("Done.\r\n/log 1h30m pairing\r\n> /log 8h").unwrap();
/// assert_eq!(logs.len(), 1);
/// assert_eq!(logs[0].description, "pairing");
/// ```
pub fn parse(body: &str) -> Result<Vec<Log>, BatchError> {
    let mut logs = Vec::new();
    let mut errors = Vec::new();
    let mut context = Context::Text;
    for (index, line) in lines(body).enumerate() {
        let (next, live) = context.enter(line);
        context = next;
        let Some(arguments) = live.then(|| log_arguments(line)).flatten() else {
            continue;
        };
        match duration::parse(arguments) {
            Ok((minutes, description)) => logs.push(Log {
                minutes,
                description: description.to_owned(),
            }),
            Err(error) => errors.push(CommandError {
                line: index + 1,
                error,
            }),
        }
    }
    if logs.len() + errors.len() > MAX_COMMANDS {
        Err(BatchError::TooMany)
    } else if !errors.is_empty() {
        Err(BatchError::Commands(errors))
    } else {
        Ok(logs)
    }
}

/// The lines of a text, whether they end like on Unix, on Windows (the web editor does) or by CR alone.
fn lines(body: &str) -> impl Iterator<Item = &str> {
    body.split('\n')
        .flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

/// Where in a comment a line stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Context {
    Text,
    /// In code between fences of this character and length.
    Fence(char, usize),
    /// In a quote, or in a paragraph that continues one without its `>`.
    Quote,
    /// In an HTML comment.
    Comment,
}

impl Context {
    /// The context after the line, and whether the line may hold a command.
    fn enter(self, line: &str) -> (Self, bool) {
        let text = line.trim_start_matches(' ');
        let is_code = line.len() - text.len() >= 4 || text.starts_with('\t');
        match self {
            Self::Fence(mark, length) => {
                let closes = !is_code
                    && fence(text).is_some_and(|(other, count, info)| {
                        other == mark && count >= length && info.trim().is_empty()
                    });
                (if closes { Self::Text } else { self }, false)
            }
            Self::Comment => match line.rfind("-->") {
                Some(end) => (after_comment(&line[end..]), false),
                None => (self, false),
            },
            Self::Text | Self::Quote => {
                if text.trim().is_empty() {
                    return (Self::Text, false);
                }
                if is_code {
                    return (self, false);
                }
                if let Some((mark, count, info)) = fence(text)
                    && !(mark == '`' && info.contains('`'))
                {
                    return (Self::Fence(mark, count), false);
                }
                if text.starts_with('>') {
                    return (Self::Quote, false);
                }
                if let Some(begin) = text.rfind("<!--") {
                    let opens = !text[begin..].contains("-->");
                    return (if opens { Self::Comment } else { self }, false);
                }
                (self, self == Self::Text)
            }
        }
    }
}

fn after_comment(rest: &str) -> Context {
    if rest.contains("<!--") {
        Context::Comment
    } else {
        Context::Text
    }
}

/// The character and length of a fence, and what stands behind it.
fn fence(text: &str) -> Option<(char, usize, &str)> {
    let mark = text.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let info = text.trim_start_matches(mark);
    let count = text.len() - info.len();
    (count >= 3).then_some((mark, count, info))
}

/// What follows `/log`, if the line is that command. `/logs` and `/login` are prose.
fn log_arguments(line: &str) -> Option<&str> {
    let line = line.trim_start_matches(' ');
    let (verb, arguments) = line.split_at_checked("/log".len())?;
    let ends = arguments.chars().next().is_none_or(char::is_whitespace);
    (verb.eq_ignore_ascii_case("/log") && ends).then_some(arguments)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn booked(body: &str) -> Vec<(u16, String)> {
        let logs = parse(body).unwrap();
        logs.into_iter()
            .map(|log| (log.minutes.get(), log.description))
            .collect()
    }

    #[test]
    fn a_log_line_is_found_wherever_it_stands_in_the_text() {
        let rows = [
            ("/log 1h30m pairing", 90, "pairing"),
            ("/LOG 2h", 120, ""),
            ("   /log 2h up to three spaces", 120, "up to three spaces"),
            ("Done.\r\n\r\n/log 1h fix\r\n", 60, "fix"),
            ("Done.\r/log 1h fix\r", 60, "fix"),
            ("/log\u{a0}1h\u{a0}fix", 60, "fix"),
            ("/log\t1h", 60, ""),
            ("```\ncode\n```\n/log 1h", 60, ""),
            ("~~~~\n```\n~~~~\n/log 1h", 60, ""),
            ("> quoted\n\n/log 1h", 60, ""),
            ("<!-- note -->\n/log 1h", 60, ""),
            ("<!--\n/log 8h\n-->\n/log 1h", 60, ""),
            ("``` inline ``` text\n/log 1h", 60, ""),
        ];
        for (body, minutes, description) in rows {
            assert_eq!(
                booked(body),
                [(minutes, description.to_owned())],
                "{body:?}"
            );
        }
    }

    #[test]
    fn prose_code_and_quotes_hold_no_commands() {
        let rows = [
            "",
            "/login 2h",
            "/logs 2h",
            "/log-in 2h",
            "/deleted the branch",
            "see /log 2h",
            "`/log 2h`",
            "```\n/log 2h\n```",
            "```sh\n/log 2h",
            "~~~\n/log 2h\n```\n/log 2h",
            "````\n```\n/log 2h\n````",
            "    /log 2h",
            "\t/log 2h",
            " \t/log 2h",
            "> /log 2h",
            "  > /log 2h",
            "> quoted\n/log 2h",
            "<!-- /log 2h -->",
            "<!--\n/log 2h\n-->",
            "\u{e9}/log 2h",
            "/lo\u{e9}",
        ];
        for body in rows {
            assert_eq!(booked(body), [], "{body:?}");
        }
    }

    #[test]
    fn several_lines_are_several_entries() {
        assert_eq!(
            booked("/log 1h one\r\n/log 30m two\r\n"),
            [(60, "one".to_owned()), (30, "two".to_owned())]
        );
    }

    #[test]
    fn one_bad_line_stops_the_whole_comment_and_every_bad_line_is_named() {
        let error = parse("/log 1h\n/log 45\ntext\n/log").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2: `45` has no unit; write `45m` for minutes or `45h` for hours\n\
             line 4: the duration is missing; write a duration such as `45m`, `2h` or `1h30m`"
        );
    }

    #[test]
    fn a_comment_full_of_commands_is_refused() {
        let body = "/log 1m\n".repeat(MAX_COMMANDS + 1);
        assert_eq!(parse(&body), Err(BatchError::TooMany));
        assert_eq!(
            booked(&"/log 1m\n".repeat(MAX_COMMANDS)).len(),
            MAX_COMMANDS
        );
    }

    proptest! {
        #[test]
        fn no_comment_panics(body in "(?s).{0,200}") {
            let _ = parse(&body);
        }

        #[test]
        fn a_fence_that_is_not_closed_hides_everything_after_it(lines in "(/log 1h\r?\n){0,5}") {
            let body = format!("```\n{lines}");
            prop_assert_eq!(parse(&body), Ok(Vec::new()));
        }
    }
}
