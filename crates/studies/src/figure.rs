//! Figures: grouped bars as SVG, one group per configuration, one bar per series.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

/// Bars of one colour.
pub struct BarSeries {
    /// Its name in the legend.
    pub name: String,
    /// A value per group; what is not a number has no bar.
    pub values: Vec<f64>,
}

/// Colours that also differ for the colour-blind (Okabe and Ito 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];
/// Pixels of a figure: a minimum, and for every group.
const WIDTH_MIN: u32 = 480;
const GROUP_WIDTH: u32 = 110;
const HEIGHT: u32 = 420;
/// Part of a group's width that its bars take.
const BARS_WIDTH: f64 = 0.8;

/// Writes a figure of `groups` by `series` to `path`.
pub fn write_bars(path: &Path, title: &str, unit: &str, groups: &[String], series: &[BarSeries]) -> anyhow::Result<()> {
    let failed = |error: &dyn std::fmt::Display| anyhow!("cannot write {}: {error}", path.display());
    let width = WIDTH_MIN.max(GROUP_WIDTH * groups.len() as u32);
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
        let bars = one.values.iter().enumerate().filter(|(_, value)| value.is_finite()).map(|(group, value)| {
            let left = group as f64 - BARS_WIDTH / 2.0 + number as f64 * bar_width;
            Rectangle::new([(left, 0.0), (left + bar_width * 0.92, *value)], colour.filled())
        });
        let drawn = chart.draw_series(bars).map_err(|error| failed(&error))?;
        drawn
            .label(one.name.clone())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3));
    legend.draw().map_err(|error| failed(&error))?;
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
    }
}
