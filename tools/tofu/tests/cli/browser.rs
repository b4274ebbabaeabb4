//! A browser without a window, driven by the Chrome DevTools Protocol over a pipe.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tofu::{PATIENCE, Place};

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    input: ChildStdin,
    answers: Receiver<Value>,
    /// Number of the last command.
    last: u64,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// The browser that tests fetch. `None`, after the reason was printed, if there is none
    /// available.
    pub(crate) fn start(test: &str, place: &Place) -> Option<Self> {
        let said = place.run(&["image", "chromium", "--", "--version"]);
        if said.code != Some(0) {
            eprintln!("SKIP {test}: {}", said.err.lines().last().unwrap_or("there is no browser"));
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        let folder = format!("--user-data-dir={}", profile.path().display());
        let mut inner = place.command(&["image", "chromium", "--", &folder]);
        inner.args(["--remote-debugging-pipe", "--window-size=1280,800", "about:blank"]);
        // It reads commands from descriptor 3 and answers on 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null", "sh"]);
        command.arg(inner.get_program()).args(inner.get_args());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (hear, answers) = channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            while let Ok(1..) = output.read_until(0, &mut bytes) {
                let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
                if let Ok(value) = serde_json::from_slice(text)
                    && hear.send(value).is_err()
                {
                    break;
                }
                bytes.clear();
            }
        });
        let session = String::new();
        let mut browser = Self { child, input, answers, last: 0, session, _profile: profile };
        let target = browser.command("Target.createTarget", json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.command("Target.attachToTarget", target);
        session["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        browser.command("Page.enable", json!({}));
        Some(browser)
    }

    fn command(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.input.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            // Events come in between.
            let answer = self.answers.recv_timeout(PATIENCE).expect(method);
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    pub(crate) fn open(&mut self, address: &str) {
        self.command("Page.navigate", json!({ "url": address }));
    }

    /// The value of an expression on the page.
    #[track_caller]
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({
            "expression": expression,
            "awaitPromise": true,
            "returnByValue": true,
            "userGesture": true,
        });
        let answer = self.command("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true on the page.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let until = Instant::now() + PATIENCE;
        let guarded = format!("(() => {{ try {{ return Boolean({expression}) }} catch {{}} }})()");
        while self.eval(&guarded) != true {
            let text = "document.body.innerText.slice(0, 2000)";
            assert!(Instant::now() < until, "{expression}: {}", self.eval(text));
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Keeps a picture of the page.
    pub(crate) fn picture(&mut self, file: &Path) {
        let picture = self.command("Page.captureScreenshot", json!({ "format": "png" }));
        let picture: Picture = serde_json::from_value(picture).unwrap();
        std::fs::write(file, picture.data).unwrap();
    }

    /// Makes the page as large as on another screen.
    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.command("Emulation.setDeviceMetricsOverride", size);
    }

    /// True if the user prefers a dark color scheme.
    pub(crate) fn prefers(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.command("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Elements that take the focus and have no name, and buttons with the name of another button.
    /// A screen reader could not describe these. A button in the head of a table may have the name
    /// of a button outside, because the screen reader announces the head.
    pub(crate) fn nameless(&mut self) -> Vec<String> {
        let tree = self.command("Accessibility.getFullAXTree", json!({}));
        let tree = tree["nodes"].as_array().unwrap();
        let heads = tree.iter().filter(|node| node["role"]["value"] == "columnheader");
        let heads: Vec<_> = heads.map(|node| &node["nodeId"]).collect();
        let takes_focus = |node: &&Value| {
            let mut properties = node["properties"].as_array().into_iter().flatten();
            node["ignored"] == false
                && properties.any(|p| p["name"] == "focusable" && p["value"]["value"] == true)
        };
        let mut names = BTreeSet::new();
        let unclear = tree.iter().filter(takes_focus).filter(|node| {
            let name = node["name"]["value"].as_str();
            let in_head = heads.contains(&&node["parentId"]);
            let mut again =
                |name| node["role"]["value"] == "button" && !names.insert((in_head, name));
            name.is_none_or(str::is_empty) || again(name)
        });
        unclear.map(|node| format!("{} {}", node["role"]["value"], node["name"])).collect()
    }

    /// Presses a key where the focus is.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.command("Input.dispatchKeyEvent", json!({ "type": kind, "key": key }));
        }
    }
}

#[derive(serde::Deserialize)]
struct Picture {
    #[serde(with = "tofu_agent::wire::bytes")]
    data: Vec<u8>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
