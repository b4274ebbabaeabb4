//! The figures as a picture: one-way latency and bandwidth over the size of messages.

use std::fmt::Write;

use crate::measure::Row;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 70.0;
const COLOURS: [&str; 6] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b"];

/// A line of a plot.
struct Line {
    name: String,
    /// Size and value, both above 0.
    points: Vec<(f64, f64)>,
}

fn lines(rows: &[Row], value: impl Fn(&Row) -> Option<f64>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let Some(value) = value(row).filter(|value| *value > 0.0 && row.size > 0) else {
            continue;
        };
        let name = match row.tnis {
            0 => row.test.to_owned(),
            1 => format!("{}, 1 TNI", row.test),
            n => format!("{}, {n} TNIs", row.test),
        };
        let point = (row.size as f64, value);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    lines.retain(|line| line.points.len() > 1);
    lines
}

/// Powers of ten, or of four for sizes, around the values.
fn range(values: impl Iterator<Item = f64>, base: f64) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
    let (low, high) = (low.log(base).floor(), high.log(base).ceil());
    (low, if high > low { high } else { low + 1.0 })
}

fn plot(svg: &mut String, top: f64, title: &str, lines: &[Line]) {
    if lines.is_empty() {
        return;
    }
    let points = || lines.iter().flat_map(|line| &line.points);
    let (x_low, x_high) = range(points().map(|p| p.0), 4.0);
    let (y_low, y_high) = range(points().map(|p| p.1), 10.0);
    let (width, height) = (WIDTH - 2.0 * MARGIN, HEIGHT - MARGIN);
    let x = |size: f64| MARGIN + (size.log(4.0) - x_low) / (x_high - x_low) * width;
    let y = |value: f64| {
        top + HEIGHT - MARGIN / 2.0 - (value.log10() - y_low) / (y_high - y_low) * height
    };
    let mut add = |text: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = svg.write_fmt(text);
    };
    let (left, right) = (MARGIN, WIDTH - MARGIN);
    add(format_args!("<text x='{left}' y='{}' font-weight='bold'>{title}</text>\n", top + 20.0));
    for power in y_low as i32..=y_high as i32 {
        let (value, at) = (10f64.powi(power), y(10f64.powi(power)));
        add(format_args!(
            "<path d='M{left} {at:.1}H{right}' stroke='#ccc'/>\
             <text x='{}' y='{at:.1}' text-anchor='end'>{value}</text>\n",
            left - 6.0
        ));
    }
    for power in x_low as i32..=x_high as i32 {
        let at = x(4f64.powi(power));
        let bytes = 4f64.powi(power);
        let label = match bytes {
            b if b >= 1_048_576.0 => format!("{}M", b / 1_048_576.0),
            b if b >= 1024.0 => format!("{}K", b / 1024.0),
            b => b.to_string(),
        };
        add(format_args!(
            "<text x='{at:.1}' y='{}' text-anchor='middle'>{label}</text>\n",
            top + HEIGHT - MARGIN / 2.0 + 16.0
        ));
    }
    for (i, line) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let path: Vec<_> =
            line.points.iter().map(|&(s, v)| format!("{:.1},{:.1}", x(s), y(v))).collect();
        add(format_args!(
            "<polyline fill='none' stroke='{colour}' stroke-width='2' points='{}'/>\
             <text x='{}' y='{}' fill='{colour}'>{}</text>\n",
            path.join(" "),
            right - 130.0,
            top + 20.0 + 15.0 * i as f64,
            line.name
        ));
    }
}

/// The picture as SVG.
pub(crate) fn svg(rows: &[Row]) -> String {
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{}' \
         font-family='sans-serif' font-size='12'>\n\
         <rect width='100%' height='100%' fill='white'/>\n",
        2.0 * HEIGHT
    );
    let latency = lines(rows, |row| row.p50_us);
    plot(&mut svg, 0.0, "median time, µs, over bytes", &latency);
    let bandwidth = lines(rows, |row| row.mb_per_s);
    plot(&mut svg, HEIGHT, "MB/s over bytes", &bandwidth);
    svg.push_str("</svg>\n");
    svg
}
