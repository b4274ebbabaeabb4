//! Logging and its settings: `RUST_LOG`, `--log` and `--log-format`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::SystemTime;

use clap::ValueEnum;
use env_logger::{Builder, Env};
use humantime::{format_rfc3339_micros, format_rfc3339_seconds};
use log::{LevelFilter, Record};
use serde_json::json;
use tofu_ui::printable;

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Time, level and target in brackets, then the text
    Text,
    /// An object with time, level, target and message
    Json,
}

/// Checks the value of `--log`.
pub(crate) fn levels(text: &str) -> Result<String, String> {
    for part in text.split(',') {
        let (target, level) = part.split_once('=').unwrap_or(("", part));
        let named = part.contains('=');
        if level.parse::<LevelFilter>().is_err() || named && target.is_empty() {
            return Err(format!(
                "{part:?}: a level is off, error, warn, info, debug or trace, and can have TARGET= \
                 in front, as in device=debug"
            ));
        }
    }
    Ok(text.to_owned())
}

/// Starts to log: warnings, and the levels that the environment and the command line select.
pub(crate) fn start(levels: Option<&str>, format: Format) {
    let mut builder = Builder::from_env(Env::default().default_filter_or("warn"));
    if let Some(levels) = levels {
        builder.parse_filters(levels);
    }
    builder.format(move |line, record| {
        let now = SystemTime::now();
        if format == Format::Json {
            return writeln!(line, "{}", object(now, record));
        }
        let (now, level) = (format_rfc3339_seconds(now), record.level());
        let style = line.default_level_style(level);
        // Some texts contain guests' input.
        let (target, text) = (record.target(), printable(&record.args().to_string()));
        writeln!(line, "[{now} {style}{level:<5}{style:#} {target}] {text}")
    });
    builder.init();
}

/// A line of JSON, without any control character in it.
fn object(now: SystemTime, record: &Record<'_>) -> String {
    let level = record.level().as_str().to_ascii_lowercase();
    let object = json!({
        "time": format_rfc3339_micros(now).to_string(),
        "level": level,
        "target": record.target(),
        "message": record.args().to_string(),
    });
    let mut line = String::new();
    for c in object.to_string().chars() {
        // JSON allows those of 0x7f and up, and terminals obey some.
        match c.is_control() {
            true => drop(write!(line, "\\u{:04x}", u32::from(c))),
            false => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use log::Level;

    use super::*;

    #[test]
    fn log_lines_are_escaped_and_single() {
        let text = "says \"no\"\n[2026 ERROR x] \u{1b}[31m\u{9b}2J\u{7f}</script>";
        let line = |text: std::fmt::Arguments<'_>| {
            let record = Record::builder().level(Level::Warn).target("device").args(text).build();
            object(SystemTime::UNIX_EPOCH, &record)
        };
        let line = line(format_args!("{text}"));
        assert!(!line.contains(char::is_control), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        let time = "1970-01-01T00:00:00.000000Z";
        let expected =
            json!({ "time": time, "level": "warn", "target": "device", "message": text });
        assert_eq!(read, expected);
    }

    #[test]
    fn levels_are_levels() {
        for good in ["debug", "device=debug", "info,device=trace,tofu_vmm=off", "device=DEBUG"] {
            assert_eq!(levels(good).as_deref(), Ok(good));
        }
        for bad in ["", "device", "device=", "=debug", "device=loud", "info,,debug"] {
            assert!(levels(bad).is_err(), "{bad:?}");
        }
    }
}
