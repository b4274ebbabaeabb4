//! `tofu view`: access to the page, and the effects of clicks on it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use serde_json::{Value, json};
use tofu_linux_tests::interrupt;

use crate::browser::Browser;
use crate::tofu::{Place, artefact, wait_for};

/// `tofu view`, until it is dropped.
struct View {
    child: Child,
    _out: BufReader<ChildStdout>,
    /// The host with its port; the token follows.
    host: String,
    token: String,
}

impl View {
    fn start(place: &Place, args: &[&str]) -> Self {
        let mut command = place.command(&[&["view", "--every", "200ms"], args].concat());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("http://").unwrap();
        let (host, token) = address.trim_end_matches('/').split_once('/').unwrap();
        let (host, token) = (host.to_owned(), token.to_owned());
        Self { child, _out: out, host, token }
    }

    fn address(&self) -> String {
        format!("http://{}/{}/", self.host, self.token)
    }

    /// The answer to a request with these fields.
    fn ask(&self, method: &str, path: &str, fields: &str, body: &str) -> String {
        let mut client = TcpStream::connect(&self.host).unwrap();
        let length = body.len();
        write!(
            client,
            "{method} {path} HTTP/1.1\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// JSON of a separate page.
    fn json(&self, path: &str) -> Value {
        let fields = format!("Host: {}\r\n", self.host);
        let answer = self.ask("GET", &format!("/{}/{path}", self.token), &fields, "");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
        serde_json::from_str(body).unwrap()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn links_down(place: &Place) -> usize {
    place.run(&["link", "ls", "--down"]).ok().lines().count()
}

#[test]
fn page_needs_its_secret_address() {
    let place = Place::new();
    let (mut machine, _) = place.start(&["serve", "--json", "--shape", "1x1x1x2x3x2"]);
    place.wait_for_machine();
    let mut view = View::start(&place, &[]);
    let (host, token) = (view.host.clone(), view.token.clone());
    let port = host.strip_prefix("127.0.0.1:").unwrap();
    let ours = format!("Host: {host}\r\n");
    let page = format!("/{token}/");
    let act = r#"{"act":"link","node":0,"port":"A","up":false}"#;
    let good = view.ask("GET", &page, &ours, "");
    assert!(good.starts_with("HTTP/1.1 200 ") && good.contains("<canvas"), "{good}");
    assert!(good.contains("Content-Security-Policy: default-src 'none'"), "{good}");
    let named = view.ask("GET", &page, &format!("Host: localhost:{port}\r\n"), "");
    assert!(named.starts_with("HTTP/1.1 200 "), "{named}");
    let short = view.ask("GET", page.trim_end_matches('/'), &ours, "");
    let moved =
        short.starts_with("HTTP/1.1 308 ") && short.contains(&format!("Location: {page}\r\n"));
    assert!(moved, "{short}");
    let wrong = format!("/{}/", "0".repeat(token.len()));
    for (path, fields, expected) in [
        (wrong.as_str(), ours.clone(), "the token is wrong"),
        ("/", ours.clone(), "the token is wrong"),
        (&token[..5], ours.clone(), "the token is wrong"),
        (&page, String::new(), "127.0.0.1 or localhost only"),
        (&page, format!("Host: evil.example:{port}\r\n"), "127.0.0.1 or localhost only"),
        (&page, format!("{ours}Origin: http://evil.example\r\n"), "another page asks"),
        (&page, format!("{ours}Origin: null\r\n"), "another page asks"),
    ] {
        for method in ["GET", "POST"] {
            let path = format!("/{}", path.trim_start_matches('/'));
            let to = if method == "POST" { format!("{path}act") } else { path };
            let answer = view.ask(method, &to, &fields, act);
            let refused = answer.starts_with("HTTP/1.1 403 ") && answer.contains(expected);
            assert!(refused, "{method} {to} {fields}: {answer}");
        }
    }
    assert_eq!(links_down(&place), 0, "and nothing has changed");

    refuses_bad_requests(&view, &token, &ours);
    let hops = &view.json("route?from=0&to=11")["hops"];
    assert_eq!(hops.as_array().unwrap().len(), 3, "{hops}");
    assert_eq!(hops[2]["to"], 11, "{hops}");
    assert!(view.json("inspect?node=0")["tree"]["device"].is_object());

    // Connections that a browser leaves open do not block others.
    let _idle: Vec<_> = (0..4).map(|_| TcpStream::connect(&host).unwrap()).collect();
    view.json("frames?since=0");
    place.run(&["down"]).ok();
    machine.ok();
    wait_for("its end", || view.json("frames?since=0")["ended"] == true);
    interrupt(view.child.id().into());
    assert_eq!(view.child.wait().unwrap().code(), Some(130));
}

/// Requests with the right token that make no sense have a status and a reason.
fn refuses_bad_requests(view: &View, token: &str, ours: &str) {
    for (path, body, status, expected) in [
        ("nothing", "", "404", "there is no such page"),
        ("route?from=0&to=12", "", "409", "there is no node 12"),
        ("route?from=0", "", "409", "to is missing"),
        ("inspect?node=x", "", "409", "node=x: not a number"),
        ("inspect?node=0&path=nowhere", "", "409", "nowhere"),
        ("act", "[]", "409", "not an act"),
        ("act", r#"{"act":"link","node":0,"port":"Q","up":true}"#, "409", "Q"),
        ("act", r#"{"act":"node","node":99,"up":true}"#, "409", "99"),
    ] {
        let method = if path == "act" { "POST" } else { "GET" };
        let answer = view.ask(method, &format!("/{token}/{path}"), ours, body);
        let refused = answer.starts_with(&format!("HTTP/1.1 {status} "));
        assert!(refused && answer.contains(expected), "{path}: {answer}");
    }
}

#[test]
fn clicks_take_effect_in_the_machine() {
    let test = "clicks_take_effect_in_the_machine";
    let place = Place::new();
    let Some(mut browser) = Browser::start(test, &place) else { return };
    let (_machine, _) = place.start(&["serve", "--json", "--shape", "1x1x1x2x3x2"]);
    place.wait_for_machine();
    let film = place.path().join("film");
    let view = View::start(&place, &["--record", film.to_str().unwrap()]);
    browser.open(&view.address());
    browser.wait_for("tofu.film.frames.length > 1 && tofu.shown.node === 0");
    let summary = browser.eval("document.getElementById('summary').textContent");
    assert!(summary.as_str().unwrap().contains("12 nodes"), "{summary}");

    for panel in ["node", "nodes", "links", "jobs", "node"] {
        browser.eval(&format!("document.querySelector('[data-panel={panel}]').click()"));
        assert_eq!(browser.nameless(), [""; 0], "{panel}");
    }
    let live = browser.eval("document.querySelector('output').ariaLive");
    assert_eq!(live, "off", "the clock is not read aloud each second");

    // A link, from the panel of its node.
    let of_a = "document.querySelector('#node-ports tbody tr button[data-link]')";
    assert_eq!(browser.eval(&format!("{of_a}.textContent")), "Take down");
    browser.eval(&format!("{of_a}.click()"));
    wait_for("a link to go down", || links_down(&place) == 1);
    browser.wait_for(&format!("{of_a}.textContent === 'Bring up'"));
    browser.wait_for("/^link .* down$/.test(document.getElementById('news').textContent)");
    browser.picture(&artefact("view-light.png"));
    browser.eval(&format!("{of_a}.click()"));
    wait_for("the link to come up", || links_down(&place) == 0);
    browser.wait_for(&format!("{of_a}.textContent === 'Take down'"));

    // A node; the tables tell the same.
    browser.eval("document.querySelector('#node-actions button').click()");
    wait_for("the node to fail", || place.ps()[0]["nodes"][0]["down"] == true);
    browser.eval("document.querySelector('[data-panel=nodes]').click()");
    browser.wait_for("document.querySelector('#nodes tbody td.down').textContent === 'down'");
    browser.eval("document.querySelector('[data-panel=links]').click()");
    browser.wait_for("document.querySelectorAll('#links tbody button.down').length === 4");
    browser.prefers("dark");
    browser.picture(&artefact("view-dark.png"));

    // By keyboard: the next node, and a path from there.
    browser.eval("document.querySelector('[data-panel=node]').click()");
    browser.eval("document.getElementById('torus').focus()");
    browser.press("n");
    assert_eq!(browser.eval("tofu.shown.node"), 1);
    browser.eval("document.getElementById('route-to').value = '10'");
    browser.eval("document.querySelector('#route button').click()");
    browser.wait_for("document.querySelectorAll('#route-hops li').length === 3");
    browser.eval("document.getElementById('inspect').click()");
    browser.wait_for("document.querySelector('#inspection details summary')");

    // The time line stops when it is moved.
    browser.eval(
        "(() => { const time = document.getElementById('time'); time.value = 0; \
         time.dispatchEvent(new Event('input')); })()",
    );
    browser.wait_for("!tofu.shown.live && tofu.shown.frame === 0");
    browser.eval("document.getElementById('play').click()");
    browser.wait_for("tofu.shown.live && tofu.shown.frame > 1");

    // The machine ends, and its history stays, here and in the recording.
    place.run(&["down"]).ok();
    browser.wait_for("document.getElementById('news').textContent === 'The machine has ended.'");
    drop(view);
    replays(&place, &mut browser, &film);
}

/// A recording shows the history, and changes nothing.
fn replays(place: &Place, browser: &mut Browser, film: &Path) {
    let replay = View::start(place, &["--replay", film.to_str().unwrap()]);
    browser.open(&replay.address());
    browser.wait_for("tofu.scene.replay && tofu.film.frames.length > 3");
    browser.wait_for("document.querySelector('#node-actions button').disabled");
    let act = r#"{"act":"node","node":0,"up":true}"#;
    let fields = format!("Host: {}\r\n", replay.host);
    let answer = replay.ask("POST", &format!("/{}/act", replay.token), &fields, act);
    assert!(answer.contains("409 ") && answer.contains("a recorded run"), "{answer}");
}

#[test]
fn links_show_what_goes_over_them() {
    let test = "links_show_what_goes_over_them";
    let place = Place::new();
    if !place.can_boot(test) {
        return;
    }
    let Some(mut browser) = Browser::start(test, &place) else { return };
    let args = ["up", "--json", "--shape", "2x2x1x2x3x2", "--guest", "soak"];
    let mut command = place.command(&args);
    command.args(["--args", "calm=3600", "--timeout", "1h"]);
    let mut machine = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    place.wait_for_machine();
    let view = View::start(&place, &[]);
    browser.open(&view.address());
    browser.wait_for("tofu.film.frames.length > 5 && tofu.film.frames.at(-1).loads.length > 1");
    // Guests find each other first, for which they need all links.
    place.run(&["link", "down", "5", "X+"]).ok();
    browser.wait_for("tofu.film.frames.at(-1).down.length === 1");
    // Links with the greatest load come first, after those that are down.
    browser.eval("document.querySelector('[data-panel=links]').click()");
    let cell = |row: u32, cell: u32| {
        format!("document.querySelector('#links tbody').rows[{row}].cells[{cell}].textContent")
    };
    assert_eq!(browser.eval(&cell(0, 5)), "Bring up");
    browser.wait_for(&format!("{} !== '0' && {} !== '0'", cell(1, 3), cell(1, 4)));
    browser.eval("document.querySelector('[data-panel=nodes]').click()");
    browser.eval("document.querySelector('th[data-sort=commands] button').click()");
    browser.wait_for("Number(document.querySelector('#nodes tbody').rows[0].key.commands) > 0");
    let sort = "document.querySelector('th[data-sort=commands]').getAttribute('aria-sort')";
    assert_eq!(browser.eval(sort), "descending");
    // Each colour is explained: loads with a scale, which is that of the busiest link.
    let loads = "[...tofu.scene.words.values()].map((words) => words.textContent)";
    let scale = browser.eval(&format!("{loads}.join()"));
    let scale: Vec<_> = scale.as_str().unwrap().split(',').map(str::to_owned).collect();
    assert_eq!(scale.len(), 5, "{scale:?}");
    assert!(scale.iter().all(|text| text.starts_with("up to ") && text.ends_with("B/s")));
    let words = browser.eval("document.getElementById('legend').textContent");
    for expected in ["no traffic", "link down", "chosen path", "paused", "nodes of jobs"] {
        assert!(words.as_str().unwrap().contains(expected), "{expected}: {words}");
    }
    browser.picture(&artefact("view.png"));
    // Narrow, the legend is below the picture.
    browser.size(390, 800);
    browser.wait_for("innerWidth === 390");
    let apart = "document.getElementById('legend').getBoundingClientRect().top >= \
                 document.getElementById('torus').getBoundingClientRect().bottom";
    assert_eq!(browser.eval(apart), true);
    browser.picture(&artefact("view-narrow.png"));
    place.run(&["down"]).ok();
    machine.wait().unwrap();
}

/// A recording of a machine of two nodes.
fn film(name: &str, state: &str) -> String {
    let stage = json!({
        "format": "tofu film 1",
        "machine": name,
        "shape": "2x1x1x1x1x1",
        "torus": [false, false, false],
        "generation": "tofud",
    });
    let seen = |index: u8| {
        json!({
            "index": index, "name": name, "kind": "bare", "state": state,
            "rates": [1.0, 2.0, 3.0, 4.0], "waiting": 5,
        })
    };
    let job = json!({
        "job": 1, "command": name, "pid": null, "state": "running", "shape": "2", "alone": false,
        "nodes": [0, 1], "seconds": 1.0,
    });
    let frame = json!({
        "seconds": 1.5, "nodes": [seen(0), seen(1)], "loads": [[0, 1000.0, 0.0]], "down": [],
        "jobs": [job],
    });
    format!("{stage}\n{frame}\n{frame}\n")
}

#[test]
fn names_are_text_and_no_markup() {
    let test = "names_are_text_and_no_markup";
    let place = Place::new();
    let Some(mut browser) = Browser::start(test, &place) else { return };
    let evil =
        "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script>";
    let file = place.path().join("film");
    fs::write(&file, film(evil, evil)).unwrap();
    let view = View::start(&place, &["--replay", file.to_str().unwrap()]);
    browser.open(&view.address());
    browser.wait_for("tofu.shown.frame >= 0 && tofu.shown.node === 0");
    for panel in ["node", "nodes", "links", "jobs"] {
        browser.eval(&format!("document.querySelector('[data-panel={panel}]').click()"));
    }
    let text = browser.eval("document.body.textContent");
    assert!(text.as_str().unwrap().matches(evil).count() >= 4, "{text}");
    assert_eq!(browser.eval("document.querySelectorAll('img').length"), 0);
    assert_ne!(browser.eval("document.title"), "evil");
}

#[test]
fn invalid_recordings_are_refused_by_line() {
    let place = Place::new();
    let file = place.path().join("film");
    let good = film("m", "running");
    for (text, expected) in [
        (String::new(), "is empty"),
        ("{}\n".to_owned(), "line 1: not what --record writes"),
        (good.replace("tofu film 1", "tofu film 2"), "\"tofu film 2\" is not \"tofu film 1\""),
        (good.replace("2x1x1x1x1x1", "2x1"), "line 1: not what --record writes"),
        (good.lines().next().unwrap().to_owned() + "\n", "has no frame"),
        (good.clone() + "{\"seconds\":1}\n", "line 4: not what --record writes"),
    ] {
        fs::write(&file, text).unwrap();
        let error = place.run(&["view", "--replay", file.to_str().unwrap()]).error();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let error = place.run(&["view", "--replay", "nowhere"]).error();
    assert!(error.contains("cannot read nowhere"), "{error}");
    let error = place.run(&["view", "--port", "0"]).error();
    assert!(error.contains("--port <PORT>") && error.contains("1..=65535"), "{error}");
    // A killed recorder leaves half a line at the end.
    fs::write(&file, good + "{\"seconds\":").unwrap();
    let mut view = View::start(&place, &["--replay", file.to_str().unwrap()]);
    assert_eq!(view.json("frames?since=0")["frames"].as_array().unwrap().len(), 2);
    assert_eq!(view.json("frames?since=1")["frames"].as_array().unwrap().len(), 1);
    assert_eq!(view.json("frames?since=9")["first"], 2);
    interrupt(view.child.id().into());
    assert_eq!(view.child.wait().unwrap().code(), Some(130));
}
