//! TOML files that users write.
//!
//! Every error is one line that names the file, the line, the field, its value and what is allowed
//! there.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::{self, DeserializeOwned};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

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
    Value { place: FileLine, field: Cow<'static, str>, value: String, allowed: String },
}

/// Begins the message of an error that [`not_allowed`] made. The parser passes messages on.
const NOT_ALLOWED: char = '\u{1}';

/// The error of a type whose `Deserialize` meets a value that is not `allowed`.
/// [`TomlFile::parse`] makes a [`FileError::Value`] of it.
pub fn not_allowed<E: de::Error>(allowed: impl fmt::Display) -> E {
    E::custom(format_args!("{NOT_ALLOWED}{allowed}"))
}

/// The lines in which the fields of a table are.
pub type FieldLines = BTreeMap<String, FileLine>;

/// A line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Its path.
    pub path: &'a Path,
    text: &'a str,
    /// The ends of its lines. They are kept because a large file may have many look-ups of
    /// positions.
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

    /// The lines of the fields outside tables, and those of each table in the array `rows`.
    pub fn lines(&self, rows: &[&str]) -> (FieldLines, Vec<Vec<FieldLines>>) {
        // Errors are those of `parse`.
        let Ok(file) = DeTable::parse(self.text) else { return Default::default() };
        let of_table = |table: &DeTable<'_>| {
            let lines = table.iter().map(|(key, value)| {
                let line = self.place(key.span().start..value.span().end);
                (key.get_ref().to_string(), line)
            });
            lines.collect::<FieldLines>()
        };
        let of_rows = |name: &&str| match file.get_ref().get(*name).map(Spanned::get_ref) {
            Some(DeValue::Array(rows)) => {
                let tables = rows.iter().filter_map(|row| row.get_ref().as_table());
                tables.map(of_table).collect()
            }
            _ => Vec::new(),
        };
        (of_table(file.get_ref()), rows.iter().map(of_rows).collect())
    }

    /// The name of the field whose value begins at this place.
    fn field_before(&self, value: usize) -> &'a str {
        let before = self.text.get(..value).unwrap_or("").trim_end();
        let before = before.strip_suffix('=').unwrap_or(before).trim_end();
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        &before[before.trim_end_matches(is_name).len()..]
    }

    fn toml_error(&self, error: &toml::de::Error) -> FileError {
        let span = error.span().unwrap_or(0..0);
        let place = self.place(span.clone());
        if let Some(allowed) = error.message().strip_prefix(NOT_ALLOWED) {
            let field = self.field_before(span.start).to_owned().into();
            let value = self.text.get(span).unwrap_or("").to_owned();
            return FileError::Value { place, field, value, allowed: allowed.to_owned() };
        }
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
            field: field.into(),
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
