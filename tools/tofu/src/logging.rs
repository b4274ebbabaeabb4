//! What is logged: `RUST_LOG` and `--log`.

use std::io::Write as _;
use std::time::SystemTime;

use env_logger::{Builder, Env};
use humantime::format_rfc3339_seconds;
use log::LevelFilter;

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

/// Starts to log: warnings, and what the environment and the command line ask for.
pub(crate) fn start(levels: Option<&str>) {
    let mut builder = Builder::from_env(Env::default().default_filter_or("warn"));
    if let Some(levels) = levels {
        builder.parse_filters(levels);
    }
    builder.format(|line, record| {
        let (now, level) = (format_rfc3339_seconds(SystemTime::now()), record.level());
        let style = line.default_level_style(level);
        let (target, text) = (record.target(), record.args());
        writeln!(line, "[{now} {style}{level:<5}{style:#} {target}] {text}")
    });
    builder.init();
}

#[cfg(test)]
mod tests {
    use super::*;

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
