//! What a Put over direct links costs in instructions, so that it does not creep up.
//!
//! The test runs itself under Valgrind with two numbers of Puts; the difference is that of the
//! Puts alone, whatever the host does meanwhile. It depends on the compiler, so with another one
//! the test is skipped, and the numbers here are to be measured anew.

use std::process::Command;

use tofu_inproc::Pair;

/// The compiler that the counts are of, and the profile: that of tests.
const COMPILER: &str = "1.95.";
/// Instructions of a Put of so many bytes, measured with it. Optimised, it takes 8930; what is
/// inlined in tests changes with the size of crates, and so does this.
const MEASURED: [(u32, f64); 1] = [(8, 20_200.0)];
/// By how much it may be more.
const MARGIN: f64 = 0.03;

/// Says how many Puts the test is to run instead, and of how many bytes.
const ASKED: &str = "TOFU_PUT_COST";

/// Instructions that this program takes for so many Puts.
fn instructions(bytes: u32, puts: u32) -> u64 {
    let itself = std::env::current_exe().expect("a program knows where it is");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(itself)
        .args(["--exact", "a_put_over_direct_links_costs_no_more", "--test-threads", "1"])
        .env(ASKED, format!("{bytes} {puts}"))
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
        (0..numbers[1]).for_each(|_| pair.run(&order).expect("a Put"));
        return;
    }
    let test = "a_put_over_direct_links_costs_no_more";
    let compiler = says("rustc").unwrap_or_default();
    if says("valgrind").is_none() {
        eprintln!("SKIP {test}: there is no valgrind");
        return;
    }
    if !compiler.starts_with(&format!("rustc {COMPILER}")) {
        eprintln!("SKIP {test}: counts are of Rust {COMPILER}x, not of {}", compiler.trim());
        return;
    }
    for (bytes, measured) in MEASURED {
        let each = (instructions(bytes, 3000) - instructions(bytes, 1000)) as f64 / 2000.0;
        eprintln!("{bytes} bytes: {each:.0} instructions a Put, {measured} when it was measured");
        assert!(each <= measured * (1.0 + MARGIN), "{bytes} bytes: {each}, more than {measured}");
    }
}
