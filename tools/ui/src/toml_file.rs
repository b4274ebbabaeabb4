//! TOML files that users write.
//!
//! Every error is one line that names the file, the line, the field, its value and what is allowed
//! there.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;

use crate::nearest;

/// An error in a file.
#[expect(missing_docs, reason = "the message says what fields are")]
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{}: cannot read the {what}", path.display())]
    Read { path: PathBuf, what: &'static str, source: std::io::Error },
    /// Invalid TOML, an unknown field, or a value of the wrong type.
    #[error("{place}: {}", one_line(message))]
    Toml { place: FileLine, message: String },
    /// A value that is not allowed.
    #[error("{place}: {field} = {} is not allowed; {field} is {allowed}", one_line(value))]
    Value { place: FileLine, field: &'static str, value: String, allowed: String },
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLine {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1 on.
    pub line: usize,
}

impl fmt::Display for FileLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// Text with anything that would break the line or the terminal replaced, cut at
/// 200 characters.
fn one_line(text: &str) -> String {
    let clean = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut line: String = clean.clone().take(200).collect();
    if clean.count() > 200 {
        line.push_str("...");
    }
    line
}

/// A file and its text.
#[derive(Clone, Debug)]
pub struct TomlFile<'a> {
    /// Where it is.
    pub path: &'a Path,
    text: &'a str,
    /// Where its lines end. A large file has many places that are asked for.
    ends: Vec<usize>,
}

impl<'a> TomlFile<'a> {
    /// A file with this text.
    pub fn new(path: &'a Path, text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self { path, text, ends: ends.map(|(at, _)| at).collect() }
    }

    /// The text of a file, or of standard input if the path is `-`; `what` is the kind of file.
    ///
    /// # Errors
    /// [`FileError::Read`].
    pub fn read(path: &Path, what: &'static str) -> Result<String, FileError> {
        tofu_input::read_text_or_stdin(path, tofu_input::DESCRIPTION)
            .map_err(|source| FileError::Read { path: path.to_owned(), what, source })
    }

    /// The values in the file.
    ///
    /// # Errors
    /// [`FileError::Toml`].
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, FileError> {
        toml::from_str(self.text).map_err(|error| self.toml_error(&error))
    }

    /// The line in which something begins.
    pub fn place(&self, span: Range<usize>) -> FileLine {
        let line = self.ends.partition_point(|end| *end < span.start) + 1;
        FileLine { path: self.path.to_owned(), line }
    }

    fn toml_error(&self, error: &toml::de::Error) -> FileError {
        let place = self.place(error.span().unwrap_or(0..0));
        // The line itself names field and value, which the parser's message may not.
        let line = self.text.lines().nth(place.line - 1).unwrap_or("").trim();
        let meant = unknown_field(error.message())
            .and_then(|(field, known)| nearest(field, known))
            .map(|meant| format!("did you mean {meant}? "));
        // The hint comes before the list of all, which may be cut.
        let words = meant.unwrap_or_default() + error.message();
        let message = match line {
            "" => words,
            line => format!("{}: {words}", one_line(line)),
        };
        FileError::Toml { place, message }
    }

    /// The error for a value that is not allowed.
    pub fn value_error<V: fmt::Debug>(
        &self,
        field: &'static str,
        value: &Spanned<V>,
        allowed: impl Into<String>,
    ) -> FileError {
        FileError::Value {
            place: self.place(value.span()),
            field,
            value: format!("{:?}", value.get_ref()),
            allowed: allowed.into(),
        }
    }

    /// The checked value, if one is given; or the error with the allowed values.
    ///
    /// # Errors
    /// [`FileError::Value`].
    pub fn checked<T, V: fmt::Debug, A: Into<String>>(
        &self,
        field: &'static str,
        value: &Option<Spanned<V>>,
        check: impl FnOnce(&V) -> Result<T, A>,
    ) -> Result<Option<T>, FileError> {
        let Some(value) = value else { return Ok(None) };
        let checked = check(value.get_ref());
        checked.map(Some).map_err(|allowed| self.value_error(field, value, allowed))
    }
}

/// The unknown field in an error, and the existing fields.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    Some((quoted.next()?, quoted.collect()))
}
