use super::*;
use crate::traffic::Outcome;

fn outcomes(text: &str) -> Vec<Outcome> {
    let report = Scenario::parse("test", text).unwrap().run(1).unwrap();
    report.rows.into_iter().map(|row| row.outcome).collect()
}

/// The shipped scenarios that this module reads.
fn networks() -> impl Iterator<Item = (&'static str, &'static str)> {
    SHIPPED.into_iter().filter(|(name, _)| *name != "tnw")
}

#[test]
fn shipped_scenarios_are_valid() {
    for (name, text) in networks() {
        let scenario = Scenario::parse(name, text).unwrap();
        assert!(!scenario.points.is_empty() && text.starts_with("# "), "{name}");
    }
}

/// Runs the first point of each, except for the one with a whole K computer.
#[test]
fn shipped_scenarios_run() {
    for (name, text) in networks().filter(|(name, _)| *name != "k") {
        let mut scenario = Scenario::parse(name, text).unwrap();
        scenario.points.truncate(1);
        scenario.seeds = 1;
        assert_eq!(scenario.points.len(), 1, "{name}");
        let report = scenario.run(1).unwrap();
        let outcome = &report.rows[0].outcome;
        assert!(outcome.delivered > 0 && outcome.lost == 0, "{name}: {outcome:?}");
    }
}

/// With every pattern on a small machine, all messages arrive, and a second run gives the same
/// result.
#[test]
fn sent_messages_arrive_at_the_same_times() {
    let more = [
        ("uniform", ""),
        ("permutation", ""),
        ("permutations", "rails = \"minimal\""),
        ("neighbour", "generation = \"fx100\""),
        ("transpose", "scheduler = \"date-line\""),
        ("hotspot", "hot = [1, 0, 0, 1, 2, 1]\nhot_percent = 50"),
        ("pairs", "pairs = [[[0,0,0,0,0,0], [1,0,0,0,0,0]], [[0,0,0,0,0,0], [1,0,0,1,1,1]]]"),
    ];
    for (pattern, more) in more {
        let text = format!(
            "shape = \"2x1x1x2x3x2\"\nsize = [8, 5000]\ncount = 20\n\
             pattern = \"{pattern}\"\n{more}"
        );
        let first = outcomes(&text);
        for outcome in &first {
            let sent = u64::from(outcome.senders) * 20;
            assert!(outcome.delivered <= sent && outcome.lost == 0, "{pattern}: {outcome:?}");
            assert!(outcome.delivered == sent || pattern == "hotspot", "{pattern}");
            assert!(outcome.gbytes_per_s > 0.0 && outcome.max_us > 0.0, "{pattern}");
        }
        assert_eq!(first, outcomes(&text), "{pattern}");
    }
}

#[test]
fn lone_pair_reaches_link_speed() {
    let text = "shape = \"1x1x1x2x1x1\"\ngeneration = \"k\"\npattern = \"pairs\"\n\
                pairs = [[[0,0,0,0,0,0], [0,0,0,1,0,0]]]\nsize = 192000\ncount = 50";
    let outcome = &outcomes(text)[0];
    assert!((4.70..4.77).contains(&outcome.gbytes_per_s), "{outcome:?}");
}

#[test]
fn more_load_takes_longer_and_saturates() {
    let text = "shape = \"unit\"\npattern = \"uniform\"\nsize = 1920\nrate = [0.5, 5, 40]\n\
                warm_up = \"10us\"\ntime = \"20us\"";
    let [low, middle, high] = &outcomes(text)[..] else { panic!("three points") };
    assert!((0.4..0.6).contains(&low.gbytes_per_s), "{low:?}");
    assert!((4.5..5.5).contains(&middle.gbytes_per_s), "{middle:?}");
    assert!(high.gbytes_per_s < 38.0, "{high:?}");
    assert!(low.mean_us < middle.mean_us && middle.mean_us < high.mean_us);
}

/// On several tori, all traffic arrives while links have room, no more ever arrives than a full
/// link permits, and saturation leaves a good part of that.
#[test]
fn uniform_traffic_saturates_below_bound() {
    for shape in ["8x1x1x1x1x1", "16x1x1x1x1x1", "8x8x1x1x1x1", "4x4x4x1x1x1"] {
        let text = format!(
            "shape = \"{shape}\"\ngeneration = \"k\"\npattern = \"uniform\"\nsize = 1024\n\
             answers = false\nload = [0.1, 0.3, 1, 2]\nwarm_up = \"40us\"\ntime = \"80us\""
        );
        let report = Scenario::parse("test", &text).unwrap().run(1).unwrap();
        let bound = report.rows[0].bound_gbytes_per_s.unwrap();
        let part = |row: &Row| row.outcome.gbytes_per_s / bound;
        let parts: Vec<_> = report.rows.iter().map(part).collect();
        println!("{shape}: {bound:.3} GB/s, {parts:.2?}");
        let [low, middle, full, double] = parts[..] else { panic!("four loads") };
        assert!((0.08..0.12).contains(&low) && (0.27..0.33).contains(&middle), "{parts:?}");
        // Traffic is not spread quite evenly over the links in such a short time.
        assert!(full < 1.02 && double < 1.02 && full > 0.4 && double > 0.4, "{parts:?}");
        let us: Vec<_> = report.rows.iter().map(|row| row.outcome.mean_us).collect();
        assert!(us.is_sorted(), "{us:?}");
        // With little load, hardly any message waits.
        let unloaded = report.rows[0].unloaded_us.unwrap();
        assert!((0.95..1.1).contains(&(us[0] / unloaded)), "{us:?}, {unloaded}");
        let saturation = &report.saturation[0];
        assert_eq!(saturation.bound_gbytes_per_s, Some(bound));
        assert!(saturation.at_gbytes_per_s.is_some_and(|at| at > 0.3 * bound), "{saturation}");
        assert!(report.text().contains("at which a link is full; saturated at"));
    }
}

/// Long rings gain from serving straight traffic first, and nothing else changes.
#[test]
fn arbiter_can_be_chosen() {
    let run = |arbiter| {
        let text = format!(
            "shape = \"16x1x1x1x1x1\"\npattern = \"uniform\"\nsize = 1024\ncount = 300\n\
             arbiter = \"{arbiter}\""
        );
        outcomes(&text)[0].clone()
    };
    let (turn, straight) = (run("in-turn"), run("straight-first"));
    assert_eq!((turn.delivered, turn.hops), (straight.delivered, straight.hops));
    let transit = run("transit-first");
    assert_eq!((turn.delivered, turn.hops), (transit.delivered, transit.hops));
    assert!(transit.gbytes_per_s > 1.1 * turn.gbytes_per_s, "{turn:?} {transit:?}");
    assert!(straight.gbytes_per_s > 1.1 * turn.gbytes_per_s, "{turn:?} {straight:?}");
}

/// A job is a part of a machine: only its nodes send, to each other, and it has the links of
/// the rest.
#[test]
fn senders_are_those_in_the_ranges() {
    let run = |more: &str| {
        let text = format!("shape = \"2x2x5x1x1x1\"\nsize = 1000\ncount = 50\n{more}");
        outcomes(&text)[0].clone()
    };
    for (senders, count) in [("z=1-3", 12), ("Z = 1-3, x=0", 6), ("z=4", 4)] {
        for pattern in ["uniform", "permutation", "permutations"] {
            let outcome = run(&format!("pattern = \"{pattern}\"\nsenders = \"{senders}\""));
            assert_eq!((outcome.senders, outcome.lost), (count, 0), "{senders} {pattern}");
            assert_eq!(outcome.delivered, u64::from(count) * 50, "{senders} {pattern}");
        }
        // The targets of other nodes do not change.
        let outcome = run(&format!("pattern = \"neighbour\"\nsenders = \"{senders}\""));
        assert_eq!(outcome.senders, count, "{senders}");
    }
    // Two adjacent nodes of a ring reach each other only over their own link.
    let pair = run("pattern = \"permutation\"\nsenders = \"x=0,y=0,z=1-2\"");
    assert!(pair.hops <= 4 * 50, "{pair:?}");
}

/// Messages of a TNI are separated by frame and gap, or by a round trip if only one may be in
/// flight.
#[test]
fn gap_and_window_slow_a_sender() {
    let run = |more: &str| {
        let text = format!(
            "shape = \"1x1x1x2x1x1\"\ngeneration = \"k\"\npattern = \"pairs\"\n\
             pairs = [[[0,0,0,0,0,0], [0,0,0,1,0,0]]]\nsize = 1024\ncount = 1000\ntnis = 1\n\
             {more}"
        );
        outcomes(&text)[0].gbytes_per_s
    };
    let near = |ours: f64, ns: f64| (ours / (1024.0 / ns) - 1.0).abs() < 0.01;
    // 1120 bytes at 5 GB/s.
    assert!(near(run(""), 224.0));
    assert!(near(run("gap = \"76ns\""), 300.0));
    assert!(near(run("window = 16"), 224.0));
    // A hop and a frame there, 100 ns, a hop and an answer back, in steps of the run.
    let alone = 1024.0 / run("window = 1\nanswers = false");
    assert!((324.0..425.0).contains(&alone), "{alone} ns");
    let answered = 1024.0 / run("window = 1");
    assert!((alone + 150.0..alone + 300.0).contains(&answered), "{answered} ns");
    let short = 1024.0 / run("window = 1\nanswer_bytes = 32");
    assert!(short <= answered, "{short} ns");
}

/// Each node's own time is at most that of all, and shorter answers leave links more room.
#[test]
fn nodes_have_times_of_their_own() {
    let run = |more: &str| {
        let text = format!(
            "shape = \"4x1x1x1x1x1\"\ngeneration = \"k\"\ntorus = \"\"\nsize = 256\n\
             pattern = \"permutations\"\ncount = 400\ntnis = 1\n{more}"
        );
        outcomes(&text)[0].clone()
    };
    let all = run("");
    let node = all.of_a_node.unwrap();
    assert!((node.least / all.gbytes_per_s - 1.0).abs() < 0.01, "{all:?}");
    assert!(node.least <= node.mean && node.mean <= node.most, "{all:?}");
    assert!(run("answer_bytes = 32").gbytes_per_s > 1.05 * all.gbytes_per_s);
    assert!(run("answers = false").gbytes_per_s > 1.05 * all.gbytes_per_s);
}

#[test]
fn seeds_show_their_spread() {
    let run = |more: &str| {
        let text = format!(
            "shape = \"unit\"\npattern = \"permutations\"\nsize = 1024\ncount = 30\n{more}"
        );
        Scenario::parse("test", &text).unwrap().run(1).unwrap()
    };
    let one = |seed: u64| run(&format!("seed = {seed}")).rows[0].outcome.gbytes_per_s;
    let singles = [3, 4, 5].map(one);
    let report = run("seed = 3\nseeds = 3");
    let seeds = report.rows[0].seeds.unwrap();
    assert_eq!(Some(seeds), Spread::of(singles.into_iter()));
    assert_eq!(report.rows[0].outcome.gbytes_per_s.to_bits(), singles[0].to_bits());
    assert!(report.text().contains(&seeds.to_string()), "{}", report.text());
    assert_eq!(run("").rows[0].seeds, None);
}

#[test]
fn packets_on_a_dead_link_are_lost() {
    let text = "shape = \"1x1x1x2x1x1\"\npattern = \"uniform\"\nsize = 8\ncount = 5\n\
                [[down]]\nat = [0,0,0,0,0,0]\nport = \"A\"";
    let outcome = &outcomes(text)[0];
    assert_eq!((outcome.delivered, outcome.lost), (0, 10));
}

/// Errors on links cost time but no messages.
#[test]
fn errors_lose_nothing() {
    let text = "shape = \"1x1x1x2x3x1\"\npattern = \"uniform\"\nsize = 4000\ncount = 100\n";
    let errors = [
        "[[errors]]\nber = 1e-5",
        "[[errors]]\ndllp_loss = 0.5",
        "[[errors]]\nlane = 1\ndead = true",
        "[[errors]]\nat = [0,0,0,0,0,0]\nport = \"A\"\nlane = 0\nber = 1e-4",
    ];
    let without = &outcomes(text)[0];
    assert_eq!((without.lcrc_errors, without.ack_timeouts), (0, 0));
    for errors in errors {
        let text = format!("{text}{errors}");
        let with = &outcomes(&text)[0];
        assert_eq!((with.delivered, with.lost), (without.delivered, 0), "{errors}");
        assert!(with.time_us > without.time_us, "{errors}: {with:?}");
        assert!(with.lcrc_errors > 0 || errors.contains("dllp"), "{errors}: {with:?}");
        assert_eq!(*with, outcomes(&text)[0], "{errors}");
    }
}

/// The example in the manual can be run.
#[test]
fn manuals_scenario_parses() {
    let manual = include_str!("../../../../docs/src/user/sim.md");
    let (_, example) = manual.split_once("```toml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    assert!(Scenario::parse("sim.md", example).is_ok());
}

/// A part of a good scenario, its replacement, and a part of the message.
const BAD: &[(&str, &str, &str)] = &[
    ("\"unit\"", "\"9x9\"", "s.toml:1: shape = \"9x9\" is not allowed; shape is \"unit\""),
    ("\"uniform\"", "\"hot\"", "s.toml:2: pattern = \"hot\" is not allowed; pattern is"),
    ("size = 8", "size = -1", "s.toml:3: size = -1 is not allowed; size is 0 to 16777216"),
    ("size = 8", "size = [8, -1]", "s.toml:3: size = [8, -1] is not allowed"),
    (
        "size = 8\ncount = 1",
        "size = [8, 0]\nrate = 1\ntime = \"1us\"",
        "s.toml:3: size = [8, 0] is not allowed; size is 1 to 16777216 bytes with rate or",
    ),
    (
        "size = 8\ncount = 1",
        "size = 0\nload = 1\ntime = \"1us\"",
        "s.toml:3: size = 0 is not allowed; size is 1 to 16777216 bytes with rate or load",
    ),
    ("count = 1", "count = 0", "s.toml:4: count = 0 is not allowed; count is 1 to"),
    ("count = 1", "", "s.toml: one of count, rate and load is needed"),
    ("count = 1", "rate = 2.5", "s.toml: time is missing, which rate needs"),
    ("count = 1", "rate = 100\ntime = \"1us\"", "s.toml:4: rate = 100.0 is not allowed"),
    ("count = 1", "load = 5\ntime = \"1us\"", "s.toml:4: load = 5.0 is not allowed; load is"),
    ("count = 1", "load = 1", "s.toml: time is missing, which load needs"),
    (
        "pattern = \"uniform\"\nsize = 8\ncount = 1",
        "pattern = \"transpose\"\nsize = 8\nload = 1\ntime = \"1us\"",
        "s.toml: load needs pattern \"uniform\" or \"permutations\", 2 to 2048",
    ),
    (
        "count = 1",
        "count = 1\narbiter = \"x\"",
        "s.toml:5: arbiter = \"x\" is not allowed; arbiter is \"in-turn\", \"transit-first\"",
    ),
    ("count = 1", "count = 1\nsenders = \"z\"", "senders is ranges of coordinates such as"),
    ("count = 1", "count = 1\nsenders = \"z=3\"", "ranges in which this shape has nodes"),
    ("count = 1", "count = 1\nwindow = 0", "s.toml:5: window = 0 is not allowed; window is 1"),
    ("count = 1", "count = 1\nseeds = 0", "s.toml:5: seeds = 0 is not allowed; seeds is 1 to"),
    ("count = 1", "count = 1\ngap = \"1\"", "s.toml:5: gap = \"1\" is not allowed"),
    (
        "count = 1",
        "count = 1\nanswer_bytes = 7",
        "s.toml:5: answer_bytes = 7 is not allowed; answer_bytes is 8 to 1984",
    ),
    ("count = 1", "rate = 1\ntime = \"1\"", "s.toml:5: time = \"1\" is not allowed"),
    (
        "count = 1",
        "count = 1\narrivals = \"x\"",
        "s.toml:5: arrivals = \"x\" is not allowed; arrivals is \"even\" or \"poisson\"",
    ),
    ("\"uniform\"", "\"hotspot\"", "hot is missing, which pattern = \"hotspot\" needs"),
    ("\"fugaku\"", "\"tofud\"", "s.toml:5: generation = \"tofud\" is not allowed"),
    ("\"fugaku\"", "\"k\"\ntnis = 5", "s.toml:6: tnis = 5 is not allowed; tnis is 1 to 4"),
    ("count", "cuont", "s.toml:4: cuont = 1: did you mean count? unknown field `cuont`"),
    ("count = 1", "count = 1\nqueue_bytes = 1", "s.toml:5: queue_bytes = 1 is not allowed"),
    ("count = 1", "count = 1\nhot = [0,0,0,0,0,0]", "hot is for pattern = \"hotspot\" only"),
    ("size = 8", "size = \"x\"", "s.toml:3: size = \"x\": "),
    (
        "\"fugaku\"",
        "\"fugaku\"\n[[down]]\nat = [0,0,0,0,0,0]\nport = \"X+\"",
        "s.toml:8: port = \"X+\" is not allowed; port is a port of (0,0,0,0,0,0) with",
    ),
    (
        "\"fugaku\"",
        "\"fugaku\"\n[[down]]\nat = [5,0,0,0,0,0]\nport = \"A\"",
        "s.toml:7: at = [5, 0, 0, 0, 0, 0] is not allowed; at is [x, y, z, a, b, c]",
    ),
];

#[test]
fn bad_values_name_the_allowed_ones() {
    const GOOD: &str =
        "shape = \"unit\"\npattern = \"uniform\"\nsize = 8\ncount = 1\ngeneration = \"fugaku\"";
    assert!(Scenario::parse("test", GOOD).is_ok());
    let errors = [
        ("ber = 2", "s.toml:7: ber = 2.0 is not allowed; ber is 0 to 1"),
        ("lane = 2", "s.toml:7: lane = 2 is not allowed; lane is 0 to 1, the lanes of TofuD"),
        ("port = \"A\"", "s.toml:6: at and port name a link together"),
    ];
    let errors =
        errors.map(|(error, expected)| (format!("\"fugaku\"\n[[errors]]\n{error}"), expected));
    let errors = errors.iter().map(|(to, expected)| ("\"fugaku\"", to.as_str(), *expected));
    for (from, to, expected) in BAD.iter().copied().chain(errors) {
        let text = GOOD.replacen(from, to, 1);
        let error = Scenario::parse("s.toml", &text).err();
        let error = error.unwrap_or_else(|| panic!("{to} is allowed")).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{to}: {error}");
    }
}

#[test]
fn misspelt_scenario_gets_a_suggestion() {
    let error = text_of("unifrom").err().unwrap().to_string();
    assert!(error.contains("did you mean uniform?"), "{error}");
}

#[test]
fn report_has_table_and_curves() {
    let text = "shape = \"unit\"\npattern = \"uniform\"\nsize = [8, 64]\nrate = [0.5, 1]\n\
                time = \"2us\"";
    let report = Scenario::parse("test", text).unwrap().run(1).unwrap();
    let table = report.text();
    assert!(table.starts_with("uniform on unit (TofuD), 12 nodes send\n"), "{table}");
    assert_eq!(table.lines().count(), 3 + 1 + 4 + 4, "{table}");
    let curves = report.curves();
    assert_eq!(curves[0].lines.len(), 2);
    assert_eq!(curves[0].lines[1].points.len(), 2);
    assert!(serde_json::to_string(&report).unwrap().contains("offered_gbytes_per_s"));
}
