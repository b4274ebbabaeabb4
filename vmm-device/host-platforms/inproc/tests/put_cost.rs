//! The cost of a Put over direct links in instructions and allocations, and of a traced one in
//! instructions, so that none of them grows unnoticed.
//!
//! The tests run this program under Valgrind with two numbers of Puts; the difference is due to the
//! Puts alone, whatever the host does meanwhile. Instructions depend on the compiler, so with
//! another one they are not counted, and the numbers here must be measured again.

use std::process::Command;

use tofu_inproc::Pair;

/// The compiler of the counts. The profile is that of tests.
const COMPILER: &str = "1.95.";
/// Instructions of a Put of this many bytes, measured with that compiler. Optimised, a Put takes
/// 8792. In tests, inlining changes with the size of crates, and so does this number.
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

/// What a tool of Valgrind counts for `puts` Puts, after these words of what it prints.
fn count(tool: &[&str], words: &str, [bytes, puts, traced]: [u32; 3]) -> u64 {
    let itself = std::env::current_exe().expect("a program knows where it is");
    let output = Command::new("valgrind")
        .args(tool)
        .arg(itself)
        .args(["--exact", "puts_for_valgrind", "--test-threads", "1"])
        .env(ASKED, format!("{bytes} {puts} {traced}"))
        .output()
        .expect("it was there a moment ago");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let count = said
        .lines()
        .find_map(|line| line.split_once(words))
        .map(|(_, rest)| rest.trim_start().split(' ').next().unwrap_or_default().replace(',', ""));
    count.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no count: {said}"))
}

/// Instructions that this program takes for `puts` Puts.
fn instructions(bytes: u32, puts: u32, traced: bool) -> u64 {
    let tool = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    count(&tool, "Collected :", [bytes, puts, traced.into()])
}

/// Whether there is a Valgrind, for programs like this one.
fn valgrind() -> Result<(), &'static str> {
    let itself = std::env::current_exe().expect("a program knows where it is");
    let mut command = Command::new("valgrind");
    let output = command.arg("--tool=none").arg(itself).arg("--list").output();
    match output.map_err(|_| "there is no valgrind")?.status.success() {
        true => Ok(()),
        false => Err("valgrind is for other processors"),
    }
}

fn says(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Does nothing unless this program asks itself for Puts.
#[test]
fn puts_for_valgrind() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let numbers: Vec<u32> = asked.split(' ').map(|n| n.parse().expect("a number")).collect();
    let mut pair = Pair::new().expect("two nodes");
    let order = pair.put(numbers[0]);
    let _trace = (numbers[2] == 1).then(|| pair.network().trace().expect("a trace"));
    (0..numbers[1]).for_each(|_| pair.run(&order).expect("a Put"));
}

#[test]
fn a_put_over_direct_links_allocates_nothing() {
    let test = "a_put_over_direct_links_allocates_nothing";
    if let Err(why) = valgrind() {
        eprintln!("SKIP {test}: {why}");
        return;
    }
    let allocations = |puts| count(&["--tool=memcheck"], "total heap usage:", [8, puts, 0]);
    let more = allocations(1500).abs_diff(allocations(500));
    eprintln!("{more} allocations more for 1000 Puts more");
    // Some of the test's own, of which it has the one time more than the other.
    assert!(more < 100, "{more} allocations for 1000 Puts");
}

#[test]
fn a_put_over_direct_links_costs_no_more() {
    let test = "a_put_over_direct_links_costs_no_more";
    let compiler = says("rustc").unwrap_or_default();
    if !cfg!(target_arch = "x86_64") {
        eprintln!("SKIP {test}: counts are of x86-64");
        return;
    }
    if let Err(why) = valgrind() {
        eprintln!("SKIP {test}: {why}");
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
