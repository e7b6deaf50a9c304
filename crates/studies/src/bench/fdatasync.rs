//! The speed at which a disk makes data durable, with which every rate is shown.

use std::{fs::File, io, path::Path, time::Instant};

/// How often per second the disk below `directory` makes a 4 KiB overwrite durable.
pub fn fdatasync_rate(directory: &Path) -> io::Result<f64> {
    use std::os::unix::fs::FileExt;
    const ROUNDS: u32 = 20;
    let path = directory.join("fdatasync.probe");
    let file = File::create(&path)?;
    file.write_all_at(&[0; 4096], 0)?;
    file.sync_all()?;
    let start = Instant::now();
    for round in 0..ROUNDS {
        file.write_all_at(&[round as u8; 4096], 0)?;
        file.sync_data()?;
    }
    let elapsed = start.elapsed();
    std::fs::remove_file(&path)?;
    Ok(f64::from(ROUNDS) / elapsed.as_secs_f64())
}
