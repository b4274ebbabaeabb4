//! Pictures of the manual that commands generate.

use std::fs;

use tofu_ui::palette::{DOWN, GOOD, LOADS, LOADS_IN_THE_DARK, WAITING};

use crate::tofu::{Place, artefact};
use crate::trace::putting;

#[test]
fn manual_has_the_drawn_unit() {
    let place = Place::new();
    let file = artefact("unit.svg");
    place.run(&["topo", "--svg", file.to_str().unwrap()]).ok();
    let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/pictures/unit.svg");
    assert_eq!(fs::read_to_string(file).unwrap(), fs::read_to_string(ours).unwrap());
}

/// The page and the Python package have their own copies of the colours.
#[test]
fn pictures_have_one_palette() {
    let read = |path| fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let css = read("src/commands/view/page/view.css");
    let (light, dark) = css.split_once("prefers-color-scheme: dark").unwrap();
    for (theme, loads) in [(light, LOADS), (dark, LOADS_IN_THE_DARK)] {
        for (step, colour) in (1..).zip(loads) {
            assert!(theme.contains(&format!("--load{step}: {colour};")), "{step}: {colour}");
        }
        for (name, colour) in [("down", DOWN), ("good", GOOD), ("wait", WAITING)] {
            assert!(theme.contains(&format!("--{name}: {colour};")), "{name}: {colour}");
        }
    }
    let python = read("../python/src/open_tofu/picture.py");
    let loads = LOADS.map(|colour| format!("\"{colour}\"")).join(", ");
    assert!(python.contains(&format!("LOADS = ({loads})")), "{loads}");
    assert!(python.contains(&format!("DOWN = \"{DOWN}\"")), "{DOWN}");
}

#[test]
fn trace_is_drawn() {
    let place = Place::new();
    if !place.can_boot("trace_is_drawn") {
        return;
    }
    let _machine = putting(&place);
    let path = artefact("trace.svg");
    let file = path.to_str().unwrap();
    let said = place.run(&["trace", "--count", "12", "--svg", file]);
    assert!(said.err.contains("12 commands, 0 failed"), "{said:?}");
    let svg = fs::read_to_string(&path).unwrap();
    for expected in [
        ">12 commands<",
        ">node 0 TNI ",
        ">node 1 serves, thread ",
        " us</text>",
        ">doorbell</text>",
        ">since the first command</text>",
    ] {
        assert!(svg.contains(expected), "{expected}: {svg}");
    }
    assert!(svg.matches(": Put of ").count() >= 24, "{svg}");
    let error = place.run(&["trace", "--svg", "/no/such/x"]).error();
    assert!(error.contains("cannot write /no/such/x: No such file"), "{error}");
    let said = place.run(&["trace", "--svg", "/dev/full", "--count", "1"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("tofu: cannot write /dev/full: No space left"), "{said:?}");
}
