//! Options as text, from wherever they were given.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;

/// The file that is read if it is there and no other is named.
const DEFAULT_FILE: &str = "hookclaim.toml";

/// Where an option was given; earlier ones win.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Flag(String),
    Env(String),
    File(String, PathBuf),
}

impl Origin {
    /// The same for two options that were given in the same place.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Flag(_) => 0,
            Self::Env(_) => 1,
            Self::File(..) => 2,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Env(name) => f.write_str(name),
            Self::File(key, path) => write!(f, "`{key}` in {}", path.display()),
        }
    }
}

/// One option as it was given. `Debug` hides the value: it may be secret.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) value: String,
    pub(crate) origin: Origin,
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setting")
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// All options that were given, and what is wrong with them so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    known: Vec<String>,
    given: BTreeMap<String, Setting>,
    pub(crate) problems: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

impl Settings {
    /// The flags and variables that are set, of those that `options` declares.
    pub(crate) fn of(matches: &ArgMatches, options: &clap::Command) -> Self {
        let mut settings = Self::default();
        for arg in options.get_arguments() {
            let Some(name) = arg.get_long() else { continue };
            settings.known.push(name.to_owned());
            let origin = match matches.value_source(arg.get_id().as_str()) {
                Some(ValueSource::CommandLine) => Origin::Flag(name.to_owned()),
                Some(ValueSource::EnvVariable) => Origin::Env(variable(name)),
                _ => continue,
            };
            let raw = matches.get_raw(arg.get_id().as_str());
            if let Some(value) = raw.and_then(|mut values| values.next_back()) {
                match value.to_str() {
                    Some(value) => {
                        let value = value.to_owned();
                        let setting = Setting { value, origin };
                        settings.given.insert(name.to_owned(), setting);
                    }
                    // Read as something like it, a secret would be another secret.
                    None => settings
                        .problems
                        .push(format!("{origin} is not UTF-8; write it anew")),
                }
            }
        }
        settings
    }

    /// Adds what the file says on options that are not set otherwise.
    pub(crate) fn read_file(&mut self) {
        let named = self.take("config");
        let path = named.as_ref().map_or(DEFAULT_FILE, |named| &named.value);
        match std::fs::read_to_string(path) {
            Ok(text) => self.add_file(Path::new(path), &text),
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let origin = named.as_ref().map(|named| format!("{}: ", named.origin));
                let problem = format!("{}cannot read {path}: {error}", origin.unwrap_or_default());
                self.problems.push(problem);
            }
        }
    }

    fn add_file(&mut self, path: &Path, text: &str) {
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                // The error's own rendering quotes the line, and the line may hold a secret.
                let line = error.span().map_or(1, |span| {
                    text.get(..span.start).unwrap_or(text).matches('\n').count() + 1
                });
                self.problems.push(format!(
                    "{}: line {line} is not TOML: {}",
                    path.display(),
                    error.message()
                ));
                return;
            }
        };
        let mut unknown = Vec::new();
        for (key, value) in table {
            if key == "config" || !self.known.contains(&key) {
                unknown.push(format!("`{key}`"));
                continue;
            }
            let origin = Origin::File(key.clone(), path.to_path_buf());
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(value) => value.to_string(),
                other => {
                    self.problems.push(format!(
                        "{origin}: give a string, a number or a boolean, not a value of type {}",
                        other.type_str()
                    ));
                    continue;
                }
            };
            self.given.entry(key).or_insert(Setting { value, origin });
        }
        if !unknown.is_empty() {
            let known: Vec<_> = self.known.iter().filter(|name| *name != "config").collect();
            let known = known.iter().fold(String::new(), |list, name| {
                if list.is_empty() {
                    (*name).clone()
                } else {
                    format!("{list}, {name}")
                }
            });
            self.problems.push(format!(
                "{}: no such option: {}; there are {known}",
                path.display(),
                unknown.join(", ")
            ));
        }
    }

    /// The option of this name, if it was given.
    pub(crate) fn take(&mut self, name: &str) -> Option<Setting> {
        debug_assert!(
            self.known.iter().any(|known| known == name),
            "{name} is not an option"
        );
        self.given.remove(name)
    }

    /// Leaves these out, whatever they say.
    pub(crate) fn skip(&mut self, names: &[&str]) {
        for name in names {
            self.take(name);
        }
    }

    /// The option of this name as `read` understands it, or the default. A value that is not understood is a problem.
    pub(crate) fn read<T>(
        &mut self,
        name: &str,
        default: T,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> T {
        let Some(Setting { value, origin }) = self.take(name) else {
            return default;
        };
        match read(value.trim()) {
            Ok(value) => value,
            Err(problem) => {
                self.problems.push(format!("{origin}: {problem}"));
                default
            }
        }
    }
}

/// The environment variable of an option.
pub(crate) fn variable(name: &str) -> String {
    format!("HOOKCLAIM_{}", name.to_uppercase().replace('-', "_"))
}

#[cfg(test)]
impl Settings {
    /// Options as if given in these places, for tests: the environment of the test itself is left alone.
    pub(crate) fn for_tests(flags: &[(&str, &str)], env: &[(&str, &str)], file: &str) -> Self {
        use clap::Args as _;
        let options = crate::cli::Options::augment_args(clap::Command::new(""));
        let mut settings = Self::default();
        let names = options.get_arguments().filter_map(clap::Arg::get_long);
        settings.known.extend(names.map(str::to_owned));
        let flags = flags
            .iter()
            .map(|(name, value)| (name, value, Origin::Flag((*name).to_owned())));
        let env = env
            .iter()
            .map(|(name, value)| (name, value, Origin::Env(variable(name))));
        for (name, value, origin) in flags.chain(env) {
            let value = (*value).to_owned();
            settings
                .given
                .entry((*name).to_owned())
                .or_insert(Setting { value, origin });
        }
        settings.add_file(Path::new(DEFAULT_FILE), file);
        settings
    }
}
