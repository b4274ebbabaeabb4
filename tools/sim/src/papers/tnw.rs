//! TNW: latency and bandwidth of a link, and Figure 2.

use tofu_machine::TORUS_TIMING;

use super::results::Results;
use crate::plot::{Curves, Line};
use crate::tnw::exchange::{Exchange, Scheme};

/// Bytes of the message whose latency the paper gives.
const SHORT: usize = 128;
/// Bytes of the messages whose bandwidth is near the paper's (*ours*: what a window holds; the
/// paper does not give the length of its messages).
const LONG: usize = tofu_abi::tnw::WINDOW_RING as usize;
/// Bytes of messages so long that overhead is negligible: what a *maximal* bandwidth would have.
const VERY_LONG: usize = 1 << 20;
/// The sizes of Figure 2, as powers of two.
const SIZES: std::ops::RangeInclusive<u32> = 7..=16;

pub(super) fn measure(results: &mut Results) -> anyhow::Result<()> {
    let run = |scheme, size| Exchange::of_a_node(1, scheme, size)?.run();
    let packet = tofu_abi::tnw::PACKET_SIZE as u64;
    results.set("tnw-processors", TORUS_TIMING.transit_ps(1, packet) as f64 / 1e6);
    results.set("tnw-link", run(Scheme::Pput, VERY_LONG)?.bytes_per_s / 1e9);
    for (name, scheme) in [("tnw-pput-latency", Scheme::Pput), ("tnw-nget-latency", Scheme::Nget)] {
        results.set(name, run(scheme, SHORT)?.message_ps / 1e6);
    }
    let rates = [
        ("tnw-pput", "tnw-pput-long", Scheme::Pput),
        ("tnw-flushed", "tnw-flushed-long", Scheme::PputFlushed),
        ("tnw-nget", "tnw-nget-long", Scheme::Nget),
    ];
    for (name, long, scheme) in rates {
        results.set(name, run(scheme, LONG)?.bytes_per_s / 1e9);
        results.set(long, run(scheme, VERY_LONG)?.bytes_per_s / 1e9);
    }
    for scheme in [Scheme::PputFlushed, Scheme::Pput, Scheme::Nget] {
        let mut lines = Vec::new();
        for links in 1..=3 {
            let mut points = Vec::new();
            for power in SIZES {
                let outcome = Exchange::of_a_node(links, scheme, 1 << power)?.run()?;
                let rate = outcome.bytes_per_s * links as f64 / 1e9;
                points.push((f64::from(1u32 << power), rate));
            }
            let name = if links == 1 { "1 link".to_owned() } else { format!("{links} links") };
            lines.push(Line { name, points });
        }
        let title = format!("TNW Figure 2: {scheme}, links of a node together");
        results.curves.push(Curves { title, y: "GB/s", x: "bytes", lines });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The manual has this table, and values for some other sizes.
    #[test]
    fn manual_has_the_models_values() {
        let manual = include_str!("../../../../docs/src/reference/tnw.md");
        let (_, time) = manual.split_once("## Time").unwrap();
        let run = |scheme, size| Exchange::of_a_node(1, scheme, size).unwrap().run().unwrap();
        let mut expected = Vec::new();
        for scheme in [Scheme::Pput, Scheme::Nget] {
            expected.push(format!("| {:.2} us |", run(scheme, SHORT).message_ps / 1e6));
        }
        for (_, scheme) in Scheme::ALL {
            expected.push(format!("| {:.2} GB/s |", run(scheme, LONG).bytes_per_s / 1e9));
        }
        for (name, size) in [("8 KiB", 8 << 10), ("64 KiB", 64 << 10), ("1 MiB", VERY_LONG)] {
            let rate = |scheme| run(scheme, size).bytes_per_s / 1e9;
            let (pput, nget) = (rate(Scheme::Pput), rate(Scheme::Nget));
            expected.push(format!("{name} {pput:.2} and {nget:.2}"));
        }
        let words: Vec<_> = time.split_whitespace().collect();
        let time = words.join(" ");
        let missing: Vec<_> = expected.iter().filter(|text| !time.contains(*text)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
