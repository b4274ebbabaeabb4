"use strict";
// The page of `tofu view`. Whatever a machine or its users have named is only ever set as text.

const get = (id) => document.getElementById(id);
const MOST_FRAMES = 3600;
const ROWS = 400;

const film = { first: 0, frames: [], ended: false };
const scene = { nodes: new Map(), links: [], at: [], torus: null, words: new Map() };
const LOADS = ["load1", "load2", "load3", "load4", "load5"];
const shown = {
  frame: -1, live: true, node: null, route: [], panel: "node", sort: "index", down: false,
};
const view = { turn: 0.6, tilt: 0.45, zoom: 1, dirty: true, points: null, scale: 1 };
const theme = {};
const canvas = get("torus");
const paint = canvas.getContext("2d");

// What the server says, or throws its one line.
async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const answer = await fetch(path, options);
  const text = await answer.text();
  if (!answer.ok) throw new Error(text.trim());
  return JSON.parse(text);
}

function say(text, bad) {
  const news = get("news");
  if (news.textContent !== text) news.textContent = text;
  news.classList.toggle("bad", Boolean(bad));
}

function make(name, text, kind) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A number in few columns.
function short(value) {
  for (const unit of ["", "k", "M", "G", "T"]) {
    if (value < 999.5) {
      if (value === 0) return "0";
      return (value < 9.95 ? value.toFixed(1) : value.toFixed(0)) + unit;
    }
    value /= 1000;
  }
  return "many";
}

/* The machine. */

function begin(stage) {
  const { machine, shape, generation } = stage.stage;
  document.title = `${machine} – tofu view`;
  get("machine").textContent = machine;
  scene.replay = stage.replay;
  scene.name = `${shape} ${generation}${stage.replay ? ", recorded" : ""}`;
  scene.at = stage.all;
  scene.links = stage.links.map(([from, port, to, wrap], number) => {
    return { number, from, port, to, wrap };
  });
  scene.ports = new Map();
  for (const link of scene.links) {
    put(scene.ports, link.from, { link, port: link.port, to: link.to, back: false });
    put(scene.ports, link.to, { link, port: opposite(link.port), to: link.from, back: true });
  }
  lay(shape.split("x").map(Number));
  scene.length = shape.split("x").map(Number);
  legend();
}

// What each colour means. The words of loads have rates, which change with the frame.
function legend() {
  const links = [["idle", "no traffic"], ...LOADS.map((name) => [name, ""]),
    ["down", "link down", "dashed"], ["path", "chosen path"]];
  const nodes = [["good", "node works"], ["wait", "waits or paused"], ["off", "ended"],
    ["down", "down"], ["idle", "without a guest"]];
  const marks = [...links, ...nodes.map(([name, text]) => [name, text, "node"])];
  for (const [name, text, kind] of marks) {
    const entry = make("li");
    const mark = make("i", undefined, kind);
    mark.style.color = `var(--${name})`;
    const words = make("span", text);
    entry.append(mark, words);
    if (LOADS.includes(name)) scene.words.set(name, words);
    get("legend").append(entry);
  }
  const jobs = make("li");
  for (const colour of FILLS) {
    const mark = make("i", undefined, "node");
    mark.style.color = colour;
    jobs.append(mark);
  }
  jobs.append(make("span", "nodes of jobs, by number"));
  get("legend").append(jobs);
}

// The scale of loads: the most that each colour stands for.
function scale(now) {
  LOADS.forEach((name, n) => {
    const most = now.loads.length ? `up to ${short((now.most * (n + 1)) / LOADS.length)}B/s` : "-";
    set(scene.words.get(name), most);
  });
}

// Nodes of a machine that starts come one after the other.
function enter(now) {
  for (const { index, name, kind } of now.nodes) {
    if (scene.nodes.has(index) || !scene.at[index]) continue;
    const node = { index, name, kind, at: scene.at[index] };
    scene.nodes.set(index, node);
    get("nodes").tBodies[0].append(nodeRow(node));
  }
  if (shown.node === null && scene.nodes.size > 0) choose([...scene.nodes.keys()][0]);
}

function put(map, key, value) {
  if (!map.has(key)) map.set(key, []);
  map.get(key).push(value);
}

function opposite(port) {
  return port.endsWith("+") ? port[0] + "-" : port.endsWith("-") ? port[0] + "+" : port;
}

// Places all nodes: blocks of A, B, C on a grid of X, Y, Z.
function lay(length) {
  const step = [0, 1, 2].map((axis) => length[axis + 3] - 1 + 1.6);
  const place = (at, axis) => at[axis] * step[axis] + at[axis + 3];
  const points = scene.at.map((at) => [0, 1, 2].map((axis) => place(at, axis)));
  const middle = [0, 1, 2].map((axis) => place(length.map((n) => n - 1), axis) / 2);
  view.points = points.map((point) => point.map((value, axis) => value - middle[axis]));
  view.radius = Math.max(1, Math.hypot(...middle));
  view.x = new Float32Array(points.length);
  view.y = new Float32Array(points.length);
  view.depth = new Float32Array(points.length);
}

/* Frames. */

async function follow() {
  for (;;) {
    let got = 0;
    try {
      const next = film.first + film.frames.length;
      const more = await ask(`frames?since=${next}`);
      if (more.first > next) film.frames.length = 0;
      if (film.frames.length === 0) film.first = more.first;
      film.frames.push(...more.frames);
      got = more.frames.length;
      if (!scene.replay && film.frames.length > MOST_FRAMES) {
        const old = film.frames.length - MOST_FRAMES;
        film.frames.splice(0, old);
        film.first += old;
      }
      if (more.ended && !film.ended && !scene.replay) say("The machine has ended.", true);
      film.ended = more.ended;
    } catch (error) {
      const why = `tofu view does not answer: ${error.message}`;
      say(film.ended ? "The machine has ended." : why, true);
    }
    if (got > 0) {
      const time = get("time");
      time.min = film.first;
      time.max = film.first + film.frames.length - 1;
      if (shown.live && !scene.replay) show(Number(time.max));
      else if (shown.frame < film.first) show(film.first);
      continue;
    }
    await new Promise((done) => setTimeout(done, film.ended ? 3000 : 400));
  }
}

function frame(number = shown.frame) {
  return film.frames[number - film.first];
}

function show(number) {
  const before = frame();
  shown.frame = number;
  const now = frame();
  if (!now) return;
  get("time").value = number;
  const clock = now.modelled == null
    ? `${now.seconds.toFixed(1)} s`
    : `${now.modelled.toFixed(6)} s modelled`;
  set(get("clock"), clock);
  get("time").setAttribute("aria-valuetext", clock);
  prepare(now);
  enter(now);
  tell(before, now);
  scale(now);
  const jobs = now.jobs.filter((job) => job.state === "running").length;
  const down = now.down.length ? `, ${count(now.down.length, "link")} down` : "";
  const nodes = count(scene.nodes.size, "node");
  set(get("summary"), `${scene.name}, ${nodes}, ${count(jobs, "job")}${down}`);
  panels();
  view.dirty = true;
}

function count(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

// What of a frame is looked up again and again.
function prepare(now) {
  if (now.ready) return;
  now.load = new Map(now.loads.map(([link, there, back]) => [link, [there, back]]));
  now.isDown = new Set(now.down);
  now.seen = new Map(now.nodes.map((node) => [node.index, node]));
  now.most = now.loads.reduce((most, [, there, back]) => Math.max(most, there, back), 1);
  now.jobsOf = new Map();
  for (const job of now.jobs) {
    if (job.state === "running") for (const node of job.nodes) put(now.jobsOf, node, job.job);
  }
  now.ready = true;
}

// What has changed is said, for those who do not look.
function tell(before, now) {
  if (!before || before === now) return;
  prepare(before);
  const name = (number) => `${scene.links[number].from} ${scene.links[number].port}`;
  const named = (links, what) => {
    if (links.length > 3) return `${links.length} links ${what}`;
    return `link ${links.map(name).join(", ")} ${what}`;
  };
  const fell = now.down.filter((link) => !before.isDown.has(link));
  const rose = before.down.filter((link) => !now.isDown.has(link));
  const words = [];
  if (fell.length) words.push(named(fell, "down"));
  if (rose.length) words.push(named(rose, "up"));
  if (words.length) say(words.join("; "), fell.length > 0);
}

/* The picture. */

function colours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["back", "front", "idle", "down", "path", "good", "wait", "off", "load1",
    "load2", "load3", "load4", "load5"]) {
    theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  view.dirty = true;
}

function size() {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  view.ratio = ratio;
  view.dirty = true;
}

function project() {
  const { turn, tilt, zoom, points, x, y, depth, radius } = view;
  const [ct, st, cu, su] = [Math.cos(turn), Math.sin(turn), Math.cos(tilt), Math.sin(tilt)];
  const scale = 0.42 * Math.min(canvas.width, canvas.height) / radius * zoom;
  view.scale = scale;
  const far = 4 * radius;
  for (let n = 0; n < points.length; n++) {
    const [px, py, pz] = points[n];
    const rx = px * ct + pz * st;
    const rz = -px * st + pz * ct;
    const ry = py * cu - rz * su;
    const rd = py * su + rz * cu;
    const near = far / (far + rd);
    x[n] = canvas.width / 2 + rx * scale * near;
    y[n] = canvas.height / 2 + ry * scale * near;
    depth[n] = near;
  }
}

function line(link) {
  const { x, y } = view;
  const [x0, y0, x1, y1] = [x[link.from], y[link.from], x[link.to], y[link.to]];
  paint.moveTo(x0, y0);
  if (link.wrap) {
    // Round what is in between.
    const bend = 0.18;
    const [mx, my] = [(x0 + x1) / 2 + (y1 - y0) * bend, (y0 + y1) / 2 - (x1 - x0) * bend];
    paint.quadraticCurveTo(mx, my, x1, y1);
  } else {
    paint.lineTo(x1, y1);
  }
}

function level(link, now) {
  if (now.isDown.has(link.number)) return "down";
  const load = now.load.get(link.number);
  if (!load) return "idle";
  const share = Math.max(load[0], load[1]) / now.most;
  return `load${Math.min(5, Math.max(1, Math.ceil(share * 5)))}`;
}

const STATES = {
  ready: "good", running: "good", attached: "good", gateway: "good", ended: "off", off: "off",
  paused: "wait", booting: "wait", waiting: "wait", down: "down", "not answering": "down",
};
const WIDTHS = {
  idle: 0.7, load1: 0.8, load2: 1, load3: 1.3, load4: 1.6, load5: 2, down: 2,
};
// If there are more links, those with little load are not wider than a pixel. Without a graphics
// processor, wider lines take eight times as long.
const MANY = 1000;
const FILLS = ["#0072b2", "#cc79a7", "#56b4e9", "#f0e442", "#8a63c9", "#9a6b2f"];
// Machines of more nodes have numbers only when they are near.
const NUMBERED = 64;

function draw() {
  project();
  paint.fillStyle = theme.back;
  paint.fillRect(0, 0, canvas.width, canvas.height);
  const now = frame();
  if (!now) return;
  const width = Math.max(0.6, Math.min(3, view.scale / 26)) * view.ratio;
  const groups = new Map();
  for (const link of scene.links) put(groups, level(link, now), link);
  for (const [name, times] of Object.entries(WIDTHS).filter(([name]) => groups.has(name))) {
    paint.strokeStyle = theme[name];
    const thin = times <= 1 && scene.links.length > MANY;
    paint.lineWidth = thin ? Math.min(1, width * times) : width * times;
    paint.setLineDash(name === "down" ? [5 * width, 4 * width] : []);
    // Of wider lines, paths with several take longer than those with one.
    const together = paint.lineWidth <= 1 ? 16 : 1;
    const links = groups.get(name);
    for (let n = 0; n < links.length; n += together) {
      paint.beginPath();
      links.slice(n, n + together).forEach(line);
      paint.stroke();
    }
  }
  paint.setLineDash([]);
  if (shown.route.length) {
    paint.beginPath();
    shown.route.forEach((hop) => hop.link !== null && line(scene.links[hop.link]));
    paint.strokeStyle = theme.path;
    paint.lineWidth = width * 3;
    paint.stroke();
  }
  const radius = Math.max(1.5 * view.ratio, Math.min(9 * view.ratio, view.scale * 0.16));
  const discs = new Map();
  for (let n = 0; n < scene.at.length; n++) put(discs, fill(n, now), n);
  for (const [colour, members] of discs) {
    paint.fillStyle = colour;
    for (const n of members) {
      paint.beginPath();
      const r = radius * view.depth[n];
      paint.arc(view.x[n], view.y[n], r, 0, 2 * Math.PI);
      paint.fill();
    }
  }
  labels(radius);
  if (shown.node !== null) {
    const r = radius * view.depth[shown.node] + 4 * view.ratio;
    paint.beginPath();
    paint.arc(view.x[shown.node], view.y[shown.node], r, 0, 2 * Math.PI);
    paint.strokeStyle = theme.front;
    paint.lineWidth = 2 * view.ratio;
    paint.stroke();
  }
}

// The numbers of nodes where there is room, and the directions of axes.
function labels(radius) {
  const { ratio, x, y } = view;
  paint.fillStyle = theme.front;
  paint.font = `${12 * ratio}px system-ui, sans-serif`;
  if (scene.at.length <= NUMBERED || view.scale > 60 * ratio) {
    for (let n = 0; n < scene.at.length; n++) {
      if (x[n] < 0 || x[n] > canvas.width || y[n] < 0 || y[n] > canvas.height) continue;
      paint.fillText(String(n), x[n] + radius + 2 * ratio, y[n] + radius + 8 * ratio);
    }
  }
  const [ct, st] = [Math.cos(view.turn), Math.sin(view.turn)];
  const [cu, su] = [Math.cos(view.tilt), Math.sin(view.tilt)];
  // As `project` turns them, without perspective.
  const ways = [[ct, st * su], [0, cu], [st, -ct * su]];
  const [left, top, long] = [58 * ratio, 58 * ratio, 34 * ratio];
  paint.strokeStyle = theme.front;
  paint.lineWidth = 1.2 * ratio;
  ways.forEach(([dx, dy], axis) => {
    const used = ["XYZ"[axis], "ABC"[axis]].filter((_, n) => scene.length[axis + 3 * n] > 1);
    if (!used.length) return;
    paint.beginPath();
    paint.moveTo(left, top);
    paint.lineTo(left + dx * long, top + dy * long);
    paint.stroke();
    paint.textAlign = "center";
    paint.textBaseline = "middle";
    paint.fillText(used.join(" "), left + dx * long * 1.4, top + dy * long * 1.4);
  });
  paint.textAlign = "start";
  paint.textBaseline = "alphabetic";
}

function fill(n, now) {
  if (!scene.nodes.has(n)) return theme.idle;
  const state = now.seen.get(n)?.state;
  const colour = STATES[state] ?? "off";
  const jobs = now.jobsOf.get(n);
  if (jobs && colour === "good") return FILLS[jobs[0] % FILLS.length];
  return theme[colour];
}

function loop() {
  if (view.dirty) {
    view.dirty = false;
    draw();
  }
  requestAnimationFrame(loop);
}

// Milliseconds that a picture takes while the torus turns.
function measure(pictures) {
  const start = performance.now();
  for (let n = 0; n < pictures; n++) {
    view.turn += 0.02;
    draw();
  }
  // Reading back waits for what has been drawn.
  paint.getImageData(0, 0, 1, 1);
  return (performance.now() - start) / pictures;
}

/* Panels. */

function panels() {
  if (shown.panel === "node") panelNode();
  if (shown.panel === "nodes") panelNodes();
  if (shown.panel === "links") panelLinks();
  if (shown.panel === "jobs") panelJobs();
}

function choose(node) {
  if (!scene.nodes.has(node)) return;
  const other = node !== shown.node;
  shown.node = node;
  view.dirty = true;
  if (other) {
    get("inspection").replaceChildren();
    clearRoute();
    buildPorts(node);
  }
  panels();
}

function can() {
  return !scene.replay && !film.ended;
}

// A button that does something to the machine, whose state the next frame shows.
function button(text, act) {
  const element = make("button", text);
  element.type = "button";
  element.addEventListener("click", async () => {
    element.disabled = true;
    try {
      await ask("act", act());
    } catch (error) {
      say(error.message, true);
    }
    element.disabled = false;
  });
  return element;
}

function linkButton(link, node, port) {
  const up = () => frame().isDown.has(link.number);
  const element = button("", () => ({ act: "link", node, port, up: up() }));
  element.dataset.link = link.number;
  return element;
}

function updateLinkButton(element, link, now) {
  const down = now.isDown.has(link.number);
  const words = can() ? (down ? "Bring up" : "Take down") : down ? "down" : "up";
  set(element, words);
  // Read aloud, it is out of its row.
  element.setAttribute("aria-label", `${words}, link ${link.from} ${link.port}`);
  element.classList.toggle("down", down);
  element.disabled = !can();
}

function buildPorts(node) {
  const body = get("node-ports").tBodies[0];
  body.replaceChildren();
  for (const end of scene.ports.get(node) ?? []) {
    const row = make("tr");
    row.end = end;
    const to = make("button", String(end.to));
    to.type = "button";
    to.setAttribute("aria-label", `${end.to}, node at ${end.port}`);
    to.addEventListener("click", () => choose(end.to));
    const cell = make("td");
    cell.append(to);
    const last = make("td");
    last.append(linkButton(end.link, node, end.port));
    row.append(make("td", end.port, "text"), cell, make("td"), make("td"), last);
    body.append(row);
  }
  get("node-ports").hidden = body.rows.length === 0;
  const actions = get("node-actions");
  actions.replaceChildren(button("", () => {
    return { act: "node", node, up: frame().seen.get(node)?.state === "down" };
  }));
  get("inspect").hidden = scene.replay;
}

function panelNode() {
  const now = frame();
  const node = scene.nodes.get(shown.node);
  if (!now || !node) return;
  const seen = now.seen.get(node.index);
  set(get("node-name"), `Node ${node.index} (${node.at.join(",")}) ${node.name}`);
  const jobs = now.jobsOf.get(node.index);
  const [commands, sent, received, errors] = seen?.rates ?? [0, 0, 0, 0];
  const of = jobs ? `, job ${jobs.join(" ")}` : "";
  set(get("node-state"), `${node.kind}, ${seen?.state ?? "gone"}${of}: ` +
    `${short(commands)} commands/s, ${short(sent)} B/s sent, ${short(received)} B/s received, ` +
    `${short(errors)} errors/s, ${seen?.waiting ?? 0} waiting`);
  const [act] = get("node-actions").children;
  if (act) {
    set(act, seen?.state === "down" ? "Repair the node's router" : "Have the node's router fail");
    act.disabled = !can();
  }
  for (const row of get("node-ports").tBodies[0].rows) {
    const { link, back } = row.end;
    const [there, other] = now.load.get(link.number) ?? [0, 0];
    set(row.cells[2], short(back ? other : there));
    set(row.cells[3], short(back ? there : other));
    updateLinkButton(row.cells[4].firstChild, link, now);
  }
}

function nodeRow(node) {
  const row = make("tr");
  row.node = node;
  const name = make("button", String(node.index));
  name.type = "button";
  name.setAttribute("aria-label", `${node.index}, node`);
  name.addEventListener("click", () => {
    choose(node.index);
    panel("node");
  });
  const first = make("td", undefined, "text");
  first.append(name);
  row.append(first, make("td", node.at.join(","), "text"), make("td", "", "text"));
  for (let n = 0; n < 6; n++) row.append(make("td", ""));
  return row;
}

function panelNodes() {
  const now = frame();
  if (!now) return;
  const body = get("nodes").tBodies[0];
  for (const row of body.rows) {
    const { index } = row.node;
    const seen = now.seen.get(index);
    const [commands, sent, received, errors] = seen?.rates ?? [0, 0, 0, 0];
    const jobs = (now.jobsOf.get(index) ?? []).join(" ");
    const [state, waiting] = [seen?.state ?? "gone", seen?.waiting ?? 0];
    row.key = { index, at: index, state, jobs, commands, sent, received, errors, waiting };
    const words = [state, jobs || "-", short(commands), short(sent), short(received),
      short(errors), String(waiting)];
    words.forEach((word, n) => set(row.cells[n + 2], word));
    row.cells[2].classList.toggle("down", state === "down");
    row.classList.toggle("chosen", index === shown.node);
  }
  const { sort, down } = shown;
  const order = (a, b) => {
    const [one, other] = [a.key[sort], b.key[sort]];
    const less = typeof one === "number" ? one - other : one.localeCompare(other);
    return (down ? -less : less) || a.key.index - b.key.index;
  };
  const rows = [...body.rows];
  const sorted = [...rows].sort(order);
  if (sorted.some((row, n) => row !== rows[n])) {
    const focus = document.activeElement;
    body.append(...sorted);
    if (body.contains(focus)) focus.focus();
  }
}

// Those that are down first, then by load.
function panelLinks() {
  const now = frame();
  if (!now) return;
  const load = (link) => Math.max(...(now.load.get(link.number) ?? [0, 0]));
  const down = (link) => Number(now.isDown.has(link.number));
  const order = (a, b) => down(b) - down(a) || load(b) - load(a) || a.number - b.number;
  const links = [...scene.links].sort(order);
  const left = links.length - ROWS;
  const note = `${left} more links have less load; each is at its node, too.`;
  set(get("links-note"), left > 0 ? note : "");
  const body = get("links").tBodies[0];
  const chosen = links.slice(0, ROWS);
  const old = new Map([...body.rows].map((row) => [row.link.number, row]));
  const rows = chosen.map((link) => old.get(link.number) ?? linkRow(link));
  if (rows.length !== body.rows.length || rows.some((row, n) => row !== body.rows[n])) {
    const focus = document.activeElement;
    body.replaceChildren(...rows);
    if (body.contains(focus)) focus.focus();
  }
  for (const row of rows) {
    const [there, back] = now.load.get(row.link.number) ?? [0, 0];
    set(row.cells[3], short(there));
    set(row.cells[4], short(back));
    updateLinkButton(row.cells[5].firstChild, row.link, now);
  }
}

function linkRow(link) {
  const row = make("tr");
  row.link = link;
  const last = make("td");
  last.append(linkButton(link, link.from, link.port));
  row.append(make("td", String(link.from), "text"), make("td", link.port, "text"),
    make("td", String(link.to)), make("td"), make("td"), last);
  return row;
}

function panelJobs() {
  const now = frame();
  if (!now) return;
  const rows = now.jobs.map((job) => {
    const row = make("tr");
    const some = job.nodes.slice(0, 12).join(" ");
    const nodes = job.nodes.length > 12 ? `${some} …` : some;
    row.append(make("td", String(job.job), "text"), make("td", job.state, "text"),
      make("td", job.shape ?? "-", "text"), make("td", nodes, "long"),
      make("td", job.command, "long"));
    return row;
  });
  get("jobs").tBodies[0].replaceChildren(...rows);
}

function panel(name) {
  shown.panel = name;
  for (const button of document.querySelectorAll("nav button")) {
    const on = button.dataset.panel === name;
    button.setAttribute("aria-pressed", String(on));
    get(`panel-${button.dataset.panel}`).hidden = !on;
  }
  panels();
}

/* A device's state, and the path of a command. */

function tree(name, value) {
  if (value === null || typeof value !== "object") {
    const words = new Map([[null, "-"], [true, "yes"], [false, "no"]]);
    return make("p", `${name}: ${words.get(value) ?? value}`);
  }
  const parts = make("details");
  parts.append(make("summary", name));
  // Filled when it is opened: there may be thousands of values.
  parts.addEventListener("toggle", () => {
    if (parts.open && parts.children.length === 1) {
      parts.append(...Object.entries(value).map(([name, part]) => tree(name, part)));
    }
  });
  return parts;
}

async function inspect() {
  const node = shown.node;
  try {
    const { tree: state, complete } = await ask(`inspect?node=${node}`);
    if (node !== shown.node) return;
    const parts = Object.entries(state).map(([name, part]) => tree(name, part));
    if (!complete) parts.push(make("p", "There is more: tofu inspect shows all."));
    get("inspection").replaceChildren(...parts);
  } catch (error) {
    say(error.message, true);
  }
}

function clearRoute() {
  shown.route = [];
  get("route-hops").replaceChildren();
  view.dirty = true;
}

async function route() {
  const to = Number(get("route-to").value);
  try {
    const { hops } = await ask(`route?from=${shown.node}&to=${to}`);
    shown.route = hops;
    const text = ({ from, port, to, vc }) => `${from} ${port} to ${to}, virtual channel ${vc}`;
    const lines = hops.map((hop) => make("li", text(hop)));
    get("route-hops").replaceChildren(...lines);
    if (hops.length === 0) say("A command to the node itself takes no link.");
  } catch (error) {
    say(error.message, true);
  }
  view.dirty = true;
}

/* What people do. */

function pause(live) {
  shown.live = live;
  set(get("play"), live ? "Pause" : scene.replay ? "Play" : "Live");
  if (live && film.frames.length) {
    const last = film.first + film.frames.length - 1;
    if (!scene.replay) show(last);
    else if (shown.frame === last) show(film.first);
  }
}

// A recorded run plays as fast as it was.
function play() {
  let wait = 200;
  if (scene.replay && shown.live && frame(shown.frame + 1)) {
    const [one, next] = [frame(), frame(shown.frame + 1)];
    wait = Math.min(5000, Math.max(50, 1000 * (next.seconds - (one?.seconds ?? next.seconds))));
    show(shown.frame + 1);
    if (!frame(shown.frame + 1)) pause(false);
  }
  setTimeout(play, wait);
}

function nearest(event) {
  const box = canvas.getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left) * view.ratio, (event.clientY - box.top) * view.ratio];
  let best = null;
  let least = (16 * view.ratio) ** 2;
  for (const n of scene.nodes.keys()) {
    const distance = (view.x[n] - x) ** 2 + (view.y[n] - y) ** 2;
    if (distance < least) [best, least] = [n, distance];
  }
  return best;
}

function next(step) {
  const all = [...scene.nodes.keys()];
  const at = all.indexOf(shown.node);
  choose(all[(at + step + all.length) % all.length]);
}

function turn(by, up) {
  view.turn += by;
  view.tilt = Math.max(-1.5, Math.min(1.5, view.tilt + up));
  view.dirty = true;
}

function zoom(by) {
  view.zoom = Math.max(0.2, Math.min(30, view.zoom * by));
  view.dirty = true;
}

function listen() {
  let from = null;
  let moved = false;
  canvas.addEventListener("pointerdown", (event) => {
    from = [event.clientX, event.clientY];
    moved = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!from) return;
    const [dx, dy] = [event.clientX - from[0], event.clientY - from[1]];
    if (!moved && Math.hypot(dx, dy) < 4) return;
    moved = true;
    from = [event.clientX, event.clientY];
    turn(dx * 0.008, dy * 0.008);
  });
  canvas.addEventListener("pointerup", (event) => {
    from = null;
    if (moved) return;
    const node = nearest(event);
    if (node !== null) {
      choose(node);
      panel("node");
    }
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.0015));
  }, { passive: false });
  const keys = {
    ArrowLeft: () => turn(-0.1, 0), ArrowRight: () => turn(0.1, 0),
    ArrowUp: () => turn(0, -0.1), ArrowDown: () => turn(0, 0.1),
    "+": () => zoom(1.2), "=": () => zoom(1.2), "-": () => zoom(1 / 1.2),
    0: () => Object.assign(view, { turn: 0.6, tilt: 0.45, zoom: 1, dirty: true }),
    n: () => next(1), p: () => next(-1), " ": () => pause(!shown.live),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  for (const button of document.querySelectorAll("nav button")) {
    button.addEventListener("click", () => panel(button.dataset.panel));
  }
  for (const head of document.querySelectorAll("#nodes th")) {
    head.firstElementChild.addEventListener("click", () => {
      const same = shown.sort === head.dataset.sort;
      // Of numbers of what happens, most comes first.
      const most = !["index", "at", "state", "jobs"].includes(head.dataset.sort);
      Object.assign(shown, { sort: head.dataset.sort, down: same ? !shown.down : most });
      for (const other of document.querySelectorAll("#nodes th")) {
        other.removeAttribute("aria-sort");
      }
      head.setAttribute("aria-sort", shown.down ? "descending" : "ascending");
      panelNodes();
    });
  }
  get("time").addEventListener("input", (event) => {
    const number = Number(event.target.value);
    pause(false);
    show(number);
  });
  get("play").addEventListener("click", () => pause(!shown.live));
  get("inspect").addEventListener("click", inspect);
  get("route").addEventListener("submit", (event) => {
    event.preventDefault();
    route();
  });
  get("route-clear").addEventListener("click", clearRoute);
  new ResizeObserver(size).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colours);
}

async function start() {
  colours();
  size();
  listen();
  try {
    begin(await ask("stage"));
  } catch (error) {
    say(error.message, true);
    return;
  }
  loop();
  play();
  // For tests and for those who are curious how fast it is.
  window.tofu = { film, scene, shown, view, measure };
  follow();
}

start();
