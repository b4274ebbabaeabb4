//! Nodes and boards that fail.

use serde_json::{Value, json};

use crate::tofu::{Place, wait_for};

/// What `tofu ps` says of the nodes: whether they are down, and their states.
fn nodes(place: &Place) -> Vec<(bool, String)> {
    let ps = place.ps();
    let nodes = ps[0]["nodes"].as_array().cloned().unwrap_or_default();
    let of =
        |node: &Value| (node["down"].as_bool().unwrap(), node["state"].as_str().unwrap().into());
    nodes.iter().map(of).collect()
}

fn links_down(place: &Place) -> usize {
    place.run(&["link", "ls", "--down"]).ok().lines().count()
}

#[test]
fn boards_of_served_devices_go_down_and_come_back_with_their_links() {
    let place = Place::new();
    let (mut machine, _) = place.start(&["serve", "--json", "--shape", "1x1x1x2x3x2"]);
    let boards = place.run(&["board", "ls"]).ok();
    assert_eq!(boards.lines().count(), 7, "{boards}");
    assert!(boards.contains("(0,0,0,1,2,0)  10 11  up"), "{boards}");
    place.run(&["link", "down", "0", "A"]).ok();
    assert_eq!(links_down(&place), 1);
    // Each of its two nodes has a link on A and two on B, and one on C joins them.
    place.run(&["board", "down", "1"]).ok();
    assert_eq!(links_down(&place), 7);
    let down: Vec<_> = nodes(&place).iter().map(|(down, _)| *down).collect();
    assert_eq!(down.iter().position(|down| *down), Some(0));
    assert_eq!(down.iter().filter(|down| **down).count(), 2);
    assert!(place.run(&["ps"]).ok().contains("waiting, down"));
    let listed = place.run(&["board", "ls", "--down", "--json"]).ok();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed, json!([{ "first": [0, 0, 0, 0, 0, 0], "nodes": [0, 1], "down": 2 }]));
    // A link of a node that is down stays down; so does one that was down before.
    place.run(&["link", "up", "1", "A"]).ok();
    place.run(&["node", "up", "t-0-0-0-0-0-1"]).ok();
    assert_eq!(links_down(&place), 4);
    assert!(place.run(&["board", "ls"]).ok().contains("0 1    1 of 2 down"));
    place.run(&["board", "up", "0"]).ok();
    assert_eq!(links_down(&place), 1);
    for (args, expected) in [
        (["node", "down", "12"], "node 12: the machine 1x1x1x2x3x2 has no such node"),
        (["board", "up", "north"], "node north: not a node; give an index"),
        (["board", "down", "other/0"], "no machine other is running"),
    ] {
        let error = place.run(&args).error();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let error = place.run(&["node", "down", "0", "tofu/1"]).error();
    assert!(error.contains("all nodes of a command are of one machine"), "{error}");
    assert_eq!(links_down(&place), 1, "and nothing has changed");
    place.run(&["down"]).ok();
    assert_eq!(machine.wait(), Some(0));
}

#[test]
fn tcp_streams_survive_any_single_board() {
    let place = Place::new();
    if !place.can_boot("tcp_streams_survive_any_single_board") {
        return;
    }
    let up = ["up", "--shape", "unit", "--json", "--timeout", "600s"];
    // The default path there leads by boards 1 and 4, and back by 3 and 0.
    let guest = ["--guest", "tcpbench", "--args", "verify=1 peer=9 bytes=300000000 count=1000"];
    let (mut machine, _) = place.start(&[&up[..], &guest].concat());
    place.wait_for_machine();
    wait_for("the others to have nothing to do", || {
        let nodes = nodes(&place);
        let ended = nodes.iter().filter(|(_, state)| state == "ended").count();
        nodes.len() == 12 && ended >= 10
    });
    // Each of the boards without an end of the streams fails and is repaired, while there are any.
    let mut failed = 0;
    'streams: for _ in 0..20 {
        for board in ["3", "5", "7", "11"] {
            let running = nodes(&place).iter().any(|(_, state)| state == "running");
            if !running || place.run(&["board", "down", board]).code != Some(0) {
                break 'streams;
            }
            failed += 1;
            // As long as retransmission takes to try again, and so long that it is noticed.
            std::thread::sleep(std::time::Duration::from_millis(300));
            if place.run(&["board", "up", board]).code != Some(0) {
                break 'streams;
            }
        }
    }
    assert!(failed > 0, "the streams ended before any board failed");
    assert_eq!(machine.wait(), Some(0), "both ways were right to the last byte");
    place.is_clean();
}

#[test]
fn small_guests_end_with_their_board_unless_they_are_kept() {
    let place = Place::new();
    if !place.can_boot("small_guests_end_with_their_board_unless_they_are_kept") {
        return;
    }
    // Boards of the K computer have four nodes.
    let up = ["up", "--generation", "k", "--shape", "unit", "--json", "--timeout", "300s"];
    // Guests that need nothing of each other, and never end by themselves.
    let guest = ["--guest", "httpd", "--args", "count=0 forever=1"];
    let (mut machine, _) = place.start(&[&up[..], &guest].concat());
    place.wait_for_machine();
    wait_for("all to run", || {
        let nodes = nodes(&place);
        nodes.len() == 12 && nodes.iter().all(|(_, state)| state == "running")
    });
    place.run(&["board", "down", "0,0,0,1,2,1", "--keep-guests"]).ok();
    let found = nodes(&place);
    let kept: Vec<_> = (0..).zip(&found).filter(|(_, (down, _))| *down).collect();
    assert_eq!(kept.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [4, 5, 10, 11]);
    assert!(kept.iter().all(|(_, (_, state))| state == "running"), "{found:?}");
    place.run(&["board", "up", "11"]).ok();
    place.run(&["board", "down", "0"]).ok();
    let found = nodes(&place);
    let ended: Vec<_> = (0..).zip(&found).filter(|(_, (down, _))| *down).collect();
    assert_eq!(ended.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 1, 6, 7]);
    assert!(ended.iter().all(|(_, (_, state))| state == "ended"), "{found:?}");
    // Repaired nodes of small guests stay without one.
    place.run(&["board", "up", "0"]).ok();
    assert_eq!((links_down(&place), nodes(&place)[0].1.as_str()), (0, "ended"));
    place.run(&["down"]).ok();
    assert_eq!(machine.wait(), Some(0), "it was taken down");
    place.is_clean();
}
