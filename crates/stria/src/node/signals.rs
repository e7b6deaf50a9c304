//! Signals: the first Ctrl-C or SIGTERM asks for a clean stop, a second one ends the process at once.

use std::io;

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use tokio::sync::watch;

/// Becomes true when somebody asks the process to stop.
pub fn stop_requested() -> io::Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if *sender.borrow() {
                eprintln!("stopping at once; what was acknowledged is safe, clients will reconnect");
                std::process::exit(130);
            }
            sender.send_replace(true);
        }
    })?;
    Ok(receiver)
}
