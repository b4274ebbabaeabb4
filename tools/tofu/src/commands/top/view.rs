//! The contents of the screen, and the effects of keys.

use std::time::Instant;

use clap::ValueEnum;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use tofu_control::protocol::MachineInfo;
use tofu_control::rates::{Look, NodeSample, Rates, modelled_ns, rate, seconds_between};
use tofu_control::{Counters, NodeCounters};
use tofu_fabric::Port;
use tofu_ui::printable;

/// Columns that nodes can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Number of the node
    Node,
    /// Commands that ended
    Commands,
    /// Bytes sent
    Sent,
    /// Bytes received
    Received,
    /// Commands and packets that failed
    Errors,
    /// Commands that wait for answers
    Waiting,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    Enter,
    Escape,
    Char(char),
    /// Ctrl-C.
    Interrupt,
}

/// Parses keys from a terminal's input. A sequence may arrive in pieces.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The beginning of an incomplete sequence.
    begun: Vec<u8>,
}

/// No sequence of interest is longer.
const LONGEST: usize = 8;

impl Keys {
    /// The keys in these bytes.
    pub(super) fn of(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for &byte in bytes {
            match (self.begun.as_slice(), byte) {
                ([], 0x1b) => self.begun.push(byte),
                ([], byte) => keys.extend(plain(byte)),
                ([0x1b], b'[' | b'O') => self.begun.push(byte),
                ([0x1b], byte) => {
                    keys.push(Key::Escape);
                    self.begun.clear();
                    if byte == 0x1b {
                        self.begun.push(byte);
                    } else {
                        keys.extend(plain(byte));
                    }
                }
                (_, 0x40..=0x7e) => {
                    self.begun.clear();
                    match byte {
                        b'A' => keys.push(Key::Up),
                        b'B' => keys.push(Key::Down),
                        _ => {}
                    }
                }
                (begun, _) if begun.len() >= LONGEST => self.begun.clear(),
                _ => self.begun.push(byte),
            }
        }
        keys
    }

    /// If nothing has followed for a while, it was the Escape key by itself.
    pub(super) fn rest(&mut self) -> Vec<Key> {
        match std::mem::take(&mut self.begun).as_slice() {
            [0x1b] => vec![Key::Escape],
            _ => Vec::new(),
        }
    }
}

fn plain(byte: u8) -> Option<Key> {
    Some(match byte {
        3 => Key::Interrupt,
        b'\r' | b'\n' => Key::Enter,
        0x7f | 8 => Key::Escape,
        b'j' => Key::Down,
        b'k' => Key::Up,
        b' '..=b'~' => Key::Char(byte.into()),
        _ => return None,
    })
}

/// A machine at a moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    /// Its shape and generation.
    pub(super) machine: String,
    /// Since it was started.
    pub(super) seconds: f64,
    pub(super) links_down: usize,
    pub(super) nodes: Vec<NodeSample>,
}

impl From<Look> for Sample {
    fn from(look: Look) -> Self {
        let Look { at, machine, nodes } = look;
        let MachineInfo { shape, generation, links_down, seconds, .. } = machine;
        let machine = format!("{shape} {}", generation.unwrap_or_default());
        Self { at, machine, seconds, links_down: links_down.len(), nodes }
    }
}

/// A row of nodes: the activity per second.
#[derive(Clone, Debug)]
struct Row {
    index: u32,
    name: String,
    state: String,
    rates: Rates,
}

impl Row {
    fn by(&self, sort: Sort) -> f64 {
        match sort {
            Sort::Node => f64::from(self.index),
            Sort::Commands => self.rates.commands,
            Sort::Sent => self.rates.sent,
            Sort::Received => self.rates.received,
            Sort::Errors => self.rates.errors,
            Sort::Waiting => self.rates.waiting as f64,
        }
    }
}

/// The part of the machine that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Nodes,
    Links,
    /// A node, by its number.
    Node(u32),
}

/// The contents of the screen.
#[derive(Debug)]
pub(super) struct View {
    name: String,
    last: Option<Sample>,
    /// The activity per second between the last two samples, and the current state.
    rows: Vec<Row>,
    links: Vec<(String, f64)>,
    /// Nodes with the increase of their counters, and the time that it took.
    added: Vec<(NodeSample, f64)>,
    sort: Sort,
    reversed: bool,
    chosen: usize,
    page: Page,
    paused: bool,
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

impl View {
    pub(super) fn new(name: &str, sort: Sort) -> Self {
        Self {
            name: name.to_owned(),
            last: None,
            rows: Vec::new(),
            links: Vec::new(),
            added: Vec::new(),
            sort,
            reversed: false,
            chosen: 0,
            page: Page::Nodes,
            paused: false,
        }
    }

    /// Takes another sample of the machine, unless the view is paused.
    pub(super) fn take(&mut self, sample: Sample) {
        if self.paused {
            return;
        }
        let before = self.last.as_ref();
        let seconds = before.map_or(0.0, |last| {
            seconds_between((last.at, &last.nodes), (sample.at, &sample.nodes))
        });
        let added = sample.nodes.iter().map(|node| {
            let same = |other: &&NodeSample| other.index == node.index;
            // At first there is nothing to compare with.
            (node.since(before.and_then(|last| last.nodes.iter().find(same))), seconds)
        });
        self.added = added.collect();
        let row = |(node, seconds): &(NodeSample, f64)| {
            let NodeSample { index, name, state, .. } = node.clone();
            Row { index, name, state, rates: node.rates(*seconds) }
        };
        self.rows = self.added.iter().map(row).collect();
        let links = |(node, seconds): &(NodeSample, f64)| {
            let ports = node.ports(*seconds).into_iter();
            ports.map(|(port, load)| (format!("{} {port}", node.name), load)).collect::<Vec<_>>()
        };
        self.links = self.added.iter().flat_map(links).collect();
        self.links.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        self.last = Some(sample);
        self.order();
    }

    fn order(&mut self) {
        let (sort, reversed) = (self.sort, self.reversed);
        // The greatest value comes first, but the lowest of node numbers.
        let down = (sort != Sort::Node) != reversed;
        self.rows.sort_by(|a, b| {
            let order = a.by(sort).total_cmp(&b.by(sort));
            let order = if down { order.reverse() } else { order };
            order.then(a.index.cmp(&b.index))
        });
        self.chosen = self.chosen.min(self.lines().saturating_sub(1));
    }

    /// The number of lines that can be scrolled through.
    fn lines(&self) -> usize {
        match self.page {
            Page::Nodes => self.rows.len(),
            Page::Links => self.links.len(),
            Page::Node(_) => self.details().len(),
        }
    }

    /// Handles a key; returns false for the end.
    pub(super) fn key(&mut self, key: Key) -> bool {
        match key {
            Key::Interrupt | Key::Char('q') => return false,
            Key::Up => self.chosen = self.chosen.saturating_sub(1),
            Key::Down => self.chosen = (self.chosen + 1).min(self.lines().saturating_sub(1)),
            Key::Enter if self.page == Page::Nodes => {
                if let Some(row) = self.rows.get(self.chosen) {
                    self.page = Page::Node(row.index);
                    self.chosen = 0;
                }
            }
            Key::Escape => {
                let back = match self.page {
                    Page::Node(index) => self.rows.iter().position(|row| row.index == index),
                    _ => None,
                };
                self.chosen = back.unwrap_or(0);
                self.page = Page::Nodes;
            }
            Key::Char('l') => {
                self.page = if self.page == Page::Links { Page::Nodes } else { Page::Links };
                self.chosen = 0;
            }
            Key::Char('s') => {
                self.sort = match self.sort {
                    Sort::Node => Sort::Commands,
                    Sort::Commands => Sort::Sent,
                    Sort::Sent => Sort::Received,
                    Sort::Received => Sort::Errors,
                    Sort::Errors => Sort::Waiting,
                    Sort::Waiting => Sort::Node,
                };
                self.order();
            }
            Key::Char('r') => {
                self.reversed = !self.reversed;
                self.order();
            }
            Key::Char('p') => self.paused = !self.paused,
            Key::Enter | Key::Char(_) => {}
        }
        true
    }

    /// Draws all of it, at any size.
    pub(super) fn draw(&self, area: Rect, out: &mut Buffer) {
        let mut put = |y: u16, text: &str, style: Style| {
            if y < area.height {
                let (x, y, width) = (area.x, area.y + y, area.width.into());
                out.set_stringn(x, y, printable(text), width, style);
            }
        };
        let Some(last) = &self.last else { return };
        let down = match last.links_down {
            0 => String::new(),
            n => format!(", {n} links down"),
        };
        let paused = if self.paused { ", paused" } else { "" };
        let (name, machine, seconds) = (&self.name, &last.machine, last.seconds as u64);
        let modelled = modelled_ns(&last.nodes)
            .map_or_else(String::new, |ns| format!(", modelled time {:.3} s", ns as f64 / 1e9));
        put(0, &format!("{name}: {machine}, up {seconds} s{modelled}{down}{paused}"), BOLD);
        let (title, lines): (String, Vec<String>) = match self.page {
            Page::Nodes => {
                let title = format!(
                    "{:>5} {:<17}{:<10}{:>9}{:>9}{:>9}{:>8}{:>8}",
                    "node", "name", "state", "cmd/s", "sent/s", "recv/s", "err/s", "waiting"
                );
                (title, self.rows.iter().map(Row::line).collect())
            }
            Page::Links => {
                let line = |(name, load): &(String, f64)| format!("{name:<40} {:>9}", short(*load));
                let title = format!("{:<40} {:>9}", "link, busiest first", "bytes/s");
                (title, self.links.iter().map(line).collect())
            }
            Page::Node(index) => (format!("node {index}, in a second"), self.details()),
        };
        put(1, &title, BOLD);
        // The last line has the keys, where there is room for one.
        let keys = area.height > 5;
        let room = usize::from(area.height.saturating_sub(2 + u16::from(keys))).max(1);
        let first = self.chosen.saturating_sub(room - 1);
        for (y, (n, line)) in (2..).zip(lines.iter().enumerate().skip(first).take(room)) {
            put(y, line, if n == self.chosen { REVERSED } else { Style::new() });
        }
        if keys {
            put(area.height - 1, &self.keys(area.width.into()), BOLD);
        }
    }

    /// The keys, in as many words as there is room for.
    fn keys(&self, room: usize) -> String {
        let sort = format!("{:?}", self.sort).to_lowercase();
        let texts = [
            format!("q quit  enter node  esc back  l links  s sort ({sort})  r reverse  p pause"),
            format!("q quit  enter node  esc back  l links  s {sort}  r reverse  p pause"),
            "q quit  enter node  l links  s sort  p pause".to_owned(),
            "q quit  l links  s sort".to_owned(),
            "q quit".to_owned(),
        ];
        texts.into_iter().find(|text| text.len() <= room).unwrap_or_default()
    }

    /// All of a node's counts per second.
    fn details(&self) -> Vec<String> {
        let Page::Node(index) = self.page else { return Vec::new() };
        let Some((node, seconds)) = self.added.iter().find(|(node, _)| node.index == index) else {
            return vec!["it is not there any more".to_owned()];
        };
        let mut lines = vec![format!("{} {}", node.name, node.state)];
        let mut block = |title: String, counters: &Counters| {
            let counted = counters.iter().filter(|(_, n)| **n > 0);
            for (n, (name, value)) in counted.enumerate() {
                if n == 0 {
                    lines.push(title.clone());
                }
                lines.push(format!("  {name:<32} {:>12}", short(rate(*value, *seconds))));
            }
        };
        let NodeCounters { tnis, ports, queues, ecc, ip, nwp, links, under_way, modelled_ns: _ } =
            &node.counters;
        block("error-correcting codes".to_owned(), ecc);
        for (n, tni) in tnis.iter().enumerate() {
            block(format!("TNI {n}"), tni);
        }
        for queue in queues {
            block(format!("TNI {}, control queue {}", queue.tni, queue.cq), &queue.counters);
        }
        for (port, counters) in Port::ALL.iter().zip(ports) {
            block(format!("port {port}"), counters);
        }
        for link in links {
            block(format!("link {}", link.port), &link.counters);
            for (n, channel) in link.channels.iter().enumerate() {
                block(format!("link {}, channel {n}", link.port), channel);
            }
        }
        nwp.iter().for_each(|nwp| block("network processor".to_owned(), nwp));
        ip.iter().for_each(|ip| block("IP over Tofu".to_owned(), ip));
        if *under_way > 0 {
            lines.push(format!("commands that wait for answers: {under_way}"));
        }
        lines
    }
}

impl Row {
    fn line(&self) -> String {
        let Self { index, name, state, rates } = self;
        let Rates { commands, sent, received, errors, waiting } = rates;
        let [commands, sent, received, errors] =
            [commands, sent, received, errors].map(|rate| short(*rate));
        format!(
            "{index:>5} {name:<17}{state:<10.9}{commands:>9}{sent:>9}{received:>9}{errors:>8}\
             {waiting:>8}"
        )
    }
}

/// A number in at most six columns.
fn short(value: f64) -> String {
    let mut value = value;
    for unit in ["", "k", "M", "G", "T", "P"] {
        if value < 999.5 {
            return match unit {
                "" if value == 0.0 => "0".to_owned(),
                "" if value < 9.95 => format!("{value:.1}"),
                "" => format!("{value:.0}"),
                _ if value < 9.95 => format!("{value:.1}{unit}"),
                _ => format!("{value:.0}{unit}"),
            };
        }
        value /= 1000.0;
    }
    "many".to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tofu_abi::regs::{PortReg, TniReg};

    use super::*;

    fn sample(at: Instant, nodes: u32, n: u64) -> Sample {
        let node = |index: u32| {
            let tni = [
                (TniReg::ByteSendTlp.name().to_owned(), n * u64::from(index) * 1000),
                (TniReg::RxNumUnknownTlp.name().to_owned(), n * u64::from(nodes - index)),
            ];
            let port = [(PortReg::ByteSendTlp.name().to_owned(), n * u64::from(index))];
            let counters = NodeCounters {
                tnis: vec![tni.into()],
                ports: vec![port.into(); 10],
                under_way: u64::from(index % 3),
                ..NodeCounters::default()
            };
            let name = format!("t-{index}-0-0-0-0-0");
            NodeSample { index, name, state: "run\x1b[31mning".to_owned(), counters }
        };
        Sample {
            at,
            machine: "4x1x1x1x1x1 fugaku".to_owned(),
            seconds: 12.0,
            links_down: 1,
            nodes: (0..nodes).map(node).collect(),
        }
    }

    fn view(nodes: u32) -> View {
        let mut view = View::new("tofu", Sort::Node);
        let start = Instant::now();
        view.take(sample(start, nodes, 1));
        view.take(sample(start + Duration::from_secs(2), nodes, 5));
        view
    }

    /// The lines that a terminal of this size shows.
    fn shown(view: &View, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        view.draw(area, &mut buffer);
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn nodes_are_listed_with_their_last_second() {
        let lines = shown(&view(4), 80, 24);
        assert_eq!(lines[0], "tofu: 4x1x1x1x1x1 fugaku, up 12 s, 1 links down");
        assert!(lines[1].contains("cmd/s   sent/s   recv/s   err/s waiting"), "{lines:?}");
        // 3 * 4000 units of 16 bytes in two seconds.
        let words: Vec<_> = lines[5].split_whitespace().collect();
        assert_eq!(words[0], "3");
        assert_eq!(words[words.len() - 4..], ["96k", "0", "2.0", "0"]);
        assert!(lines[23].starts_with("q quit"), "{lines:?}");
    }

    #[test]
    fn rates_are_by_modelled_time_if_there_is_any() {
        let mut view = View::new("tofu", Sort::Node);
        let start = Instant::now();
        for (seconds, n, ns) in [(0, 1, 1_000_000_000), (2, 5, 1_000_800_000)] {
            let mut sample = sample(start + Duration::from_secs(seconds), 4, n);
            sample.nodes[0].counters.modelled_ns = Some(ns);
            view.take(sample);
        }
        let lines = shown(&view, 80, 24);
        assert_eq!(
            lines[0],
            "tofu: 4x1x1x1x1x1 fugaku, up 12 s, modelled time 1.001 s, 1 links down"
        );
        // 3 * 4000 units of 16 bytes in 0.8 ms.
        let words: Vec<_> = lines[5].split_whitespace().collect();
        assert_eq!(words[words.len() - 4], "240M");
    }

    #[test]
    fn keys_are_never_cut() {
        let mut view = view(4);
        view.sort = Sort::Received;
        let last = |width| shown(&view, width, 24)[23].clone();
        assert!(last(80).ends_with("s sort (received)  r reverse  p pause"), "{}", last(80));
        assert!(last(72).ends_with("s received  r reverse  p pause"), "{}", last(72));
        for width in 6..=100 {
            let line = last(width);
            let whole = ["pause", "sort", "quit"].iter().any(|word| line.ends_with(word));
            assert!(line.starts_with("q quit") && whole, "{width}: {line}");
        }
    }

    #[test]
    fn keys_sort_and_go_into_a_node_and_back() {
        let mut view = view(4);
        let first =
            |view: &View| shown(view, 80, 24)[2].split_whitespace().next().unwrap().to_owned();
        assert_eq!(first(&view), "0");
        for (keys, expected) in [("ss", "3"), ("r", "0"), ("rss", "0"), ("s", "2"), ("s", "0")] {
            keys.chars().for_each(|c| assert!(view.key(Key::Char(c))));
            assert_eq!(first(&view), expected, "{keys}");
        }
        assert!(view.key(Key::Down) && view.key(Key::Enter));
        let node = shown(&view, 80, 24);
        assert!(
            node[1] == "node 1, in a second" && node[2].starts_with("t-1-0-0-0-0-0"),
            "{node:?}"
        );
        assert!(node.iter().any(|line| line.contains("BYTE_SEND_TLP")), "{node:?}");
        assert!(view.key(Key::Escape));
        assert_eq!(view.chosen, 1);
        assert!(view.key(Key::Char('l')));
        let links = shown(&view, 80, 24);
        assert!(links[2].starts_with("t-3-0-0-0-0-0 A "), "{links:?}");
        assert!(!view.key(Key::Char('q')) && !view.key(Key::Interrupt));
    }

    #[test]
    fn paused_view_stands_still() {
        let mut view = view(2);
        let before = shown(&view, 80, 24)[2..].to_vec();
        view.key(Key::Char('p'));
        view.take(sample(Instant::now() + Duration::from_secs(9), 2, 99));
        let after = shown(&view, 80, 24);
        assert!(after[0].ends_with("paused"));
        assert_eq!(after[2..], before);
    }

    #[test]
    fn any_terminal_size_works_escaped() {
        let mut view = view(768);
        for _ in 0..800 {
            view.key(Key::Down);
        }
        for page in [None, Some(Key::Enter), Some(Key::Escape), Some(Key::Char('l'))] {
            page.into_iter().for_each(|key| assert!(view.key(key)));
            for (width, height) in [(20, 5), (80, 24), (1, 1), (0, 0), (5, 2), (300, 100)] {
                let lines = shown(&view, width, height);
                assert!(lines.iter().flat_map(|line| line.chars()).all(|c| !c.is_control()));
            }
        }
        assert_eq!(shown(&view, 20, 5)[0], "tofu: 4x1x1x1x1x1 fu");
    }

    #[test]
    fn keys_may_come_in_pieces() {
        let mut keys = Keys::default();
        assert_eq!(keys.of(b"\x1b[A\x1b"), [Key::Up]);
        assert_eq!(keys.of(b"[B"), [Key::Down]);
        assert_eq!(keys.of(b"\x1b"), []);
        assert_eq!(keys.rest(), [Key::Escape]);
        assert_eq!(keys.rest(), []);
        assert_eq!(keys.of(b"\x1b[1;5Cq\r\x03\xff"), [Key::Char('q'), Key::Enter, Key::Interrupt]);
        // A sequence that is too long is ignored.
        assert_eq!(keys.of(b"\x1b[000000000000000q").last(), Some(&Key::Char('q')));
    }
}
