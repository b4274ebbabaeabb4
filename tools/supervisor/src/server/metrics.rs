//! The counters of devices, for Prometheus: `--metrics`.
//!
//! Each request gets a page in Prometheus's text format, made from the same counters as `tofu
//! stats`. One request is answered at a time, and a client that is slow or sends too much is
//! dropped.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tofu_control::{Counters, LinkCounters, NodeCounters, QueueCounters};
use tofu_fabric::{NodeId, Port};
use tofu_http::{Answer, Request};

use super::answers::info;
use super::counters;
use crate::registry::Registry;
use tofu_spec::units::MetricsAddress;

/// The only page.
const PATH: &str = "/metrics";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A port that serves metrics when there is a machine.
#[derive(Debug)]
pub struct Metrics {
    listener: TcpListener,
}

impl Metrics {
    /// Starts listening, which a sandboxed process can no longer do. Prints the address on standard
    /// error, because the host chooses the port if port 0 was requested.
    ///
    /// # Errors
    ///
    /// If the address is taken, or does not belong to the host.
    pub fn bind(address: MetricsAddress) -> anyhow::Result<Self> {
        let MetricsAddress(address) = address;
        let cannot = || format!("cannot serve metrics on {address}");
        let listener = TcpListener::bind(address).with_context(cannot)?;
        let at = listener.local_addr().with_context(cannot)?;
        tofu_ui::tell!("tofu: metrics at http://{at}{PATH}");
        if !address.ip().is_loopback() {
            log::warn!(
                "metrics: {address} is not of this host alone: others can read the counters"
            );
        }
        Ok(Self { listener })
    }

    /// Serves the counters of this machine until the process ends.
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
                        let page = || page(&registry);
                        let respond = |request: &Request| answer(request, page);
                        if let Err(error) = tofu_http::answer(client, respond) {
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

/// Returns the only page, or an error.
fn answer(request: &Request, page: impl FnOnce() -> String) -> Answer {
    match (request.method.as_str(), request.path.as_str()) {
        ("GET" | "HEAD", PATH) => Answer::good(TEXT, page()),
        ("GET" | "HEAD", _) => Answer::refused("404 Not Found", &format!("see {PATH}")),
        _ => Answer::refused("405 Method Not Allowed", "GET only"),
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
        // Writing to a string cannot fail.
        let _ = match labels.is_empty() {
            true => writeln!(metric.lines, "{name} {value}"),
            false => writeln!(metric.lines, "{name}{{{}}} {value}", labels.join(",")),
        };
    }

    /// Adds the counters of a part, each as its own metric.
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

/// Makes a register's name suitable for a metric's name.
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
    let NodeCounters { tnis, ports, queues, ecc, ip, nwp, links, under_way, modelled_ns: _ } =
        counters;
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
    samples.count("node", ecc, std::slice::from_ref(&node));
    ip.iter().for_each(|ip| samples.count("ip", ip, std::slice::from_ref(&node)));
    nwp.iter().for_each(|nwp| samples.count("nwp", nwp, std::slice::from_ref(&node)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_is_served_and_all_else_refused() {
        let said = |method: &str, path: &str| {
            let (method, path) = (method.to_owned(), path.to_owned());
            answer(&Request { method, path, ..Request::default() }, || "page".to_owned())
        };
        assert_eq!(said("GET", "/metrics"), Answer::good(TEXT, "page"));
        assert_eq!(said("HEAD", "/metrics"), Answer::good(TEXT, "page"));
        assert!(said("GET", "/").status.starts_with("404 "));
        assert!(said("POST", "/metrics").status.starts_with("405 "));
    }

    #[test]
    fn samples_are_grouped_and_labels_quoted() {
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
