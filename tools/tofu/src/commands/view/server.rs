//! Serves the page, and its requests, to clients that have the token.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Deserialize;
use serde_json::{Value, json};
use tofu_control::ask;
use tofu_control::protocol::{InspectRequest, Reply, Request as Ask};
use tofu_control::rates::Look;
use tofu_fabric::{Class, NodeId, Route};
use tofu_http::{Answer, Request};
use tofu_sync::lock;

use super::film::{Film, Frame};

/// The most frames that are kept of a running machine, and the most bytes.
const MOST_FRAMES: usize = 3600;
const MOST_BYTES: usize = 64 << 20;
/// Bytes of frames in one answer, unless a single one has more.
const SOME_BYTES: usize = 2 << 20;
/// Connections at a time.
const CLIENTS: usize = 16;
/// Levels and values of a node's state that the page shows initially.
const DEPTH: u32 = 6;
const VALUES: u32 = 4096;
const JSON: &str = "application/json";
/// For browsers: only this page's own contents run or are loaded, and no other page embeds it.
const GUARD: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; \
                     style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                     base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
                     X-Content-Type-Options: nosniff\r\n\
                     Referrer-Policy: no-referrer\r\n\
                     Cache-Control: no-store\r\n";
const FORBIDDEN: &str = "403 Forbidden";

/// The pages.
#[derive(Debug)]
pub(super) struct Scene {
    film: Film,
    /// The stage and the links as JSON, which never change.
    stage: String,
    /// Of a machine that runs.
    control: Option<PathBuf>,
    /// It runs no more.
    ended: AtomicBool,
    frames: Mutex<Frames>,
}

#[derive(Debug, Default)]
struct Frames {
    /// Number of the first one that is kept.
    first: u64,
    all: VecDeque<Arc<str>>,
    bytes: usize,
}

impl Frames {
    fn push(&mut self, frame: Arc<str>) {
        self.bytes += frame.len();
        self.all.push_back(frame);
        while self.all.len() > MOST_FRAMES || (self.bytes > MOST_BYTES && self.all.len() > 1) {
            self.bytes -= self.all.pop_front().map_or(0, |frame| frame.len());
            self.first += 1;
        }
    }
}

impl Scene {
    /// The scene of a film, and of the machine of a control socket if it still runs.
    pub(super) fn new(mut film: Film, control: Option<PathBuf>) -> anyhow::Result<Self> {
        let links = film.links.all.iter().map(|link| {
            let id = |at| film.shape.node_id(at).map(|id| id.0);
            json!([id(link.from), link.port.to_string(), id(link.to), link.wrap])
        });
        let links: Vec<_> = links.collect();
        let at = film.shape.iter().map(|at| at.to_array());
        let stage = json!({
            "stage": film.stage,
            "replay": control.is_none(),
            "all": at.collect::<Vec<_>>(),
            "links": links,
        });
        let mut frames = Frames::default();
        // A film is on the host's disk, and is not a machine that runs for ever.
        frames.all = film.frames.drain(..).map(Arc::from).collect();
        Ok(Self {
            stage: stage.to_string(),
            film,
            ended: AtomicBool::new(control.is_none()),
            control,
            frames: Mutex::new(frames),
        })
    }

    /// Adds a frame, and returns it as JSON.
    pub(super) fn take(&self, before: &Look, now: &Look) -> anyhow::Result<Arc<str>> {
        let Reply::Links { down } = self.ask(&Ask::Links)? else { bail!("not an answer") };
        let frame = Frame::new(&self.film.links, &down, before, now);
        let frame: Arc<str> = serde_json::to_string(&frame)?.into();
        lock(&self.frames).push(Arc::clone(&frame));
        Ok(frame)
    }

    /// The machine has ended.
    pub(super) fn end(&self) {
        self.ended.store(true, SeqCst);
    }

    /// Frames from this number on, as many as fit in one answer.
    fn frames(&self, since: u64) -> String {
        let ended = self.ended.load(SeqCst);
        let (first, some) = {
            let frames = lock(&self.frames);
            let skip = since.saturating_sub(frames.first);
            let skip = usize::try_from(skip).unwrap_or(usize::MAX);
            let mut bytes = 0;
            let some = frames.all.iter().skip(skip).take_while(|frame| {
                let before = bytes;
                bytes += frame.len();
                before == 0 || bytes <= SOME_BYTES
            });
            let some: Vec<_> = some.cloned().collect();
            (frames.first.max(since.min(frames.first + frames.all.len() as u64)), some)
        };
        format!("{{\"ended\":{ended},\"first\":{first},\"frames\":[{}]}}", some.join(","))
    }

    /// The way of a command from one node to another, over the default paths.
    fn route(&self, request: &Request) -> anyhow::Result<Value> {
        let node = |name: &str| -> anyhow::Result<_> {
            let number = number(request, name)?;
            let shape = &self.film.shape;
            shape.coords(NodeId(number)).with_context(|| format!("there is no node {number}"))
        };
        let (from, to) = (node("from")?, node("to")?);
        let path = to.default_path();
        let route = Route::new(&self.film.shape, from, to, path, Class::Request)?;
        let hops = route.map(|hop| {
            let port = hop.port.to_string();
            json!({
                "from": hop.from.0,
                "to": hop.to.0,
                "link": self.film.links.number(hop.from.0, &port),
                "port": port,
                "vc": hop.vc,
            })
        });
        Ok(json!({ "hops": hops.collect::<Vec<_>>() }))
    }

    /// Asks the machine, if there still is one.
    fn ask(&self, request: &Ask) -> anyhow::Result<Reply> {
        match &self.control {
            Some(control) if !self.ended.load(SeqCst) => ask(control, request),
            Some(_) => bail!("the machine has ended"),
            None => bail!("this is a recorded run, not a machine"),
        }
    }

    /// A node's state as JSON, whose parts have the order of the device.
    fn inspect(&self, request: &Request) -> anyhow::Result<String> {
        let path = request.value("path").unwrap_or_default();
        let asked = InspectRequest {
            node: number(request, "node")?,
            path: path.trim_matches('/').to_owned(),
            depth: DEPTH,
            limit: VALUES,
        };
        match self.ask(&Ask::Inspect(asked))? {
            Reply::Inspection { tree: Some(tree), complete } => {
                let tree = serde_json::to_string(&tree)?;
                Ok(format!("{{\"tree\":{tree},\"complete\":{complete}}}"))
            }
            _ => bail!("there is no device at this place"),
        }
    }

    /// Carries out the action of a button.
    fn act(&self, act: Act) -> anyhow::Result<Value> {
        let request = match act {
            Act::Link { node, port, up } => Ask::SetLink { node, port, up },
            // Guests there keep running, as with `tofu node down` by default.
            Act::Node { node, up } => Ask::SetNodes { nodes: vec![node], up, guests: false },
        };
        self.ask(&request)?;
        Ok(json!({ "done": true }))
    }
}

/// The requests of buttons.
#[derive(Debug, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
enum Act {
    Link { node: u32, port: String, up: bool },
    Node { node: u32, up: bool },
}

fn number(request: &Request, name: &str) -> anyhow::Result<u32> {
    let value = request.value(name).with_context(|| format!("{name} is missing"))?;
    value.parse().with_context(|| format!("{name}={value}: not a number"))
}

/// The page's server, until it is dropped.
pub(super) struct Server {
    listening: Arc<Listening>,
    thread: Option<JoinHandle<()>>,
}

struct Listening {
    at: SocketAddr,
    token: String,
    scene: Arc<Scene>,
    ended: AtomicBool,
    clients: AtomicUsize,
}

impl Server {
    /// Begins to answer.
    ///
    /// # Errors
    ///
    /// If the host has no threads or random numbers left.
    pub(super) fn start(listener: TcpListener, scene: &Arc<Scene>) -> anyhow::Result<Self> {
        let mut random = [0; 16];
        getrandom(&mut random, GetRandomFlags::empty()).context("no random numbers")?;
        let mut token = String::new();
        for byte in random {
            // Writing to a string does not fail.
            let _ = write!(token, "{byte:02x}");
        }
        let listening = Arc::new(Listening {
            at: listener.local_addr()?,
            token,
            scene: Arc::clone(scene),
            ended: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
        });
        let run = {
            let listening = Arc::clone(&listening);
            move || listening.run(&listener)
        };
        let thread = thread::Builder::new().name("view".into()).spawn(run)?;
        Ok(Self { listening, thread: Some(thread) })
    }

    /// The address of the page.
    pub(super) fn address(&self) -> String {
        format!("http://{}/{}/", self.listening.at, self.listening.token)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listening.ended.store(true, SeqCst);
        // It waits for a client.
        let _ = TcpStream::connect(self.listening.at);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Listening {
    fn run(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.ended.load(SeqCst) {
                return;
            }
            let client = match client {
                Ok(client) => client,
                Err(error) => {
                    log::warn!("view: {error}");
                    thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            // Browsers open connections ahead and leave them idle: other clients need not wait for
            // these.
            if self.clients.fetch_add(1, SeqCst) >= CLIENTS {
                self.clients.fetch_sub(1, SeqCst);
                let _ = client.shutdown(Shutdown::Both);
                continue;
            }
            let listening = Arc::clone(self);
            let answer = move || {
                let answered = tofu_http::answer(client, |request| listening.answer(request));
                if let Err(error) = answered {
                    log::debug!("view: {error}");
                }
                listening.clients.fetch_sub(1, SeqCst);
            };
            if thread::Builder::new().name("view-client".into()).spawn(answer).is_err() {
                self.clients.fetch_sub(1, SeqCst);
            }
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        let answer = match self.refusal(request) {
            Some(why) => Answer::refused(FORBIDDEN, why),
            None => self.page(request),
        };
        Answer { fields: answer.fields + GUARD, ..answer }
    }

    /// The reason why a request is not from our page, because another site may send a browser here,
    /// too.
    fn refusal(&self, request: &Request) -> Option<&'static str> {
        let port = self.at.port();
        let ours = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
        match &request.host {
            Some(host) if ours.contains(host) => {}
            _ => return Some("this page is at 127.0.0.1 or localhost only"),
        }
        match &request.origin {
            None => {}
            Some(origin) if ours.iter().any(|host| *origin == format!("http://{host}")) => {}
            Some(_) => return Some("another page asks for this one"),
        }
        let first = request.path.strip_prefix('/').and_then(|path| path.split('/').next());
        match first {
            Some(token) if same(token, &self.token) => None,
            _ => Some("the token is wrong: use the address that tofu view has printed"),
        }
    }

    fn page(&self, request: &Request) -> Answer {
        let path = request.path.get(1 + self.token.len()..).unwrap_or_default();
        match (request.method.as_str(), path) {
            // Addresses on the page are relative to this one.
            ("GET" | "HEAD", "") => Answer::moved(&format!("/{}/", self.token)),
            ("GET" | "HEAD", "/") => {
                Answer::good("text/html; charset=utf-8", include_str!("page/index.html"))
            }
            ("GET" | "HEAD", "/view.css") => {
                Answer::good("text/css; charset=utf-8", include_str!("page/view.css"))
            }
            ("GET" | "HEAD", "/view.js") => {
                Answer::good("text/javascript; charset=utf-8", include_str!("page/view.js"))
            }
            ("GET" | "HEAD", "/stage") => Answer::good(JSON, self.scene.stage.as_str()),
            ("GET" | "HEAD", "/frames") => {
                let since = request.value("since").and_then(|since| since.parse().ok());
                Answer::good(JSON, self.scene.frames(since.unwrap_or(0)))
            }
            ("GET" | "HEAD", "/route") => {
                told(self.scene.route(request).map(|way| way.to_string()))
            }
            ("GET" | "HEAD", "/inspect") => told(self.scene.inspect(request)),
            ("POST", "/act") => {
                let act = serde_json::from_slice(&request.body).context("not an act");
                told(act.and_then(|act| self.scene.act(act)).map(|done| done.to_string()))
            }
            ("GET" | "HEAD" | "POST", _) => {
                Answer::refused("404 Not Found", "there is no such page")
            }
            _ => Answer::refused("405 Method Not Allowed", "GET and POST only"),
        }
    }
}

/// Returns true if two texts are the same, in a time that does not reveal where they differ.
fn same(one: &str, other: &str) -> bool {
    let differ = one.bytes().zip(other.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
    one.len() == other.len() && differ == 0
}

/// JSON, or why there is none.
fn told(result: anyhow::Result<String>) -> Answer {
    match result {
        Ok(value) => Answer::good(JSON, value),
        Err(error) => Answer::refused("409 Conflict", &format!("{error:#}")),
    }
}
