//! The cost in instructions of a Put over direct links, and of a traced one, so that neither grows
//! unnoticed.
//!
//! The test runs itself under Valgrind with two numbers of Puts; the difference is due to the Puts
//! alone, whatever the host does meanwhile. It depends on the compiler, so with another one the
//! test is skipped, and the numbers here must be measured again.

use std::process::Command;

use tofu_inproc::Pair;

/// The compiler of the counts. The profile is that of tests.
const COMPILER: &str = "1.95.";
/// Instructions of a Put of this many bytes, measured with that compiler. Optimised, a Put takes
/// 8930. In tests, inlining changes with the size of crates, and so does this number.
const MEASURED: [(u32, f64); 1] = [(8, 20_200.0)];
/// By how much it may be more.
const MARGIN: f64 = 0.03;

/// How many instructions more a traced one takes: four records, each with a look at the
/// processor's counter.
const TRACED: f64 = 1_540.0;
/// By how much that may be more: it is a difference, so what is inlined weighs more.
const TRACED_MARGIN: f64 = 0.1;

/// Tells the test to run Puts instead: how many, of how many bytes, and whether traced.
const ASKED: &str = "TOFU_PUT_COST";

/// Instructions that this program takes for `puts` Puts.
fn instructions(bytes: u32, puts: u32, traced: bool) -> u64 {
    let itself = std::env::current_exe().expect("a program knows where it is");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(itself)
        .args(["--exact", "a_put_over_direct_links_costs_no_more", "--test-threads", "1"])
        .env(ASKED, format!("{bytes} {puts} {}", u32::from(traced)))
        .output()
        .expect("it was there a moment ago");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let count = said.lines().find_map(|line| line.split_once("Collected :")).map(|(_, n)| n.trim());
    count.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no count: {said}"))
}

fn says(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_put_over_direct_links_costs_no_more() {
    if let Ok(asked) = std::env::var(ASKED) {
        let numbers: Vec<u32> = asked.split(' ').map(|n| n.parse().expect("a number")).collect();
        let mut pair = Pair::new().expect("two nodes");
        let order = pair.put(numbers[0]);
        let _trace = (numbers[2] == 1).then(|| pair.network().trace().expect("a trace"));
        (0..numbers[1]).for_each(|_| pair.run(&order).expect("a Put"));
        return;
    }
    let test = "a_put_over_direct_links_costs_no_more";
    let compiler = says("rustc").unwrap_or_default();
    if !cfg!(target_arch = "x86_64") {
        eprintln!("SKIP {test}: counts are of x86-64");
        return;
    }
    if says("valgrind").is_none() {
        eprintln!("SKIP {test}: there is no valgrind");
        return;
    }
    if !compiler.starts_with(&format!("rustc {COMPILER}")) {
        eprintln!("SKIP {test}: counts are of Rust {COMPILER}x, not of {}", compiler.trim());
        return;
    }
    for (bytes, measured) in MEASURED {
        let count = |traced| {
            let more = instructions(bytes, 3000, traced) - instructions(bytes, 1000, traced);
            more as f64 / 2000.0
        };
        let (each, traced) = (count(false), count(true));
        let more = traced - each;
        eprintln!("{bytes} bytes: {each:.0} instructions a Put, {measured} when it was measured");
        eprintln!("{bytes} bytes, traced: {more:.0} more, {TRACED} when it was measured");
        assert!(each <= measured * (1.0 + MARGIN), "{bytes} bytes: {each}, more than {measured}");
        assert!(more <= TRACED * (1.0 + TRACED_MARGIN), "traced: {more}, more than {TRACED}");
    }
}
