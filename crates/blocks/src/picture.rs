//! The bitmap of a device as a picture: cells in rows, each for an equal part of the device.

use crate::{FreeRuns, Geometry, png::png};

/// From free to used.
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];
/// Pixels of a cell in a drawing, and of the space around them; those above are for the title.
const CELL: usize = 6;
const SPACE: usize = 12;
const TITLE: usize = 32;
/// The colour of used cells.
const USED: [u8; 3] = [0x00, 0x72, 0xb2];

/// A cell that is not quite free can be told from one that is.
fn opacity(used: f64) -> f64 {
    if used == 0.0 { 0.06 } else { 0.15 + 0.85 * used }
}

/// Used parts of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    geometry: Geometry,
    /// Free blocks of each cell.
    free: Vec<u64>,
}

impl Picture {
    /// A picture of so many cells, at most one per block, in which nothing is free yet.
    pub fn new(geometry: Geometry, cells: u32) -> Self {
        let cells = u64::from(cells).clamp(1, geometry.blocks());
        Self { geometry, free: vec![0; cells as usize] }
    }

    /// Bytes that a cell shows, about: cells differ by a block.
    pub fn cell_bytes(&self) -> u64 {
        self.geometry.blocks().div_ceil(self.free.len() as u64) * types::limits::BLOCK_BYTES
    }

    /// First block of a cell.
    fn start_of(&self, cell: u64) -> u64 {
        (u128::from(self.geometry.blocks()) * u128::from(cell) / self.free.len() as u128) as u64
    }

    /// Adds the free runs of a group.
    pub fn add(&mut self, group: u32, runs: &FreeRuns) {
        let start = self.geometry.start_of(group);
        for run in runs.iter() {
            let (mut next, end) = (start + u64::from(run.start), start + u64::from(run.end));
            // The last cell that starts at or before the block; the division may be one too low.
            let mut cell = (u128::from(next) * self.free.len() as u128 / u128::from(self.geometry.blocks())) as u64;
            while next < end {
                let end_of_cell = self.start_of(cell + 1);
                let in_cell = end.min(end_of_cell).saturating_sub(next);
                self.free[cell as usize] += in_cell;
                next += in_cell;
                cell += 1;
            }
        }
    }

    /// The used part of each cell, 0 to 1.
    pub fn used(&self) -> impl Iterator<Item = f64> {
        let used =
            |(cell, free): (u64, &u64)| 1.0 - *free as f64 / (self.start_of(cell + 1) - self.start_of(cell)) as f64;
        (0..).zip(&self.free).map(used)
    }

    /// Lines of `columns` characters: a blank is free, `█` is used; any other cell has both.
    pub fn text(&self, columns: usize) -> String {
        let shade = |used: f64| match used {
            0.0 => SHADES[0],
            1.0 => SHADES[4],
            used => SHADES[1 + ((used * 3.0) as usize).min(2)],
        };
        let shades: Vec<char> = self.used().map(shade).collect();
        let lines = shades.chunks(columns.max(1)).map(|line| line.iter().chain(&['\n']).collect::<String>());
        lines.collect()
    }

    /// An SVG document with rows of so many cells: the more of a cell is used, the darker it is. A
    /// run of cells that are used alike is one rectangle.
    pub fn svg(&self, title: &str, columns: usize) -> String {
        let (columns, used) = (columns.max(1), self.used().collect::<Vec<f64>>());
        let width = columns * CELL + 2 * SPACE;
        let height = used.len().div_ceil(columns) * CELL + TITLE + SPACE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"{SPACE}\" y=\"20\" font-family=\"sans-serif\" font-size=\"13\">{}</text>\n",
            escape(title)
        );
        for (row, cells) in used.chunks(columns).enumerate() {
            let (mut x, y) = (SPACE, TITLE + row * CELL);
            for run in cells.chunk_by(|one, next| one == next) {
                let [red, green, blue] = USED;
                svg += &format!(
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"#{red:02x}{green:02x}{blue:02x}\" fill-opacity=\"{:.2}\"/>\n",
                    run.len() * CELL,
                    CELL - 1,
                    opacity(run[0])
                );
                x += run.len() * CELL;
            }
        }
        svg + "</svg>\n"
    }

    /// A PNG image with rows of so many cells, in the colours of the drawing: 16 of them, the first
    /// for free cells and the last for used ones. What is left of the last row is white.
    pub fn png(&self, columns: usize) -> Vec<u8> {
        const SHADES: usize = 16;
        const WHITE: usize = 1;
        let shade = |used: f64| match used {
            0.0 => 0,
            used => (2 + (used * 13.0) as usize).min(SHADES - 1),
        };
        let blended = |opacity: f64| USED.map(|part| (255.0 - (255.0 - f64::from(part)) * opacity).round() as u8);
        let colours: [[u8; 3]; SHADES] = std::array::from_fn(|number| match number {
            0 => blended(opacity(0.0)),
            WHITE => [0xff; 3],
            number => blended(opacity(((number - 2) as f64 / 13.0).max(f64::EPSILON))),
        });
        let shades: Vec<u8> = self.used().map(|used| shade(used) as u8).collect();
        let line = |cells: &[u8]| -> Vec<u8> {
            let padded = cells.iter().copied().chain(std::iter::repeat(WHITE as u8)).take(columns.max(1));
            padded.flat_map(|shade| [shade; CELL]).collect()
        };
        let lines = shades.chunks(columns.max(1)).flat_map(|cells| vec![line(cells); CELL]);
        png(&colours, &lines.collect::<Vec<_>>())
    }
}

/// Text of an XML document.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_show_what_is_used() {
        let geometry = Geometry::new(32_768 + 32_768 / 2).unwrap();
        let mut picture = Picture::new(geometry, 6);
        let mut runs = FreeRuns::all(32_768);
        runs.take(&(0..8192)).unwrap();
        runs.take(&(8192..8193)).unwrap();
        runs.take(&(20_000..24_576)).unwrap();
        picture.add(0, &runs);
        picture.add(1, &FreeRuns::default());
        assert_eq!(picture.text(3), "█░▒\n ██\n");
        let used: Vec<f64> = picture.used().collect();
        assert_eq!(used[..2], [1.0, 1.0 / 8192.0]);
    }

    #[test]
    fn a_drawing_has_a_rectangle_for_each_run_of_equal_cells() {
        let mut picture = Picture::new(Geometry::new(6).unwrap(), 6);
        let mut runs = FreeRuns::all(6);
        runs.take(&(0..1)).unwrap();
        picture.add(0, &runs);
        let svg = picture.svg("a < b", 3);
        let cells: Vec<&str> = svg.lines().filter(|line| line.contains("#0072b2")).collect();
        assert_eq!(cells.len(), 3, "{svg}");
        assert!(cells[0].contains("width=\"6\"") && cells[0].contains("\"1.00\""), "{svg}");
        assert!(cells[1].contains("width=\"12\"") && cells[1].contains("\"0.06\""), "{svg}");
        assert!(cells[2].contains("width=\"18\"") && svg.contains("a &lt; b"), "{svg}");
    }

    #[test]
    fn an_image_has_the_pixels_of_its_cells() {
        let mut picture = Picture::new(Geometry::new(4).unwrap(), 4);
        let mut runs = FreeRuns::all(4);
        runs.take(&(0..1)).unwrap();
        picture.add(0, &runs);
        let image = picture.png(3);
        assert_eq!(image[16..24], [0, 0, 0, 18, 0, 0, 0, 12], "3 by 2 cells of 6 pixels");
        let has = |line: &[u8]| image.windows(line.len()).any(|part| part == line);
        assert!(has(&[0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0]), "the first cell is used");
        assert!(has(&[0, 0, 0, 0, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11]), "there are 4 cells");
        // PLTE: the last colour is that of a used cell.
        assert_eq!(image[41 + 45..41 + 48], USED);
    }

    #[test]
    fn every_block_is_in_one_cell() {
        for (blocks, cells) in [(7, 3), (1, 10), (100_000, 77), (40_000, 40_000)] {
            let geometry = Geometry::new(blocks).unwrap();
            let mut picture = Picture::new(geometry, cells);
            for group in 0..geometry.groups() {
                picture.add(group, &FreeRuns::all(geometry.blocks_of(group)));
            }
            assert!(picture.used().all(|used| used == 0.0), "{blocks} {cells}");
            assert_eq!(picture.free.iter().sum::<u64>(), blocks);
        }
    }
}
