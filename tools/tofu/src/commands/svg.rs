//! A picture of the 6D box.
//!
//! Each ABC block (a Tofu unit unless cut down) is a panel that shows its nodes and their A, B and
//! C links in oblique projection. The panels form a grid; a line between two panels represents the
//! parallel links that join their nodes, one per node.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use tofu_abi::Coords;
use tofu_control::protocol::JobInfo;
use tofu_fabric::{Axis, Link};
use tofu_spec::plan::Network;
use tofu_ui::palette::{AXES, DOWN};

/// Pictures of larger machines are not readable.
const MAX_NODES: u32 = 3072;

/// The machine is too large for a picture.
#[derive(Debug, thiserror::Error)]
#[error(
    "a picture shows at most {MAX_NODES} nodes and this machine has {0}; choose a smaller --shape"
)]
pub(crate) struct TooLarge(u32);

// Lengths in pixels.
const RADIUS: i32 = 16;
/// Steps along A, B and C within a panel.
const STEP_A: (i32, i32) = (112, 0);
const STEP_B: (i32, i32) = (0, 78);
const STEP_C: (i32, i32) = (56, -32);
/// The distance of the control points of the closing link of B to the left: four
/// thirds of how far it swings out, past the node in between but not the next
/// ones.
const SWING: i32 = 36;
/// From a panel's edge to its outermost nodes' centres.
const PAD_X: i32 = 36;
const PAD_TOP: i32 = 50;
const PAD_BOTTOM: i32 = 30;
/// Between panels; between groups of panels along the outer axis.
const GAP: i32 = 64;
const GROUP_GAP: i32 = 44;
/// Distance of parallel lines in the channel above a row.
const LANE: i32 = 12;
const MARGIN: i32 = 40;
const HEAD: i32 = 84;
const LEGEND: i32 = 116;

pub(crate) fn colour(axis: Axis) -> &'static str {
    AXES[axis.index()]
}

/// The fill colour of a job's nodes.
fn of_job(job: u32) -> &'static str {
    const FILLS: [&str; 6] = ["#cfe8ff", "#ffe2b8", "#d6f2c4", "#f3d3f5", "#fff3a8", "#d8d8ee"];
    FILLS[job as usize % FILLS.len()]
}

/// Draws the machine as a stand-alone SVG document; nodes of jobs are coloured, with
/// the jobs' numbers below.
pub(crate) fn draw(network: &Network, jobs: &[JobInfo]) -> Result<String, TooLarge> {
    let nodes = network.shape.nodes();
    if nodes > MAX_NODES {
        return Err(TooLarge(nodes));
    }
    Ok(Picture { jobs, ..Picture::new(network) }.draw())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Point {
    x: i32,
    y: i32,
}

/// The roles of X, Y and Z: panels run along `inner`, groups of them along `outer`, rows down
/// `row`. Axes of one panel get the remaining roles.
struct Roles {
    inner: Axis,
    row: Axis,
    outer: Axis,
}

struct Picture<'a> {
    network: &'a Network,
    jobs: &'a [JobInfo],
    roles: Roles,
    /// Of a panel.
    width: i32,
    height: i32,
    /// Of the channel above each row.
    channel: i32,
    out: String,
    /// Drawn last, on top of everything.
    notes: Vec<(Point, String)>,
}

impl<'a> Picture<'a> {
    fn new(network: &'a Network) -> Self {
        let shape = &network.shape;
        let mut order = [Axis::Z, Axis::Y, Axis::X];
        order.sort_by_key(|axis| shape.len(*axis) == 1);
        let [inner, row, outer] = order;
        let last = |axis| i32::from(shape.len(axis)) - 1;
        let (a, b, c) = (last(Axis::A), last(Axis::B), last(Axis::C));
        let lanes = match (shape.len(outer), shape.wraps(outer)) {
            (1, _) => 0,
            (_, wraps) => i32::from(shape.len(inner)) * if wraps { 2 } else { 1 },
        };
        Self {
            network,
            jobs: &[],
            roles: Roles { inner, row, outer },
            width: a * STEP_A.0 + c * STEP_C.0 + 2 * PAD_X + if b == 2 { SWING / 2 } else { 0 },
            height: b * STEP_B.1 - c * STEP_C.1 + PAD_TOP + PAD_BOTTOM,
            channel: lanes * LANE,
            out: String::new(),
            notes: Vec::new(),
        }
    }

    fn add(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.out.write_fmt(text);
        self.out.push('\n');
    }

    fn along(&self, at: Coords, axis: Axis) -> i32 {
        i32::from(at.to_array()[axis.index()])
    }

    fn len(&self, axis: Axis) -> i32 {
        i32::from(self.network.shape.len(axis))
    }

    /// The top left corner of the panel of `at`.
    fn corner(&self, at: Coords) -> Point {
        let outer = self.along(at, self.roles.outer);
        let column = outer * self.len(self.roles.inner) + self.along(at, self.roles.inner);
        let row = self.along(at, self.roles.row);
        Point {
            x: MARGIN + SWING + column * (self.width + GAP) + outer * GROUP_GAP,
            y: HEAD + self.channel + row * (self.height + GAP + self.channel),
        }
    }

    /// The centre of a node.
    fn node(&self, at: Coords) -> Point {
        let corner = self.corner(at);
        let (a, b, c) = (i32::from(at.a), i32::from(at.b), i32::from(at.c));
        let depth = (self.len(Axis::C) - 1) * -STEP_C.1;
        let swing = if self.len(Axis::B) == 3 { SWING / 2 } else { 0 };
        Point {
            x: corner.x + swing + PAD_X + a * STEP_A.0 + c * STEP_C.0,
            y: corner.y + PAD_TOP + depth + b * STEP_B.1 + c * STEP_C.1,
        }
    }

    fn size(&self) -> Point {
        let shape = &self.network.shape;
        let last = shape.iter().last().unwrap_or_default();
        let corner = self.corner(last);
        Point {
            // The title and the legend need a minimum width.
            x: (corner.x + self.width + MARGIN).max(700),
            y: corner.y + self.height + GAP / 2 + LEGEND,
        }
    }

    fn draw(mut self) -> String {
        let shape = self.network.shape;
        let size = self.size();
        self.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" \
             viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" fill=\"none\">",
            size.x, size.y
        ));
        self.add(format_args!("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"));
        self.title();
        // Panels first, then the lines between them, then their contents.
        for at in shape.iter().filter(|at| (at.a, at.b, at.c) == (0, 0, 0)) {
            self.panel(at);
        }
        let mut bundles: BTreeMap<(Coords, Axis), (Link, usize, usize)> = BTreeMap::new();
        for link in Link::all(&shape) {
            let down = self.network.is_down(link.from, link.port);
            let axis = link.port.axis();
            if matches!(axis, Axis::A | Axis::B | Axis::C) {
                self.inner_link(&link, down);
            } else {
                let unit = Coords { a: 0, b: 0, c: 0, ..link.from };
                let bundle = bundles.entry((unit, axis)).or_insert((link, 0, 0));
                bundle.1 += 1;
                bundle.2 += usize::from(down);
            }
        }
        for (link, count, down) in bundles.into_values() {
            self.bundle(&link, count, down);
        }
        for at in shape.iter() {
            self.circle(at);
        }
        for (at, text) in std::mem::take(&mut self.notes) {
            self.note(at, &text);
        }
        self.legend(size);
        self.out.push_str("</svg>\n");
        self.out
    }

    fn title(&mut self) {
        let summary = self.network.summary();
        self.add(format_args!(
            "<text x=\"{MARGIN}\" y=\"38\" font-size=\"22\" fill=\"#111111\">Tofu {summary}</text>"
        ));
        let shape = &self.network.shape;
        let axes: Vec<_> = [Axis::X, Axis::Y, Axis::Z]
            .into_iter()
            .filter(|axis| shape.len(*axis) > 1)
            .map(|axis| {
                let kind = if shape.wraps(axis) { "torus" } else { "mesh" };
                format!("{axis} is a {kind} of {}", shape.len(axis))
            })
            .collect();
        let text = axes.join(", ");
        self.add(format_args!(
            "<text x=\"{MARGIN}\" y=\"62\" font-size=\"15\" fill=\"#555555\">{text}</text>"
        ));
    }

    fn panel(&mut self, at: Coords) {
        let Point { x, y } = self.corner(at);
        let (width, height) = (self.width, self.height);
        let (fill, io) = match self.network.shape.is_io_node(at) {
            true => ("#fdf3d8", " I/O"),
            false => ("#f5f6f8", ""),
        };
        self.add(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"10\" \
             fill=\"{fill}\" stroke=\"#b9bfc8\"/>"
        ));
        self.add(format_args!(
            "<text x=\"{}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\" fill=\"#333333\">\
             {} {} {}{io}</text>",
            x + 10,
            y + 20,
            at.x,
            at.y,
            at.z
        ));
    }

    fn circle(&mut self, at: Coords) {
        let Point { x, y } = self.node(at);
        let id = self.network.shape.node_id(at).map_or(0, |id| id.0);
        let here: Vec<_> = self.jobs.iter().filter(|job| job.has(id)).collect();
        let fill = here.first().map_or("#ffffff", |job| of_job(job.job));
        self.add(format_args!(
            "<g><title>{at}</title><circle cx=\"{x}\" cy=\"{y}\" r=\"{RADIUS}\" fill=\"{fill}\" \
             stroke=\"#333333\" stroke-width=\"1.5\"/><text x=\"{x}\" y=\"{}\" font-size=\"13\" \
             text-anchor=\"middle\" fill=\"#111111\">{}{}{}</text></g>",
            y + 5,
            at.a,
            at.b,
            at.c
        ));
        if !here.is_empty() {
            let text = format!("job {}", JobInfo::numbers(self.jobs, id));
            self.add(format_args!(
                "<text x=\"{x}\" y=\"{}\" font-size=\"11\" text-anchor=\"middle\" \
                 fill=\"#333333\">{text}</text>",
                y + RADIUS + 12
            ));
        }
    }

    /// A line along `path`, an SVG path.
    fn line(&mut self, path: &str, axis: Axis, down: bool, title: &str) {
        let (colour, style) = if down {
            (DOWN, "stroke-width=\"4\" stroke-dasharray=\"7 5\"")
        } else {
            (colour(axis), "stroke-width=\"2.5\"")
        };
        self.add(format_args!(
            "<path d=\"{path}\" stroke=\"{colour}\" {style} stroke-linejoin=\"round\">\
             <title>{title}</title></path>"
        ));
    }

    fn inner_link(&mut self, link: &Link, down: bool) {
        let (from, to) = (self.node(link.from), self.node(link.to));
        let path = if link.wrap {
            let swing = from.x - SWING;
            format!("M{} {} C{swing} {} {swing} {} {} {}", from.x, from.y, from.y, to.y, to.x, to.y)
        } else {
            format!("M{} {} L{} {}", from.x, from.y, to.x, to.y)
        };
        let state = if down { ", down" } else { "" };
        let title = format!("{} {} to {}{state}", link.from, link.port, link.to);
        self.line(&path, link.port.axis(), down, &title);
    }

    /// The links between two panels, which include `link`.
    fn bundle(&mut self, link: &Link, count: usize, down: usize) {
        let axis = link.port.axis();
        let (from, to) = (self.corner(link.from), self.corner(link.to));
        let (middle, bottom) = (self.height / 2, self.height);
        let (centre, step) = (self.width / 2, self.width / 8);
        // The place of the note on links that are down.
        let label;
        let path = if axis == self.roles.inner && !link.wrap {
            let y = from.y + middle;
            label = Point { x: (from.x + self.width + to.x) / 2, y: y - 10 };
            format!("M{} {y} L{} {y}", from.x + self.width, to.x)
        } else if axis == self.roles.inner {
            let (left, right, y) = (to.x + centre - step, from.x + centre + step, from.y + bottom);
            label = Point { x: (left + right) / 2, y: y + 32 };
            format!("M{right} {y} v16 L{left} {} v-16", y + 16)
        } else if axis == self.roles.row && !link.wrap {
            let x = from.x + centre;
            label = Point { x: x + 36, y: (from.y + bottom + to.y) / 2 + 5 };
            format!("M{x} {} L{x} {}", from.y + bottom, to.y)
        } else if axis == self.roles.row {
            let x = from.x - 20;
            label = Point { x, y: to.y + self.height / 4 - 14 };
            let (start, end) = (from.y + self.height * 3 / 4, to.y + self.height / 4);
            format!("M{} {start} L{x} {start} L{x} {end} L{} {end}", from.x, to.x)
        } else {
            let lane = self.along(link.from, self.roles.inner)
                + if link.wrap { self.len(self.roles.inner) } else { 0 };
            let y = from.y - 10 - lane * LANE;
            let (out, into) = if link.wrap { (2 * step, -2 * step) } else { (step, -step) };
            let (start, end) = (from.x + centre + out, to.x + centre + into);
            label = Point { x: start + 44, y: y - 4 };
            format!("M{start} {} L{start} {y} L{end} {y} L{end} {}", from.y, to.y)
        };
        let plural = if count == 1 { "link" } else { "links" };
        let mut title = format!("{count} {axis} {plural}");
        if down > 0 {
            let _ = write!(title, ", {down} down");
        }
        self.line(&path, axis, down > 0, &title);
        if down > 0 {
            self.notes.push((label, format!("{down} of {count}")));
        }
    }

    fn note(&mut self, at: Point, text: &str) {
        self.add(format_args!(
            "<text x=\"{}\" y=\"{}\" font-size=\"14\" text-anchor=\"middle\" fill=\"{DOWN}\" \
             stroke=\"#ffffff\" stroke-width=\"4\" paint-order=\"stroke\">{text}</text>",
            at.x, at.y
        ));
    }

    fn legend(&mut self, size: Point) {
        let shape = &self.network.shape;
        let y = size.y - LEGEND + 44;
        let mut x = MARGIN;
        let mut entry = |picture: &mut Self, colour: &str, style: &str, text: &str| {
            picture.add(format_args!(
                "<path d=\"M{x} {y} h34\" stroke=\"{colour}\" {style}/>\
                 <text x=\"{}\" y=\"{}\" font-size=\"15\" fill=\"#111111\">{text}</text>",
                x + 42,
                y + 5
            ));
            x += 72 + 8 * text.len() as i32;
        };
        for axis in Axis::ALL.into_iter().filter(|axis| shape.len(*axis) > 1) {
            entry(self, colour(axis), "stroke-width=\"3\"", &axis.to_string());
        }
        if !self.network.links_down.is_empty() {
            entry(self, DOWN, "stroke-width=\"4\" stroke-dasharray=\"7 5\"", "down");
        }
        let units: u32 =
            [Axis::X, Axis::Y, Axis::Z].map(|axis| shape.len(axis).into()).iter().product();
        let block = shape.nodes() / units;
        let mut lines = vec![
            "A bold number gives a box's X, Y, Z; the number in a node its A, B, C.".to_owned(),
        ];
        if block > 1 && units > 1 {
            lines.push(format!(
                "A line between two boxes stands for {block} links, one for each node."
            ));
        }
        for (line, text) in (1..).zip(lines) {
            self.add(format_args!(
                "<text x=\"{MARGIN}\" y=\"{}\" font-size=\"15\" fill=\"#555555\">{text}</text>",
                y + 8 + 24 * line
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_fabric::{Port, Shape};

    fn network(shape: &str, torus: bool) -> Network {
        let shape: Shape = shape.parse().unwrap();
        Network { shape: shape.with_torus([torus; 3]), links_down: Default::default(), shard: None }
    }

    const SHAPES: [&str; 9] = [
        "unit",
        "shelf",
        "half-rack",
        "1x1x1x1x1x1",
        "32x1x1x1x1x1",
        "2x2x2x1x1x1",
        "3x4x5x2x3x2",
        "1x3x1x2x2x1",
        "4x1x3x1x3x2",
    ];

    #[test]
    fn every_node_and_link_is_drawn_once() {
        for shape in SHAPES {
            for torus in [false, true] {
                let network = network(shape, torus);
                let picture = draw(&network, &[]).unwrap();
                let count = |what: &str| picture.matches(what).count();
                assert_eq!(count("<circle"), network.shape.nodes() as usize, "{shape}");
                let inner = Link::all(&network.shape).filter(|link| link.port.axis() >= Axis::A);
                let inner = inner.count();
                let outer = Link::all(&network.shape).filter(|link| link.port.axis() < Axis::A);
                // The links of all nodes of a block with the same port share a line.
                let bundles = outer.filter(|link| link.from.default_path() == Default::default());
                assert_eq!(count("<path d=\"M") - count("h34"), inner + bundles.count(), "{shape}");
            }
        }
    }

    #[test]
    fn nodes_lie_apart_within_the_picture() {
        for shape in SHAPES {
            let network = network(shape, true);
            let picture = Picture::new(&network);
            let size = picture.size();
            let mut centres: Vec<_> = network.shape.iter().map(|at| picture.node(at)).collect();
            centres.sort_by_key(|point| (point.x, point.y));
            for point in &centres {
                assert!(point.x > RADIUS && point.x + RADIUS < size.x, "{shape}: {point:?}");
                assert!(point.y > HEAD && point.y + RADIUS < size.y - LEGEND, "{shape}: {point:?}");
            }
            for (at, one) in centres.iter().enumerate() {
                for other in centres[at + 1..].iter().take_while(|p| p.x - one.x <= 2 * RADIUS) {
                    let (dx, dy) = (one.x - other.x, one.y - other.y);
                    assert!(dx * dx + dy * dy > 4 * RADIUS * RADIUS, "{shape}: {one:?} {other:?}");
                }
            }
        }
    }

    #[test]
    fn links_that_are_down_stand_out() {
        let mut network = network("half-rack", true);
        assert!(!draw(&network, &[]).unwrap().contains(DOWN));
        network.links_down =
            [(Coords::default(), Port::A), (Coords::default(), Port::ZPlus)].into();
        let picture = draw(&network, &[]).unwrap();
        let marked = format!("stroke=\"{DOWN}\"");
        // The A link, the bundle along Z, and the legend.
        assert_eq!(picture.matches(&marked).count(), 3);
        assert!(picture.contains(">1 of 12</text>"));
    }

    #[test]
    fn too_large_machines_are_refused() {
        let message = draw(&network("32x32x32x2x3x2", true), &[]).unwrap_err().to_string();
        assert!(message.contains("at most 3072 nodes and this machine has 393216"), "{message}");
    }
}
