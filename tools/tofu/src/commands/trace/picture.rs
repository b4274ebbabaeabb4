//! Traces as a picture: time to the right, and a row for each place in a queue's table of
//! outstanding commands, as for Perfetto, and for each thread that served them.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use tofu_control::protocol::TracedCommand;
use tofu_ui::printable;

use super::text;

/// The most commands and rows of a picture: more would not be readable.
const COMMANDS: usize = 400;
const ROWS: usize = 48;

// Lengths in pixels.
const LEFT: f64 = 200.0;
const WIDTH: f64 = 960.0;
const TOP: f64 = 72.0;
const ROW: f64 = 26.0;
const BAR: f64 = 16.0;
const MARGIN: f64 = 24.0;
/// Shorter ones would not be visible.
const LEAST: f64 = 1.5;

/// Parts of a command, with their colours.
const PARTS: [(&str, &str); 4] = [
    ("there", "#8dbbe3"),
    ("served at the target", "#5f9e34"),
    ("back", "#f2bd6b"),
    ("failed", "#e0201b"),
];

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
        let first = self.commands.iter().map(begin).min().unwrap_or(0);
        let last = self.commands.iter().map(end).max().unwrap_or(0);
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
        let taken = last.saturating_sub(first).max(1);
        let mut drawing = Drawing { out: String::new(), first, taken, rows };
        let width = LEFT + WIDTH + MARGIN;
        drawing.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\" \
             fill=\"#222222\">"
        ));
        drawing.add(format_args!("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"));
        drawing.head(self.commands.len(), self.more, hidden);
        drawing.scale(height - 1.5 * MARGIN);
        self.commands.iter().for_each(|command| drawing.command(command));
        drawing.add(format_args!("</svg>"));
        drawing.out
    }
}

fn begin(command: &TracedCommand) -> u64 {
    command.doorbell_ns.map_or(command.begin_ns, |rung| rung.min(command.begin_ns))
}

/// When it has ended, and has come to its target if it is a packet.
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

struct Drawing {
    out: String,
    /// The beginning and the length of the picture, in nanoseconds.
    first: u64,
    taken: u64,
    rows: BTreeMap<Row, usize>,
}

impl Drawing {
    fn add(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.out.write_fmt(text);
        self.out.push('\n');
    }

    fn x(&self, ns: u64) -> f64 {
        let since = ns.saturating_sub(self.first).min(self.taken);
        LEFT + WIDTH * since as f64 / self.taken as f64
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
            let x = LEFT + 160.0 * place as f64;
            self.add(format_args!(
                "<rect x=\"{x}\" y=\"40\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"50\">{name}</text>",
                x + 18.0
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
        while self.taken / step > 10 {
            // 1, 2, 5, 10, and so on.
            step = if step.to_string().starts_with('2') { step / 2 * 5 } else { step * 2 };
        }
        for tick in 0..=self.taken / step {
            let (ns, top) = (tick * step, TOP - 8.0);
            let x = self.x(self.first + ns);
            self.add(format_args!(
                "<path d=\"M{x:.1} {top}V{bottom}\" stroke=\"#d0d0d8\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{} us</text>",
                bottom + 16.0,
                ns as f64 / 1000.0
            ));
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
                    "<path d=\"M{x:.1} {from}L{at:.1} {to}\" stroke=\"#7a7a88\" \
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
