//! Figures as SVG: grouped bars, one group per configuration, one bar per series; curves over the
//! same groups; and maps of devices.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

/// Bars or a curve of one colour.
pub struct BarSeries {
    /// Its name in the legend.
    pub name: String,
    /// A value per group; what is not a number is not drawn.
    pub values: Vec<f64>,
}

/// Colours that also differ for the colour-blind (Okabe and Ito 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(0, 0, 0),
];
/// Pixels of a figure: a minimum, and for every group.
const WIDTH_MIN: u32 = 480;
const GROUP_WIDTH: u32 = 110;
const STEP_WIDTH: u32 = 45;
const HEIGHT: u32 = 420;
/// Part of a group's width that its bars take.
const BARS_WIDTH: f64 = 0.8;

/// How a value is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    Bars,
    Curves,
}

/// Makes the directory for figures, if there is to be one and is none yet: to be called before a
/// user waits for results.
pub fn prepare(directory: Option<&Path>) -> anyhow::Result<()> {
    let Some(directory) = directory else { return Ok(()) };
    std::fs::create_dir_all(directory)
        .map_err(|error| anyhow!("cannot make {}, the directory for figures: {error}", directory.display()))
}

/// Writes a figure of `groups` by `series` to `path`.
pub fn write_bars(path: &Path, title: &str, unit: &str, groups: &[String], series: &[BarSeries]) -> anyhow::Result<()> {
    write_figure(Marks::Bars, (path, title, unit), groups, series)
}

/// As [`write_bars`], for groups that are steps of something: the values of a series are joined.
pub fn write_curves(
    path: &Path,
    title: &str,
    unit: &str,
    groups: &[String],
    series: &[BarSeries],
) -> anyhow::Result<()> {
    write_figure(Marks::Curves, (path, title, unit), groups, series)
}

fn write_figure(
    marks: Marks,
    (path, title, unit): (&Path, &str, &str),
    groups: &[String],
    series: &[BarSeries],
) -> anyhow::Result<()> {
    let failed = |error: &dyn std::fmt::Display| anyhow!("cannot write {}: {error}", path.display());
    let group_width = if marks == Marks::Bars { GROUP_WIDTH } else { STEP_WIDTH };
    let width = WIDTH_MIN.max(group_width * groups.len() as u32);
    let area = SVGBackend::new(path, (width, HEIGHT)).into_drawing_area();
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let values = series.iter().flat_map(|one| one.values.iter().copied()).filter(|value| value.is_finite());
    let highest = values.fold(1.0, f64::max) * 1.2;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.5..groups.len() as f64 - 0.5, 0.0..highest)
        .map_err(|error| failed(&error))?;
    let label = |x: &f64| {
        let nearest = x.round();
        let group = ((x - nearest).abs() < 1e-6 && nearest >= 0.0).then(|| groups.get(nearest as usize)).flatten();
        group.cloned().unwrap_or_default()
    };
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().x_labels(groups.len() + 1).x_label_formatter(&label).y_desc(unit);
    mesh.draw().map_err(|error| failed(&error))?;
    let bar_width = BARS_WIDTH / series.len().max(1) as f64;
    for (number, one) in series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let values = one.values.iter().enumerate().filter(|(_, value)| value.is_finite());
        let drawn = match marks {
            Marks::Bars => chart.draw_series(values.map(|(group, value)| {
                let left = group as f64 - BARS_WIDTH / 2.0 + number as f64 * bar_width;
                Rectangle::new([(left, 0.0), (left + bar_width * 0.92, *value)], colour.filled())
            })),
            Marks::Curves => {
                let points: Vec<(f64, f64)> = values.map(|(group, value)| (group as f64, *value)).collect();
                chart.draw_series(std::iter::once(PathElement::new(points, colour.stroke_width(2))))
            }
        };
        drawn
            .map_err(|error| failed(&error))?
            .label(one.name.clone())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3));
    legend.draw().map_err(|error| failed(&error))?;
    area.present().map_err(|error| failed(&error))
}

/// A part of a device.
pub struct Panel {
    /// What it shows.
    pub name: String,
    /// The used part of each cell, 0 to 1.
    pub used: Vec<f64>,
}

/// Pixels of a cell of a map, of the space around panels, and of their names.
const CELL: i32 = 4;
const SPACE: i32 = 16;
const NAME_HEIGHT: i32 = 20;

/// Writes maps of devices next to each other, in rows of `columns` cells: used cells are dark.
pub fn write_maps(path: &Path, title: &str, columns: usize, panels: &[Panel]) -> anyhow::Result<()> {
    let failed = |error: &dyn std::fmt::Display| anyhow!("cannot write {}: {error}", path.display());
    let rows = panels.iter().map(|panel| panel.used.len().div_ceil(columns)).max().unwrap_or(0) as i32;
    let panel_width = columns as i32 * CELL + SPACE;
    let size = (SPACE + panel_width * panels.len() as i32, rows * CELL + 3 * SPACE + 2 * NAME_HEIGHT);
    let area = SVGBackend::new(path, (size.0 as u32, size.1 as u32)).into_drawing_area();
    area.fill(&WHITE).map_err(|error| failed(&error))?;
    let text = |text: &str, at, height: i32| area.draw(&Text::new(text.to_owned(), at, ("sans-serif", height)));
    text(title, (SPACE, SPACE / 2), 18).map_err(|error| failed(&error))?;
    let top = SPACE + 2 * NAME_HEIGHT;
    for (number, panel) in panels.iter().enumerate() {
        let left = SPACE + number as i32 * panel_width;
        text(&panel.name, (left, SPACE + NAME_HEIGHT), 14).map_err(|error| failed(&error))?;
        for (row, cells) in panel.used.chunks(columns).enumerate() {
            let (mut x, y) = (left, top + row as i32 * CELL);
            for run in cells.chunk_by(|one, next| one == next) {
                let end = x + run.len() as i32 * CELL;
                let colour = COLOURS[0].mix(0.06 + 0.94 * run[0]);
                let cell = Rectangle::new([(x, y), (end, y + CELL - 1)], colour.filled());
                area.draw(&cell).map_err(|error| failed(&error))?;
                x = end;
            }
        }
    }
    area.present().map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_a_bar_for_every_value_and_its_names() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("figure.svg");
        let groups = ["IOR.1", "IOR.2"].map(str::to_owned);
        let series = [("write", vec![1.0, 2.0]), ("read", vec![3.0, f64::NAN])];
        let series = series.map(|(name, values)| BarSeries { name: name.to_owned(), values });
        write_bars(&path, "a < b", "MiB/s", &groups, &series).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let bars = |colour: &str| text.lines().filter(|line| line.contains("<rect") && line.contains(colour)).count();
        // One in the legend, one per value.
        assert_eq!((bars("#0072B2"), bars("#E69F00")), (3, 2), "{text}");
        for name in ["IOR.1", "IOR.2", "write", "read", "MiB/s", "a &lt; b"] {
            assert!(text.contains(name), "{name} in {text}");
        }
        assert!(write_bars(&place.path().join("no/where.svg"), "", "", &groups, &series).is_err());
        write_curves(&path, "steps", "MiB/s", &groups, &series).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let curves = text.lines().filter(|line| line.contains("<polyline") && line.contains("#0072B2")).count();
        assert_eq!(curves, 1, "{text}");
    }

    #[test]
    fn a_map_has_a_rectangle_for_each_run_of_equal_cells() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("map.svg");
        let panel = |name: &str, used: &[f64]| Panel { name: name.to_owned(), used: used.to_vec() };
        let panels = [panel("one", &[1.0, 1.0, 0.0, 1.0, 1.0, 1.0]), panel("two", &[0.5; 6])];
        write_maps(&path, "maps", 3, &panels).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let cells = text.lines().filter(|line| line.contains("<rect") && line.contains("#0072B2")).count();
        assert_eq!(cells, 3 + 2, "{text}");
        assert!(["maps", "one", "two"].iter().all(|name| text.contains(name)), "{text}");
    }
}
