//! Traces as a picture: time to the right, and a row for each entry in a queue's table of
//! outstanding commands, as for Perfetto, and for each thread that served them.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use tofu_control::protocol::TracedCommand;
use tofu_ui::palette::{DOWN, GOOD, THERE, WAITING};
use tofu_ui::printable;

use super::text;

/// The most commands and rows of a picture: more would not be readable.
const COMMANDS: usize = 400;
const ROWS: usize = 48;

// Lengths in pixels.
const LEFT: f64 = 200.0;
const WIDTH: f64 = 960.0;
const TOP: f64 = 92.0;
const ROW: f64 = 26.0;
const BAR: f64 = 16.0;
const MARGIN: f64 = 24.0;
/// Shorter ones would not be visible.
const LEAST: f64 = 1.5;
/// The width of idle time that is cut, and the least distance of the times below.
const CUT: f64 = 22.0;
const APART: f64 = 56.0;

/// Idle time is cut if it is longer than this part of the time in which something happens.
const LONG: u64 = 12;
/// Cuts take at most half of the width.
const CUTS: usize = (WIDTH / CUT / 2.0) as usize;

/// Parts of a command, with their colours.
const PARTS: [(&str, &str); 4] =
    [("there", THERE), ("served at the target", GOOD), ("back", WAITING), ("failed", DOWN)];

/// Lines from commands to what their targets did, and idle time that is cut.
const WAY: &str = "#7a7a88";
const IDLE: &str = "#e3e3ea";

/// Keeps commands for a picture.
#[derive(Default)]
pub(super) struct Picture {
    commands: Vec<TracedCommand>,
    /// Those that it has no room for.
    more: u64,
}

/// A row: its node, whether it is of a thread that serves, then interface and queue, and the place
/// in the table or the thread.
type Row = (u32, bool, u8, u8, u32);

impl Picture {
    /// Adds a command, if there is room.
    pub(super) fn command(&mut self, command: &TracedCommand) {
        if self.commands.len() < COMMANDS {
            self.commands.push(command.clone());
        } else {
            self.more += 1;
        }
    }

    /// Draws everything as a stand-alone SVG document.
    pub(super) fn draw(&self) -> String {
        let mut rows: BTreeMap<Row, usize> = BTreeMap::new();
        for command in &self.commands {
            rows.insert(own_row(command), 0);
            rows.extend(command.parts.iter().map(|part| (serving(part.node, part.thread), 0)));
        }
        let hidden = rows.len().saturating_sub(ROWS);
        while rows.len() > ROWS {
            rows.pop_last();
        }
        rows.values_mut().enumerate().for_each(|(index, place)| *place = index);
        let height = TOP + ROW * rows.len() as f64 + 2.0 * MARGIN;
        let clock = Clock::new(self.commands.iter().map(|command| (begin(command), end(command))));
        let mut drawing = Drawing { out: String::new(), clock, rows };
        let width = LEFT + WIDTH + MARGIN;
        drawing.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\" \
             fill=\"#222222\">"
        ));
        drawing.add(format_args!("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"));
        drawing.head(self.commands.len(), self.more, hidden);
        drawing.scale(height - 1.5 * MARGIN);
        drawing.cuts(height - 1.5 * MARGIN);
        self.commands.iter().for_each(|command| drawing.command(command));
        drawing.add(format_args!("</svg>"));
        drawing.out
    }
}

fn begin(command: &TracedCommand) -> u64 {
    command.doorbell_ns.map_or(command.begin_ns, |rung| rung.min(command.begin_ns))
}

/// The time when it has ended, and, for a packet, has also reached its target.
fn end(command: &TracedCommand) -> u64 {
    command.parts.iter().map(|part| part.end_ns).fold(command.end_ns, u64::max)
}

fn own_row(command: &TracedCommand) -> Row {
    let place = command.tag.map_or(u32::MAX, |(index, _)| index.into());
    (command.node, false, command.tni, command.cq, place)
}

fn serving(node: u32, thread: u32) -> Row {
    (node, true, 0, 0, thread)
}

/// Escapes foreign text for an XML document.
fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for c in printable(text).chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            c => safe.push(c),
        }
    }
    safe
}

/// The places of times from left to right.
struct Clock {
    /// Beginnings and ends, in nanoseconds, of the times that are drawn to scale, in order. The
    /// times between them are cut.
    spans: Vec<(u64, u64)>,
    /// The sum of their lengths.
    taken: u64,
}

impl Clock {
    /// A clock for commands with these beginnings and ends.
    fn new(commands: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut busy: Vec<(u64, u64)> = commands.collect();
        busy.sort_unstable();
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for (begin, end) in busy {
            match spans.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => spans.push((begin, end)),
            }
        }
        if spans.is_empty() {
            spans.push((0, 0));
        }
        let taken: u64 = spans.iter().map(|(begin, end)| end - begin).sum();
        // The shortest of the idle times that are cut: at most CUTS of them are.
        let mut idle: Vec<u64> = spans.windows(2).map(|two| two[1].0 - two[0].1).collect();
        idle.sort_unstable_by(|one, other| other.cmp(one));
        let long = (taken / LONG).max(1).max(idle.get(CUTS).map_or(0, |next| next + 1));
        spans.dedup_by(|next, last| {
            let kept = next.0 - last.1 < long;
            if kept {
                last.1 = next.1;
            }
            kept
        });
        let taken = spans.iter().map(|(begin, end)| end - begin).sum::<u64>().max(1);
        Self { spans, taken }
    }

    fn first(&self) -> u64 {
        self.spans.first().map_or(0, |span| span.0)
    }

    fn x(&self, ns: u64) -> f64 {
        let scale = (WIDTH - CUT * (self.spans.len() - 1) as f64) / self.taken as f64;
        let mut x = LEFT;
        let mut before = None;
        for &(begin, end) in &self.spans {
            if ns < begin {
                // In what is cut, or before the beginning.
                return before.map_or(x, |_| x - CUT / 2.0);
            }
            if ns <= end {
                return x + scale * (ns - begin) as f64;
            }
            x += scale * (end - begin) as f64 + CUT;
            before = Some(end);
        }
        x - CUT
    }
}

struct Drawing {
    out: String,
    clock: Clock,
    rows: BTreeMap<Row, usize>,
}

impl Drawing {
    fn add(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.out.write_fmt(text);
        self.out.push('\n');
    }

    fn x(&self, ns: u64) -> f64 {
        self.clock.x(ns)
    }

    /// The upper edge of a row's bars.
    fn y(&self, row: Row) -> Option<f64> {
        self.rows.get(&row).map(|place| TOP + ROW * *place as f64)
    }

    /// Draws the title, the legend, and the names of rows.
    fn head(&mut self, commands: usize, more: u64, hidden: usize) {
        let mut title = format!("{commands} commands");
        if more > 0 {
            title += &format!(", and {more} more that are not shown");
        }
        if hidden > 0 {
            title += &format!("; {hidden} rows are not shown");
        }
        self.add(format_args!(
            "<text x=\"{MARGIN}\" y=\"28\" font-size=\"16\" font-weight=\"bold\">{title}</text>"
        ));
        for (place, (name, colour)) in PARTS.into_iter().enumerate() {
            let x = LEFT + 150.0 * place as f64;
            self.add(format_args!(
                "<rect x=\"{x}\" y=\"40\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"50\">{name}</text>",
                x + 18.0
            ));
        }
        let (x, y) = (LEFT + 150.0 * PARTS.len() as f64, 46);
        self.add(format_args!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"2.5\"/><text x=\"{}\" y=\"50\">doorbell</text>\
             <path d=\"M{} 40l16 12\" stroke=\"{WAY}\"/>\
             <text x=\"{}\" y=\"50\">to the target</text>",
            x + 10.0,
            x + 90.0,
            x + 114.0
        ));
        if self.clock.spans.len() > 1 {
            self.add(format_args!(
                "<rect x=\"{LEFT}\" y=\"60\" width=\"12\" height=\"12\" fill=\"{IDLE}\"/>\
                 <text x=\"{}\" y=\"70\">idle time, cut; its length is above</text>",
                LEFT + 18.0
            ));
        }
        for ((node, serves, tni, cq, place), row) in self.rows.clone() {
            let name = match (serves, place) {
                (true, _) => format!("node {node} serves, thread {place}"),
                (false, u32::MAX) => format!("node {node} TNI {tni} CQ {cq}, at once"),
                (false, _) => format!("node {node} TNI {tni} CQ {cq}, {place}"),
            };
            let y = TOP + ROW * row as f64;
            if row % 2 == 0 {
                let (y, width) = (y - (ROW - BAR) / 2.0, LEFT + WIDTH);
                self.add(format_args!(
                    "<rect x=\"0\" y=\"{y}\" width=\"{width}\" height=\"{ROW}\" fill=\"#f4f4f7\"/>"
                ));
            }
            self.add(format_args!("<text x=\"{MARGIN}\" y=\"{}\">{name}</text>", y + 12.0));
        }
    }

    /// Draws lines of time, at round numbers, with their microseconds.
    fn scale(&mut self, bottom: f64) {
        let mut step = 1;
        while self.clock.taken / step > 10 {
            // 1, 2, 5, 10, and so on.
            step = if step.to_string().starts_with('2') { step / 2 * 5 } else { step * 2 };
        }
        let (first, top) = (self.clock.first(), TOP - 8.0);
        let mut last = f64::NEG_INFINITY;
        for (begin, end) in self.clock.spans.clone() {
            for tick in (begin - first).div_ceil(step)..=(end - first) / step {
                let ns = tick * step;
                let x = self.x(first + ns);
                self.add(format_args!("<path d=\"M{x:.1} {top}V{bottom}\" stroke=\"#d0d0d8\"/>"));
                if x - last < APART {
                    continue;
                }
                last = x;
                self.add(format_args!(
                    "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{} us</text>",
                    bottom + 16.0,
                    ns as f64 / 1000.0
                ));
            }
        }
        self.add(format_args!(
            "<text x=\"{MARGIN}\" y=\"{}\">since the first command</text>",
            bottom + 16.0
        ));
    }

    /// Draws what is cut, with its length.
    fn cuts(&mut self, bottom: f64) {
        let mut last = f64::NEG_INFINITY;
        for two in self.clock.spans.clone().windows(2) {
            let (from, to) = (self.x(two[0].1), self.x(two[1].0));
            let (top, width) = (TOP - 8.0, to - from);
            let length = (two[1].0 - two[0].1) as f64 / 1000.0;
            self.add(format_args!(
                "<rect x=\"{from:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{}\" \
                 fill=\"{IDLE}\"><title>{length} us without a command</title></rect>",
                bottom - top
            ));
            let x = (from + to) / 2.0;
            if x - last >= APART {
                last = x;
                self.add(format_args!(
                    "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\">\
                     {} us</text>",
                    top - 3.0,
                    length.round()
                ));
            }
        }
    }

    fn bar(&mut self, row: Row, (begin, end): (u64, u64), part: usize, title: &str) {
        let Some(y) = self.y(row) else { return };
        let (x, width) = (self.x(begin), (self.x(end) - self.x(begin)).max(LEAST));
        let colour = PARTS[part].1;
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" \
             fill=\"{colour}\"><title>{title}</title></rect>"
        ));
    }

    fn command(&mut self, command: &TracedCommand) {
        let (row, begin, end) = (own_row(command), command.begin_ns, command.end_ns);
        let mut title = escaped(&text::line(command));
        if let Some(why) = &command.why {
            title += &format!("\n{}", escaped(why));
        }
        let failed = command.rcode != 0;
        let first = command.parts.iter().map(|part| part.begin_ns).min();
        let last = command.parts.iter().map(|part| part.end_ns).max();
        let (first, last) = (first.unwrap_or(end), last.unwrap_or(end));
        let first = if command.is_packet() { end } else { first };
        self.bar(row, (begin, first), if failed { 3 } else { 0 }, &title);
        // A packet has no answer, and may arrive after its end.
        if last < end && !command.is_packet() {
            self.bar(row, (last, end), if failed { 3 } else { 2 }, &title);
        }
        if let Some((rung, y)) = command.doorbell_ns.zip(self.y(row)) {
            let (x, y) = (self.x(rung), y + BAR / 2.0);
            self.add(format_args!(
                "<circle cx=\"{x:.1}\" cy=\"{y}\" r=\"2.5\"><title>doorbell</title></circle>"
            ));
        }
        for part in &command.parts {
            let there = serving(part.node, part.thread);
            self.bar(there, (part.begin_ns, part.end_ns), 1, &title);
            if let Some((from, to)) = self.y(row).zip(self.y(there)) {
                // From the lower edge of one to the upper edge of the other.
                let (from, to) = if from < to { (from + BAR, to) } else { (from, to + BAR) };
                let (x, at) = (self.x(begin), self.x(part.begin_ns));
                self.add(format_args!(
                    "<path d=\"M{x:.1} {from}L{at:.1} {to}\" stroke=\"{WAY}\" \
                     stroke-width=\"0.7\"/>"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::trace::text::example;

    #[test]
    fn picture_escapes_markup_and_controls() {
        let mut picture = Picture::default();
        let why = Some("</title><script>\u{1b}[31m&\"".to_owned());
        picture.command(&TracedCommand { why, rcode: 0x33, ..example() });
        let svg = picture.draw();
        assert!(!svg.contains("<script") && !svg.contains("&\""), "{svg}");
        let control = |c: char| c.is_control() && c != '\n';
        assert!(!svg.contains(control), "{svg}");
        assert!(svg.contains("&lt;/title&gt;&lt;script&gt;"), "{svg}");
        assert_eq!(svg.matches("<title>").count(), svg.matches("</title>").count());
    }

    #[test]
    fn idle_time_is_cut() {
        let at = |begin: u64| (begin, begin + 1000);
        let clock = Clock::new([at(2_000_000), at(0), at(500), at(1_000_000)].into_iter());
        assert_eq!(clock.spans, [(0, 1500), (1_000_000, 1_001_000), (2_000_000, 2_001_000)]);
        assert!((clock.x(0) - LEFT).abs() < 1e-9);
        assert!((clock.x(2_001_000) - LEFT - WIDTH).abs() < 1e-9);
        let widths = [(0, 1500), (1_000_000, 1_001_000)].map(|(a, b)| clock.x(b) - clock.x(a));
        assert!((widths[0] / widths[1] - 1.5).abs() < 1e-9, "{widths:?}");
        assert!((clock.x(1_000_000) - clock.x(1500) - CUT).abs() < 1e-9);
        assert!(clock.x(500_000) > clock.x(1500) && clock.x(500_000) < clock.x(1_000_000));
        // A short wait is no cut, and of very many the longest are.
        assert_eq!(Clock::new([(0, 1000), (1010, 2000)].into_iter()).spans, [(0, 2000)]);
        let many = Clock::new((0..400).map(|n| (n * 1_000_000, n * 1_000_000 + 10)));
        assert!(many.spans.len() <= CUTS + 1);
        let waits = (0..400).map(|n: u64| (n * n * 1_000_000, n * n * 1_000_000 + 10));
        assert_eq!(Clock::new(waits).spans.len(), CUTS + 1);
        assert_eq!(Clock::new(std::iter::empty()).x(5), LEFT);
    }

    #[test]
    fn commands_without_room_are_counted() {
        let mut picture = Picture::default();
        assert!(picture.draw().contains("0 commands<"));
        for n in 0..500 {
            picture.command(&TracedCommand { node: n, ..example() });
        }
        let svg = picture.draw();
        assert!(svg.contains("400 commands, and 100 more that are not shown; "), "{svg}");
        assert!(svg.matches("<rect").count() < 3 * COMMANDS, "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
