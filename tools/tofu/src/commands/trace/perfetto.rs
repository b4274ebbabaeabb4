//! Traces for Perfetto, in the JSON trace-event format.
//!
//! Perfetto's own format is denser. But this one needs no crate besides `serde_json`, which also
//! ensures that no string breaks the format. Other viewers read it, too. A truncated file, for
//! example on a full disk, can still be read, because the bracket at its end may be missing.
//!
//! A node is a process of the file. Each place in a queue's table of outstanding commands is a
//! thread: commands of one place never overlap, so spans on it nest.

use std::collections::HashSet;
use std::io::{self, Write};

use serde_json::{Value, json};
use tofu_abi::regs::Register;
use tofu_control::protocol::{TracedCommand, TracedInterrupt, TracedPart};

/// The first number of threads that serve requests, and the number of the thread of interrupts.
const SERVERS: u32 = 1 << 20;
const INTERRUPTS: u32 = 1 << 21;

/// Writes a file.
pub(super) struct Perfetto<W> {
    out: W,
    /// The file's time 0, in nanoseconds since 1970: times in it are floating-point numbers.
    start_ns: Option<u64>,
    /// Processes, and their threads, that already have a name.
    named: HashSet<(u32, Option<u32>)>,
    flows: u64,
    empty: bool,
}

/// A span.
struct Span<'a> {
    name: &'a str,
    category: &'a str,
    node: u32,
    thread: u32,
    begin_ns: u64,
    end_ns: u64,
    args: Value,
}

/// Perfetto multiplies by 1000 and truncates. A number that is slightly too small would lose a
/// nanosecond, and a span might then extend beyond its parent. So a tenth of a nanosecond is added
/// to each. The precision of floating-point numbers suffices for that for hours.
fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0 + 1e-4
}

impl<W: Write> Perfetto<W> {
    /// Begins a file.
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"[\n")?;
        out.flush()?;
        Ok(Self { out, start_ns: None, named: HashSet::new(), flows: 0, empty: true })
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Ends it.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]\n")?;
        self.out.flush()
    }

    /// Writes a command, with the work that was done for it.
    pub(super) fn command(&mut self, command: &TracedCommand) -> io::Result<()> {
        let TracedCommand { node, tni, cq, tag, begin_ns, end_ns, .. } = command;
        let (node, begin_ns, end_ns) = (*node, *begin_ns, (*end_ns).max(*begin_ns));
        let place = tag.map_or(64, |(index, _)| u32::from(index.min(63)));
        let thread = 1 + (u32::from(*tni) * 256 + u32::from(*cq)) * 65 + place;
        self.name(node, thread, || match place {
            64 => format!("TNI {tni} CQ {cq}, ended at once"),
            _ => format!("TNI {tni} CQ {cq}, command {place}"),
        })?;
        let name = match command.rcode {
            0 => command.command.clone(),
            _ => format!("{} FAILED", command.command),
        };
        let mut args = json!(command);
        if let Some(args) = args.as_object_mut() {
            args.remove("parts");
        }
        let category = if command.rcode == 0 { "command" } else { "command,failed" };
        self.span(&Span { name: &name, category, node, thread, begin_ns, end_ns, args })?;
        if let Some(rung) = command.doorbell_ns {
            let ts = self.time(rung);
            let name = "doorbell";
            self.event(&json!({ "ph": "i", "s": "t", "name": name, "cat": name, "ts": ts,
                "pid": node, "tid": thread }))?;
        }
        let (Some(first), Some(last)) = (
            command.parts.iter().map(|part| part.begin_ns).min(),
            command.parts.iter().map(|part| part.end_ns).max(),
        ) else {
            return Ok(());
        };
        let within = |ns: u64| ns.clamp(begin_ns, end_ns);
        let category = "way";
        let hops = json!({ "hops": command.hops, "tlps": command.tlps });
        let there = (begin_ns, within(first));
        let back = (within(last), end_ns);
        let way = |file: &mut Self, name, (begin_ns, end_ns), args| {
            file.span(&Span { name, category, node, thread, begin_ns, end_ns, args })
        };
        // A packet has no answer, and may arrive after its end.
        let packet = command.is_packet();
        // In this order, as of spans that begin at the same time an arrow is from the last one.
        if !packet {
            way(self, "there", there, hops)?;
        }
        for part in &command.parts {
            let at = self.served(command, part)?;
            let begin_ns = part.begin_ns;
            self.flow((node, thread, within(begin_ns)), (part.node, at, begin_ns))?;
        }
        if packet { Ok(()) } else { way(self, "back: answer, TCQ entry, notice", back, json!({})) }
    }

    /// Writes a part of a command's work, and returns the thread that did it.
    fn served(&mut self, command: &TracedCommand, part: &TracedPart) -> io::Result<u32> {
        let TracedCommand { node, tni, cq, tag, .. } = command;
        let at = SERVERS + part.thread;
        self.name(part.node, at, || format!("serves (thread {})", part.thread))?;
        let verb = match (command.is_packet(), part.done) {
            (false, _) => "serve",
            (true, 0) => "discard",
            (true, _) => "receive",
        };
        let name = format!("{verb} {} of node {node}", command.command);
        let (begin_ns, end_ns) = (part.begin_ns, part.end_ns);
        let args = json!({ "from": node, "tni": tni, "cq": cq, "tag": tag,
            "position": part.position, "done": part.done, "rcode": part.rcode,
            "why": command.why });
        let category = "serve";
        let span =
            Span { name: &name, category, node: part.node, thread: at, begin_ns, end_ns, args };
        self.span(&span)?;
        Ok(at)
    }

    /// Writes an interrupt, up to the guest's next access.
    pub(super) fn interrupt(&mut self, interrupt: &TracedInterrupt) -> io::Result<()> {
        let TracedInterrupt { node, vector, at_ns, access_ns, offset } = *interrupt;
        self.name(node, INTERRUPTS, || "interrupts".to_owned())?;
        let ts = self.time(at_ns);
        self.flows += 1;
        let (pid, tid, id) = (node, INTERRUPTS, format!("interrupt{}", self.flows));
        let name = format!("vector {vector}");
        let register = offset.map(|offset| match Register::decode(offset) {
            Some(register) => format!("{register:?}"),
            None => format!("{offset:#x}"),
        });
        let args = json!({ "vector": vector, "register": register });
        let Some(access_ns) = access_ns else {
            return self.event(&json!({ "ph": "i", "s": "t", "name": name, "cat": "interrupt",
                "ts": ts, "pid": pid, "tid": tid, "args": args }));
        };
        let end = self.time(access_ns.max(at_ns));
        // Several may wait for the same access, so these are spans that need not nest.
        for (ph, ts, args) in [("b", ts, args), ("e", end, json!({}))] {
            self.event(&json!({ "ph": ph, "name": name, "cat": "interrupt", "id": id, "ts": ts,
                "pid": pid, "tid": tid, "args": args }))?;
        }
        Ok(())
    }

    /// Microseconds since the start of the file.
    fn time(&mut self, ns: u64) -> f64 {
        // The first command in the trace may not have begun first, so this leaves room before it.
        let start = *self.start_ns.get_or_insert_with(|| ns.saturating_sub(10_000_000_000));
        microseconds(ns.saturating_sub(start))
    }

    fn span(&mut self, span: &Span<'_>) -> io::Result<()> {
        let Span { name, category, node, thread, begin_ns, end_ns, args } = span;
        let ts = self.time(*begin_ns);
        let dur = microseconds(end_ns.saturating_sub(*begin_ns));
        self.event(&json!({ "ph": "X", "name": name, "cat": category, "ts": ts, "dur": dur,
            "pid": node, "tid": thread, "args": args }))
    }

    /// Writes an arrow from a span to another, each by node, thread and a time within it.
    fn flow(&mut self, from: (u32, u32, u64), to: (u32, u32, u64)) -> io::Result<()> {
        self.flows += 1;
        let id = self.flows;
        for (ph, (pid, tid, ns)) in [("s", from), ("f", to)] {
            let ts = self.time(ns);
            self.event(&json!({ "ph": ph, "bp": "e", "name": "request", "cat": "request",
                "id": id, "ts": ts, "pid": pid, "tid": tid }))?;
        }
        Ok(())
    }

    /// Gives a thread of a node its name, the first time.
    fn name(&mut self, node: u32, thread: u32, name: impl FnOnce() -> String) -> io::Result<()> {
        if self.named.insert((node, None)) {
            let args = json!({ "name": format!("node {node}") });
            self.event(&json!({ "ph": "M", "name": "process_name", "pid": node, "args": args }))?;
        }
        if self.named.insert((node, Some(thread))) {
            let args = json!({ "name": name() });
            let name = "thread_name";
            self.event(
                &json!({ "ph": "M", "name": name, "pid": node, "tid": thread, "args": args }),
            )?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Value) -> io::Result<()> {
        if !std::mem::take(&mut self.empty) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut self.out, event).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tofu_fuzz::traced::Traced;
    use tofu_supervisor::trace::{Assembler, Ended};

    use super::*;

    /// Spans of the threads of a file, each by begin, and the longer one first.
    type Threads = BTreeMap<(u64, u64), Vec<(i64, i64)>>;

    /// Returns true if any two spans of a thread are either nested or disjoint.
    fn nest(threads: &mut Threads) -> bool {
        threads.values_mut().all(|spans| {
            spans.sort_by_key(|(begin, end)| (*begin, -end));
            let mut open: Vec<(i64, i64)> = Vec::new();
            spans.iter().all(|(begin, end)| {
                open.retain(|outer| outer.1 > *begin);
                let nests = open.last().is_none_or(|outer| *end <= outer.1);
                open.push((*begin, *end));
                nests
            })
        })
    }

    /// An input's commands, assembled and written to a file: their number, and the file.
    fn file(traced: Traced) -> (u64, Vec<Value>) {
        let Traced { shape, records, reasons, ended: counted, lost } = traced;
        assert_eq!(lost, 0);
        let (mut assembler, mut ended) = (Assembler::new(shape), Ended::default());
        assembler.learn(reasons);
        records.iter().for_each(|record| assembler.take(record, &mut ended));
        assembler.finish(&mut ended);
        assert_eq!((ended.commands.len() as u64, assembler.open()), (counted, 0));
        let mut bytes = Vec::new();
        let mut perfetto = Perfetto::new(&mut bytes).unwrap();
        for (_, command) in &ended.commands {
            let line = json!(command).to_string();
            assert!(!line.contains(char::is_control), "{line}");
            assert_eq!(&serde_json::from_str::<TracedCommand>(&line).unwrap(), command);
            perfetto.command(command).unwrap();
        }
        ended.interrupts.iter().for_each(|interrupt| perfetto.interrupt(interrupt).unwrap());
        perfetto.finish().unwrap();
        (counted, serde_json::from_slice(&bytes).unwrap())
    }

    #[test]
    fn times_are_exact_for_hours() {
        for ns in (0..30_000_000_000_000_u64).step_by(12_345_678_901) {
            assert_eq!((microseconds(ns) * 1000.0) as u64, ns);
        }
    }

    #[test]
    fn corpora_traces_are_valid_files() {
        for (target, traced) in [
            ("descriptors", tofu_fuzz::descriptors::traced as fn(&[u8]) -> Traced),
            ("tables", tofu_fuzz::tables::traced),
        ] {
            let (mut commands, mut failed) = (0, 0);
            for (name, input) in tofu_fuzz::corpus(target) {
                let (counted, events) = file(traced(&input));
                let (mut threads, mut spans) = (Threads::new(), 0);
                for event in events.iter().filter(|event| event["ph"] == "X") {
                    let at = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
                    // Nanoseconds as Perfetto has them.
                    let ns = |what: &str| (event[what].as_f64().unwrap() * 1000.0) as i64;
                    let (ts, dur) = (ns("ts"), ns("dur"));
                    threads.entry(at).or_default().push((ts, ts + dur));
                    let category = event["cat"].as_str().unwrap();
                    spans += u64::from(category.starts_with("command"));
                    failed += u64::from(category == "command,failed");
                }
                assert_eq!(spans, counted, "{target} {name}");
                assert!(nest(&mut threads), "{target} {name}: {threads:?}");
                commands += counted;
            }
            assert!(commands > 100 && failed > 10, "{target}: {failed} of {commands}");
        }
    }
}
