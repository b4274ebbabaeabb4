//! Barriers and reductions by gates, compared with those by Puts, between guests.

use std::fmt::{self, Write};

use anyhow::bail;
use serde::Serialize;
use tofu_spec::MachineSpec;
use tofu_spec::units::{Doorbell, GuestArgs};

use crate::machine::{PATIENCE, run_machine, up};

/// The results.
#[derive(Debug, Serialize)]
pub(crate) struct Barriers {
    /// Rounds of twelve guests.
    guests: Vec<Round>,
}

/// A barrier or a sum among guests.
#[derive(Debug, Serialize)]
struct Round {
    doorbells: &'static str,
    /// True if barrier gates are used, rather than Puts.
    gates: bool,
    /// Size of the sum; 0 for a barrier.
    bytes: u64,
    min_us: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Measures everything, and prints results as they come.
pub(crate) fn measure(
    quick: bool,
    say: &mut dyn FnMut(&dyn fmt::Display) -> std::io::Result<()>,
) -> anyhow::Result<Barriers> {
    say(&"\nTwelve guests: a barrier and an 8-byte sum, by gates against the same by Puts")?;
    say(&Round::header())?;
    let mut guests = Vec::new();
    for doorbell in [Doorbell::Trapped, Doorbell::Polled] {
        let rounds = among_guests(doorbell, quick)?;
        for round in rounds {
            say(&round)?;
            guests.push(round);
        }
    }
    for bytes in [0, 8] {
        if let Some(ratio) = ratio(&guests, bytes) {
            let what = if bytes == 0 { "barrier" } else { "8-byte sum" };
            say(&format_args!("{what}: {ratio:.1} times as fast by gates (p50, best doorbells)"))?;
        }
    }
    Ok(Barriers { guests })
}

/// Returns how many times faster gates are than Puts, by their medians.
fn ratio(rounds: &[Round], bytes: u64) -> Option<f64> {
    let best = |gates| {
        let same = rounds.iter().filter(|round| round.gates == gates && round.bytes == bytes);
        same.map(|round| round.p50_us).min_by(f64::total_cmp)
    };
    Some(best(false)? / best(true)?)
}

fn among_guests(doorbell: Doorbell, quick: bool) -> anyhow::Result<Vec<Round>> {
    let rounds = if quick { 100 } else { 1000 };
    let args = MachineSpec {
        args: Some(GuestArgs(format!("rounds={rounds}"))),
        doorbell: Some(doorbell),
        ..up("unit", "barrier")?
    };
    let doorbells = doorbell.name();
    let run = run_machine(&args, PATIENCE)?;
    if !run.ok {
        bail!("barrier with {doorbells} doorbells failed");
    }
    let rounds: Vec<_> = run.lines.iter().filter_map(|line| Round::of(doorbells, line)).collect();
    if rounds.len() != 4 {
        bail!("barrier with {doorbells} doorbells has printed no table");
    }
    Ok(rounds)
}

impl Round {
    /// Parses a line of the guest's table: 0 or 1, bytes, and times in microseconds.
    fn of(doorbells: &'static str, line: &str) -> Option<Self> {
        let words: Option<Vec<f64>> =
            line.split_whitespace().map(|word| word.parse().ok()).collect();
        match words?[..] {
            [gates, bytes, min_us, p50_us, p99_us] => {
                let (gates, bytes) = (gates == 1.0, bytes as u64);
                Some(Self { doorbells, gates, bytes, min_us, p50_us, p99_us })
            }
            _ => None,
        }
    }

    fn name(&self) -> String {
        let what = if self.bytes == 0 { "barrier" } else { "8-byte sum" };
        let how = if self.gates { "gates" } else { "Puts" };
        format!("{what} by {how}, {}", self.doorbells)
    }

    fn header() -> String {
        format!("{:36} {:>10} {:>10} {:>10}", "", "min us", "p50 us", "p99 us")
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min_us, p50_us, p99_us, .. } = self;
        write!(f, "{:36} {min_us:>10.2} {p50_us:>10.2} {p99_us:>10.2}", self.name())
    }
}

const WIDTH: f64 = 720.0;
const COLOURS: [&str; 4] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"];

/// Draws the figures as a bar chart.
pub(crate) fn svg(barriers: &Barriers) -> String {
    let bars = barriers.guests.len() as f64 * 26.0 + 60.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {bars}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n<text x=\"10\" y=\"20\" font-size=\"14\">12 guests: median, and 99th \
         percentile as a line (us, logarithmic)</text>\n"
    );
    let most = barriers.guests.iter().map(|round| round.p99_us).fold(1.0, f64::max);
    let x = |us: f64| 260.0 + us.max(1.0).ln() / most.max(2.0).ln() * (WIDTH - 340.0);
    for (i, round) in barriers.guests.iter().enumerate() {
        let y = 36.0 + i as f64 * 26.0;
        let colour = COLOURS[usize::from(!round.gates)];
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{:.1}\">{}</text><rect x=\"260\" y=\"{y:.1}\" width=\"{:.1}\" \
             height=\"16\" fill=\"{colour}\"/><line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{:.1}\" \
             y2=\"{:.1}\" stroke=\"black\"/><text x=\"{:.1}\" y=\"{:.1}\">{:.1}</text>",
            y + 13.0,
            round.name(),
            x(round.p50_us) - 260.0,
            x(round.p50_us),
            x(round.p99_us),
            y + 8.0,
            y + 8.0,
            x(round.p99_us) + 4.0,
            y + 13.0,
            round.p50_us
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_has_every_round() {
        let guests = vec![Round::of("polled", " 1 8 3.25 4 5.5").unwrap()];
        let svg = svg(&Barriers { guests });
        assert!(svg.contains("8-byte sum by gates, polled") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(Round::of("polled", "gates bytes min us p50 us p99 us").is_none());
    }
}
