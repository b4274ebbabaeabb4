//! After any process is killed, no process, socket or file is left.

use tofu_linux_tests::{Image, MOMENT, Place, interrupt, janitor, kill, wait_for};

#[track_caller]
fn machine(place: &Place) -> u64 {
    assert!(!place.processes().is_empty() && !place.files().is_empty());
    place.ps()[0]["pid"].as_u64().unwrap()
}

#[test]
fn killed_machine_leaves_nothing() {
    let Some(place) = Place::new(Image::Default) else { return };
    place.up(&[]);
    // With a command in flight, which must end as well.
    let command = place.start(&["exec", "0", "--", "sleep", "1000"]);
    kill(machine(&place));
    let said = command.end(MOMENT);
    assert_eq!(said.code, Some(2), "{said:?}");
    place.is_clean();
}

#[test]
fn killed_janitor_leaves_nothing() {
    let Some(place) = Place::new(Image::Default) else { return };
    place.up(&[]);
    let first = machine(&place);
    kill(janitor(first));
    // It keeps running, and can be taken down as usual.
    assert_eq!(place.exec("1", &["echo", "on"]).ok(), "on\n");
    place.run(&["down"]).ok();
    place.is_clean();

    // Both are killed: the monitors die with the machine, and the next command removes the files.
    place.up(&[]);
    let second = machine(&place);
    kill(janitor(second));
    kill(second);
    let alive = || place.processes().iter().any(|process| !process.contains("defunct"));
    wait_for("the monitors to die", MOMENT, || !alive());
    assert_eq!(place.run(&["ps"]).ok(), "no machine is running\n");
    place.is_clean();
}

#[test]
fn machine_stopped_at_boot_leaves_nothing() {
    let Some(place) = Place::new(Image::Default) else { return };
    for by_force in [false, true] {
        let process = place.start(&["up", "--linux", "--json"]);
        wait_for("a monitor to run", MOMENT, || {
            let ps = place.ps();
            let nodes = ps[0]["nodes"].as_array();
            nodes.is_some_and(|nodes| nodes.iter().any(|node| node["state"] == "booting"))
        });
        if by_force {
            kill(process.id())
        } else {
            interrupt(process.id())
        }
        let code = process.end(MOMENT).code;
        assert_eq!(code, if by_force { None } else { Some(130) });
        place.is_clean();
    }
}
