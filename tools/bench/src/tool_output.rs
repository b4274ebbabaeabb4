//! Parses the output of third-party measuring programs.

use serde::Deserialize;

/// Returns the round trips that `ping` reports, in microseconds.
pub(crate) fn ping(output: &str) -> Vec<f64> {
    let time = |line: &str| {
        let (number, unit) = line.split_once(" time=")?.1.split_once(' ')?;
        let milliseconds: f64 = number.parse().ok()?;
        (unit.trim() == "ms").then_some(milliseconds * 1000.0)
    };
    output.lines().filter_map(time).collect()
}

/// Returns the numbers of the row for messages of `bytes` in the table of a perftest program.
fn perftest_row(output: &str, bytes: u64) -> Option<Vec<f64>> {
    let numbers = |line: &str| {
        let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        numbers.ok().filter(|numbers| numbers.first() == Some(&(bytes as f64)))
    };
    output.lines().rev().find_map(numbers)
}

/// Returns the one-way minimum, median and 99th percentile that `ib_write_lat` reports, in
/// microseconds.
pub(crate) fn write_latency(output: &str, bytes: u64) -> Option<[f64; 3]> {
    // Bytes, iterations, minimum, maximum, typical, average, deviation, 99 %, 99.9 %.
    let row = perftest_row(output, bytes)?;
    Some([*row.get(2)?, *row.get(4)?, *row.get(7)?])
}

/// Returns the average throughput that `ib_write_bw` reports, in MiB/s.
pub(crate) fn write_throughput(output: &str, bytes: u64) -> Option<f64> {
    // Bytes, iterations, peak, average, messages.
    perftest_row(output, bytes)?.get(3).copied()
}

/// Returns the throughput that `iperf3 --json` reports as received, in MiB/s; with `--bidir`, the
/// sum of both directions.
pub(crate) fn iperf(output: &str) -> Option<f64> {
    #[derive(Deserialize)]
    struct Report {
        end: End,
    }
    #[derive(Deserialize)]
    struct End {
        sum_received: Sum,
        sum_received_bidir_reverse: Option<Sum>,
    }
    #[derive(Deserialize)]
    struct Sum {
        bits_per_second: f64,
    }
    let report: Report = serde_json::from_str(output).ok()?;
    let back = report.end.sum_received_bidir_reverse.map_or(0.0, |sum| sum.bits_per_second);
    Some((report.end.sum_received.bits_per_second + back) / 8.0 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_lines() {
        let output = "\
PING 10.84.0.2 (10.84.0.2) 56(84) bytes of data.
64 bytes from 10.84.0.2: icmp_seq=1 ttl=64 time=6.05 ms
64 bytes from 10.84.0.2: icmp_seq=3 ttl=64 time=0.540 ms

2 packets transmitted, 2 received, 0% packet loss, time 472ms
rtt min/avg/max/mdev = 0.356/0.839/7.856/0.814 ms, ipg/ewma 1.579/0.629 ms
";
        assert_eq!(ping(output), [6050.0, 540.0]);
    }

    #[test]
    fn perftest_tables() {
        let latency = "\
 Mtu             : 1024[B]
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       1000          383.99         23046.83      686.65   \t       1828.79     \t2253.57\t\t\
12754.50 \t\t23046.83
---------------------------------------
";
        assert_eq!(write_latency(latency, 8), Some([383.99, 686.65, 12754.5]));
        assert_eq!(write_latency(latency, 16), None);
        let throughput = "\
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      300              12.99              5.74   \t\t     0.000092
";
        assert_eq!(write_throughput(throughput, 65536), Some(5.74));
        assert_eq!(write_throughput("Couldn't connect to 10.84.0.2:18515", 65536), None);
    }

    #[test]
    fn iperf_json() {
        let output = r#"{ "start": {}, "end": { "sum_sent": { "bytes": 1 },
            "sum_received": { "seconds": 2.1, "bits_per_second": 8388608.0 } } }"#;
        assert_eq!(iperf(output), Some(1.0));
        let output = r#"{ "end": { "sum_received": { "bits_per_second": 8388608.0 },
            "sum_received_bidir_reverse": { "bits_per_second": 16777216.0 } } }"#;
        assert_eq!(iperf(output), Some(3.0));
        assert_eq!(iperf("iperf3: error"), None);
    }
}
