//! Curves as SVG.

use anyhow::anyhow;
use plotters::prelude::*;
use serde::Serialize;

/// Lines over a logarithmic axis.
#[derive(Debug, Serialize)]
pub(crate) struct Curves {
    pub(crate) title: String,
    /// The quantity on the y axis, with its unit.
    pub(crate) y: &'static str,
    /// The quantity on the x axis.
    pub(crate) x: &'static str,
    pub(crate) lines: Vec<Line>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Points in the order of x.
    pub(crate) points: Vec<(f64, f64)>,
}

const WIDTH: u32 = 760;
const HEIGHT: u32 = 380;

/// Draws the curves, one chart below the other.
pub(crate) fn svg(all: &[Curves]) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let height = HEIGHT * all.len().max(1) as u32;
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(|error| anyhow!("{error}"))?;
        for (area, curves) in root.split_evenly((all.len().max(1), 1)).iter().zip(all) {
            chart(area, curves).map_err(|error| anyhow!("{}: {error}", curves.title))?;
        }
        root.present().map_err(|error| anyhow!("{error}"))?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn chart<'a>(area: &Area<'a>, curves: &Curves) -> Drawn<'a> {
    let points = || curves.lines.iter().flat_map(|line| &line.points);
    let fold = |of: fn(&(f64, f64)) -> f64, from: f64, take: fn(f64, f64) -> f64| {
        points().map(of).fold(from, take)
    };
    let least = fold(|at| at.0, f64::MAX, f64::min).max(f64::MIN_POSITIVE);
    let most = fold(|at| at.0, least * 2.0, f64::max);
    let top = fold(|at| at.1, 0.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(&curves.title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d((least..most).log_scale(), 0.0..top.max(f64::MIN_POSITIVE))?;
    chart.configure_mesh().x_desc(curves.x).y_desc(curves.y).light_line_style(WHITE).draw()?;
    for (i, line) in curves.lines.iter().enumerate() {
        let colour = Palette99::pick(i).to_rgba();
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), colour).point_size(2))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_has_every_line() {
        let line =
            |name: &str| Line { name: name.to_owned(), points: vec![(1.0, 2.0), (8.0, 3.0)] };
        let lines = vec![line("ping"), line("pong")];
        let curves = Curves { title: "Throughput".to_owned(), y: "GB/s", x: "bytes", lines };
        let picture = svg(&[curves]).unwrap();
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"), "{picture}");
        for text in ["Throughput", "ping", "pong", "GB/s", "bytes"] {
            assert!(picture.contains(text), "{text}: {picture}");
        }
    }

    #[test]
    fn no_curves_make_an_empty_picture() {
        assert!(svg(&[]).unwrap().starts_with("<svg"));
    }
}
