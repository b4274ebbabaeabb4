//! A picture of a job: its torus as a grid, a slice for each z.
//!
//! A line between two nodes has the colour of the machine's axis it goes along. Steps in
//! z lead from slice to slice and are shown as a tab on the node they start from.

use std::borrow::Cow;
use std::fmt::{self, Write};

use tofu_abi::Coords;
use tofu_fabric::Axis;
use tofu_jtofu::{Mapinfo, RankMap};

use crate::commands::svg;

/// Pictures of larger jobs are not readable.
const MAX_NODES: u32 = 1536;

/// The job is too large for a picture.
#[derive(Debug, thiserror::Error)]
#[error("a picture shows at most {MAX_NODES} nodes and this job has {0}; choose a smaller --map")]
pub(crate) struct TooLarge(u32);

// Lengths in pixels.
const WIDTH: i32 = 104;
const HEIGHT: i32 = 44;
const GAP: i32 = 36;
const SLICE_GAP: i32 = 40;
const MARGIN: i32 = 48;
const HEAD: i32 = 110;
const FOOT: i32 = 84;
/// A job of one axis is drawn in rows of this many nodes if it is longer than twice that.
const ROW: u32 = 12;

/// Draws the job as a stand-alone SVG document.
pub(crate) fn draw(info: &Mapinfo, map: &RankMap) -> Result<String, TooLarge> {
    let nodes = map.shape().nodes();
    if nodes > MAX_NODES {
        return Err(TooLarge(nodes));
    }
    Ok(Picture { info, map, out: String::new(), head: HEAD }.draw())
}

struct Picture<'a> {
    info: &'a Mapinfo,
    map: &'a RankMap,
    out: String,
    /// Height of what is above the grid.
    head: i32,
}

/// Height of a line of text beyond the first, of captions and of the title.
const LINE: i32 = 20;
const TITLE_LINE: i32 = 28;

/// The lines of a text in a picture. The viewer's font is not known. A letter is taken to be 0.6 of
/// its size wide, more than the average of most fonts.
fn lines(text: &str, size: i32, width: i32) -> Vec<String> {
    let letters = (width * 10 / (size * 6)).max(1) as usize;
    textwrap::wrap(text, letters).into_iter().map(Cow::into_owned).collect()
}

impl Picture<'_> {
    fn add(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.out.write_fmt(text);
        self.out.push('\n');
    }

    /// Returns true if the job's one axis is drawn back and forth.
    fn folded(&self) -> bool {
        self.map.shape().lens().len() == 1 && self.map.shape().nodes() > 2 * ROW
    }

    /// Column, row and slice of a node.
    fn cell(&self, index: u32) -> [u32; 3] {
        if !self.folded() {
            return self.map.shape().coords(index).unwrap_or_default();
        }
        let (row, at) = (index / ROW, index % ROW);
        [if row.is_multiple_of(2) { at } else { ROW - 1 - at }, row, 0]
    }

    /// Columns, rows and slices of the grid.
    fn cells(&self) -> [u32; 3] {
        if self.folded() {
            [ROW, self.map.shape().nodes().div_ceil(ROW), 1]
        } else {
            self.map.shape().size()
        }
    }

    /// The top left corner of a node's box.
    fn corner(&self, index: u32) -> (i32, i32) {
        let [columns, ..] = self.cells();
        let [column, row, slice] = self.cell(index);
        let x = (slice * columns + column) as i32 * (WIDTH + GAP) + slice as i32 * SLICE_GAP;
        (MARGIN + x, self.head + row as i32 * (HEIGHT + GAP))
    }

    fn axis(&self, from: u32, to: u32) -> Axis {
        let at = |index: u32| self.map.nodes()[index as usize].to_array();
        let (from, to) = (at(from), at(to));
        let along = |axis: &Axis| from[axis.index()] != to[axis.index()];
        Axis::ALL.into_iter().find(along).unwrap_or(Axis::X)
    }

    fn draw(mut self) -> String {
        let [columns, rows, slices] = self.cells().map(|n| n as i32);
        let width = slices * (columns * (WIDTH + GAP) + SLICE_GAP) - SLICE_GAP - GAP + 2 * MARGIN;
        let width = width.max(640);
        let title = lines(&self.title(), 22, width - 2 * MARGIN);
        let axes = lines(&self.axes(), 15, width - 2 * MARGIN);
        let legend = lines(&self.caption(), 15, width - 2 * MARGIN);
        let more = |lines: &[String]| lines.len() as i32 - 1;
        self.head = HEAD + more(&title) * TITLE_LINE + more(&axes) * LINE;
        let foot = FOOT + more(&legend) * LINE;
        let height = self.head + rows * (HEIGHT + GAP) + foot;
        self.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" fill=\"none\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"
        ));
        self.captions(38, TITLE_LINE, "font-size=\"22\" fill=\"#111111\"", &title);
        let below = 62 + more(&title) * TITLE_LINE;
        self.captions(below, LINE, "font-size=\"15\" fill=\"#555555\"", &axes);
        self.slices();
        let steps: Vec<_> = self.map.steps().collect();
        for &(from, to, axis) in &steps {
            if axis < 2 {
                self.hop(from, to);
            }
        }
        for index in 0..self.map.shape().nodes() {
            self.node(index);
        }
        for &(from, to, axis) in &steps {
            if axis == 2 {
                self.tab(from, to);
            }
        }
        self.legend(height - foot + 40);
        let style = "font-size=\"15\" fill=\"#555555\"";
        self.captions(height - foot + 70, LINE, style, &legend);
        self.out.push_str("</svg>\n");
        self.out
    }

    /// Lines of text, one below the other.
    fn captions(&mut self, y: i32, step: i32, style: &str, lines: &[String]) {
        for (line, text) in (0..).zip(lines) {
            let y = y + line * step;
            self.add(format_args!("<text x=\"{MARGIN}\" y=\"{y}\" {style}>{text}</text>"));
        }
    }

    fn title(&self) -> String {
        let Mapinfo { system, job } = self.info;
        format!("Job {} on the machine {}", job.shape(), system.shape())
    }

    fn axes(&self) -> String {
        let system = &self.info.system;
        let axes = "xyz".chars().zip(self.map.axes()).map(|(name, axis)| format!("{name}: {axis}"));
        let mut text = axes.collect::<Vec<_>>().join("; ");
        let failed: Vec<_> = system.failed().iter().map(Coords::to_string).collect();
        if !failed.is_empty() {
            // A machine may lack more nodes than fit into a line.
            let more = if failed.len() > 4 { " and others" } else { "" };
            let _ = write!(text, "; without {}{more}", failed[..failed.len().min(4)].join(" "));
        }
        text
    }

    fn slices(&mut self) {
        let [.., slices] = self.cells();
        let [columns, rows, _] = self.cells();
        for slice in 0..if slices > 1 { slices } else { 0 } {
            let (x, _) = self.corner(slice * columns * rows);
            self.add(format_args!(
                "<text x=\"{x}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\" \
                 fill=\"#333333\">z = {slice}</text>",
                self.head - 16
            ));
        }
    }

    fn hop(&mut self, from: u32, to: u32) {
        let (a, b) = (self.corner(from), self.corner(to));
        let (cx, cy) = (WIDTH / 2, HEIGHT / 2);
        let (dx, dy) = (b.0 - a.0, b.1 - a.1);
        let near = dx.abs() <= WIDTH + GAP && dy.abs() <= HEIGHT + GAP && (dx == 0 || dy == 0);
        let path = if near {
            format!("M{} {} L{} {}", a.0 + cx, a.1 + cy, b.0 + cx, b.1 + cy)
        } else if dy == 0 {
            // Back under the row.
            let (y, under) = (a.1 + HEIGHT, a.1 + HEIGHT + 12);
            format!("M{} {y} V{under} H{} V{y}", a.0 + WIDTH - 14, b.0 + 14)
        } else if dx == 0 {
            // Back left of the column.
            let beside = a.0 - 12;
            format!("M{} {} H{beside} V{} H{}", a.0, a.1 + HEIGHT - 10, b.1 + 10, b.0)
        } else {
            // A folded axis that ends within a row.
            let (under, beside) = (a.1 + HEIGHT + 12, b.0 - 12);
            format!("M{} {} V{under} H{beside} V{} H{}", a.0 + cx, a.1 + HEIGHT, b.1 + 10, b.0)
        };
        let axis = self.axis(from, to);
        let (one, other) = (self.map.nodes()[from as usize], self.map.nodes()[to as usize]);
        self.add(format_args!(
            "<path class=\"hop\" d=\"{path}\" stroke=\"{}\" stroke-width=\"3\" \
             stroke-linejoin=\"round\"><title>{one} to {other}, along {axis}</title></path>",
            svg::colour(axis)
        ));
    }

    fn node(&mut self, index: u32) {
        let (x, y) = self.corner(index);
        let node = self.map.nodes()[index as usize];
        let ranks = ranks(self.info.job.ranks_at(node));
        let at = node.to_array().map(|c| c.to_string()).join(" ");
        let middle = x + WIDTH / 2;
        self.add(format_args!(
            "<rect class=\"node\" x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             rx=\"7\" fill=\"#f5f6f8\" stroke=\"#8a929d\"/>\
             <text x=\"{middle}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\" \
             text-anchor=\"middle\" fill=\"#111111\">{ranks}</text>\
             <text x=\"{middle}\" y=\"{}\" font-size=\"12\" text-anchor=\"middle\" \
             fill=\"#444444\">{at}</text>",
            y + 19,
            y + 36
        ));
    }

    /// A step to the next slice.
    fn tab(&mut self, from: u32, to: u32) {
        let (x, y) = self.corner(from);
        let axis = self.axis(from, to);
        let (one, other) = (self.map.nodes()[from as usize], self.map.nodes()[to as usize]);
        self.add(format_args!(
            "<path class=\"hop\" d=\"M{} {y} h18 v18 z\" fill=\"{}\"><title>{one} to {other}, \
             along {axis}</title></path>",
            x + WIDTH - 18,
            svg::colour(axis)
        ));
    }

    fn legend(&mut self, y: i32) {
        let system = &self.info.system;
        let mut x = MARGIN;
        for axis in Axis::ALL.into_iter().filter(|axis| system.shape().len(*axis) > 1) {
            self.add(format_args!(
                "<path d=\"M{x} {y} h34\" stroke=\"{}\" stroke-width=\"3\"/>\
                 <text x=\"{}\" y=\"{}\" font-size=\"15\" fill=\"#111111\">{axis}</text>",
                svg::colour(axis),
                x + 42,
                y + 5
            ));
            x += 80;
        }
    }

    fn caption(&self) -> String {
        let tabs = if self.map.shape().size()[2] > 1 {
            " A corner has the colour of the axis that leads on in z."
        } else {
            ""
        };
        "A box is a node: its ranks, and its X Y Z A B C. A line has the colour of the axis it \
         goes along."
            .to_owned()
            + tabs
    }
}

/// Ranks in words: `7`, or `28-31`.
pub(super) fn ranks(ranks: &[u32]) -> String {
    match ranks {
        [] => "-".to_owned(),
        [rank] => rank.to_string(),
        [first, .., last] => format!("{first}-{last}"),
    }
}
