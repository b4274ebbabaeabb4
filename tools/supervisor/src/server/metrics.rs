//! What devices have counted, for Prometheus: `--metrics`.
//!
//! A page in its text format, made from the same counters as `tofu stats` each time that it is
//! asked for. One request is answered at a time, and whoever is slow or says too much is left.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tofu_control::{Counters, LinkCounters, NodeCounters, QueueCounters};
use tofu_fabric::{NodeId, Port};

use super::answers::info;
use super::counters;
use crate::registry::Registry;
use crate::units::MetricsAddress;

/// Most bytes of a request's head, and fields in it.
const MAX_HEAD: usize = 8 << 10;
const MAX_FIELDS: usize = 64;
/// How long a client may take in all.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long, and for how many bytes, a client may go on talking when it has its answer.
const LINGER: Duration = Duration::from_secs(1);
const MAX_DRAIN: usize = 64 << 10;
/// The only page.
const PATH: &str = "/metrics";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A port that serves metrics when there is a machine.
#[derive(Debug)]
pub struct Metrics {
    listener: TcpListener,
}

impl Metrics {
    /// Listens, which a sandboxed process cannot begin later, and tells where on standard error: if
    /// port 0 was asked for, the host has chosen one.
    ///
    /// # Errors
    ///
    /// If the address is taken, or not the host's.
    pub fn bind(address: MetricsAddress) -> anyhow::Result<Self> {
        let MetricsAddress(address) = address;
        let cannot = || format!("cannot serve metrics on {address}");
        let listener = TcpListener::bind(address).with_context(cannot)?;
        let at = listener.local_addr().with_context(cannot)?;
        eprintln!("tofu: metrics at http://{at}{PATH}");
        if !address.ip().is_loopback() {
            log::warn!(
                "metrics: {address} is not of this host alone: others can read the counters"
            );
        }
        Ok(Self { listener })
    }

    /// Serves the counters of this machine, to the end of the process.
    ///
    /// # Errors
    ///
    /// If the host has no threads left.
    pub fn serve(self, registry: &Arc<Registry>) -> anyhow::Result<()> {
        let registry = Arc::clone(registry);
        let run = move || {
            for client in self.listener.incoming() {
                match client {
                    Ok(client) => {
                        if let Err(error) = answer(client, || page(&registry)) {
                            log::debug!("metrics: {error}");
                        }
                    }
                    Err(error) => {
                        log::warn!("metrics: {error}");
                        thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        };
        thread::Builder::new().name("metrics".into()).spawn(run).context("no threads left")?;
        Ok(())
    }
}

/// Answers one request and ends the connection.
fn answer(mut client: TcpStream, page: impl FnOnce() -> String) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let (status, kind, body) = match head(&mut client, until)? {
        Ok((method, path)) => match (method.as_str(), path.split('?').next()) {
            ("GET" | "HEAD", Some(PATH)) => {
                let body = if method == "GET" { page() } else { String::new() };
                ("200 OK", TEXT, body)
            }
            ("GET" | "HEAD", _) => ("404 Not Found", TEXT, format!("see {PATH}\n")),
            _ => ("405 Method Not Allowed", TEXT, "GET only\n".to_owned()),
        },
        Err(why) => ("400 Bad Request", TEXT, format!("{why}\n")),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    let all = head + &body;
    // A client that reads a byte now and then does not keep others waiting.
    let mut rest = all.as_bytes();
    while !rest.is_empty() {
        client.set_write_timeout(Some(left(until)?))?;
        let n = client.write(rest)?;
        rest = &rest[n..];
    }
    client.shutdown(Shutdown::Write)?;
    drain(&mut client, until.min(Instant::now() + LINGER))
}

/// Reads what a client still has to say, for a while: a connection that is closed before is reset,
/// and the answer may be lost with it.
fn drain(client: &mut TcpStream, until: Instant) -> io::Result<()> {
    let mut bytes = [0; 4096];
    for _ in 0..MAX_DRAIN / bytes.len() {
        client.set_read_timeout(Some(left(until)?))?;
        if client.read(&mut bytes)? == 0 {
            break;
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Method and path of a request, or what is wrong with it.
fn head(
    client: &mut TcpStream,
    until: Instant,
) -> io::Result<Result<(String, String), &'static str>> {
    let mut bytes = Vec::new();
    loop {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) => {
                let (method, path) = (request.method, request.path);
                let found = method.zip(path).map(|(method, path)| (method.into(), path.into()));
                return Ok(found.ok_or("no request"));
            }
            Ok(httparse::Status::Partial) if bytes.len() >= MAX_HEAD => {
                return Ok(Err("the request is too long"));
            }
            Ok(httparse::Status::Partial) => {}
            Err(_) => return Ok(Err("not a request of HTTP/1")),
        }
        client.set_read_timeout(Some(left(until)?))?;
        let mut more = [0; 1024];
        match client.read(&mut more)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend_from_slice(&more[..n]),
        }
    }
}

/// Samples by the names of their metrics.
#[derive(Debug, Default)]
struct Samples(BTreeMap<String, Metric>);

#[derive(Debug, Default)]
struct Metric {
    kind: &'static str,
    help: String,
    lines: String,
}

impl Samples {
    fn add(
        &mut self,
        name: &str,
        kind: &'static str,
        help: &str,
        labels: &[Label<'_>],
        value: impl fmt::Display,
    ) {
        let metric = self.0.entry(name.to_owned()).or_default();
        if metric.kind.is_empty() {
            (metric.kind, metric.help) = (kind, help.to_owned());
        }
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        let labels: Vec<_> = labels.collect();
        // Writing to a string does not fail.
        let _ = match labels.is_empty() {
            true => writeln!(metric.lines, "{name} {value}"),
            false => writeln!(metric.lines, "{name}{{{}}} {value}", labels.join(",")),
        };
    }

    /// Counters of a part, each as a metric of its own.
    fn count(&mut self, part: &str, counters: &Counters, labels: &[Label<'_>]) {
        for (register, value) in counters {
            let name = format!("tofu_{part}_{}_total", sane(register));
            let help = format!("{register}, see the manual's page on tofu stats");
            self.add(&name, "counter", &help, labels, value);
        }
    }

    fn page(&self) -> String {
        let mut page = String::new();
        for (name, Metric { kind, help, lines }) in &self.0 {
            let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
        }
        page
    }
}

type Label<'a> = (&'a str, String);

/// A register's name as part of a metric's.
fn sane(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    name.chars().map(keep).collect()
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn page(registry: &Registry) -> String {
    let machine = info(registry, false);
    let mut samples = Samples::default();
    let generation = machine.generation.clone().unwrap_or_default();
    let labels = [("shape", machine.shape.clone()), ("generation", generation)];
    samples.add("tofu_machine_info", "gauge", "The machine.", &labels, 1);
    samples.add(
        "tofu_machine_uptime_seconds",
        "gauge",
        "Time since the machine was started.",
        &[],
        machine.seconds,
    );
    let down = machine.links_down.len();
    samples.add("tofu_links_down", "gauge", "Links that are down.", &[], down);
    for node in &machine.nodes {
        let labels = [
            ("node", node.index.to_string()),
            ("name", node.name.clone()),
            ("kind", node.kind.to_string()),
            ("state", node.state.clone()),
        ];
        samples.add("tofu_node_info", "gauge", "A node with a device.", &labels, 1);
        let (label, up) = (&labels[..1], u8::from(!node.down));
        samples.add("tofu_node_router_up", "gauge", "Whether its router works.", label, up);
        // A machine that has not started yet has no counters.
        if let Ok(Some(counters)) = counters::of(registry, NodeId(node.index)) {
            of_node(&mut samples, node.index, &counters);
        }
    }
    samples.page()
}

fn of_node(samples: &mut Samples, node: u32, counters: &NodeCounters) {
    let NodeCounters { tnis, ports, queues, ip, nwp, links, under_way } = counters;
    let node = ("node", node.to_string());
    let help = "Commands that wait for answers.";
    let label = std::slice::from_ref(&node);
    samples.add("tofu_commands_under_way", "gauge", help, label, under_way);
    for (n, tni) in tnis.iter().enumerate() {
        samples.count("tni", tni, &[node.clone(), ("tni", n.to_string())]);
    }
    for (port, counters) in Port::ALL.iter().zip(ports) {
        samples.count("port", counters, &[node.clone(), ("port", port.to_string())]);
    }
    for QueueCounters { tni, cq, counters } in queues {
        let labels = [node.clone(), ("tni", tni.to_string()), ("cq", cq.to_string())];
        samples.count("queue", counters, &labels);
    }
    for LinkCounters { port, counters, channels } in links {
        let port = ("port", port.clone());
        samples.count("link", counters, &[node.clone(), port.clone()]);
        for (n, channel) in channels.iter().enumerate() {
            let labels = [node.clone(), port.clone(), ("channel", n.to_string())];
            samples.count("channel", channel, &labels);
        }
    }
    ip.iter().for_each(|ip| samples.count("ip", ip, std::slice::from_ref(&node)));
    nwp.iter().for_each(|nwp| samples.count("nwp", nwp, std::slice::from_ref(&node)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes back for these bytes.
    fn said(bytes: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let answers = thread::spawn(move || answer(server, || "page\n".to_owned()));
        // The other end may have said no before it has read everything.
        let _ = client.write_all(bytes);
        let mut text = Vec::new();
        let _ = client.read_to_end(&mut text);
        drop(client);
        let _ = answers.join().unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn one_page_is_served_and_all_else_refused() {
        let good = said(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\npage\n"));
        assert!(good.contains("Content-Length: 5\r\n"));
        let head = said(b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
        let many = "a: b\r\n".repeat(MAX_FIELDS + 1);
        for (bytes, expected) in [
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n".to_vec(), "405"),
            (b"\x16\x03\x01\x00\xff".to_vec(), "400"),
            (b"GET /metrics HTTP/9\r\n\r\n".to_vec(), "400"),
            (format!("GET /metrics HTTP/1.1\r\n{many}\r\n").into_bytes(), "400"),
            ([b"GET /".to_vec(), vec![b'a'; MAX_HEAD]].concat(), "400"),
        ] {
            let answer = said(&bytes);
            assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{answer}");
        }
    }

    #[test]
    fn samples_of_a_metric_stand_together_and_labels_are_quoted() {
        let mut samples = Samples::default();
        let counters: Counters = [("NUM_SEND_TLP".to_owned(), 5), ("A B".to_owned(), 1)].into();
        for n in ["0", "1\"\\\n"] {
            samples.count("tni", &counters, &[("node", n.to_owned())]);
        }
        let text = samples.page();
        let expected = "# HELP tofu_tni_a_b_total A B, see the manual's page on tofu stats\n\
                        # TYPE tofu_tni_a_b_total counter\n\
                        tofu_tni_a_b_total{node=\"0\"} 1\n\
                        tofu_tni_a_b_total{node=\"1\\\"\\\\\\n\"} 1\n";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(text.matches("# TYPE").count(), 2);
    }
}
