//! What a user is told about a server that cannot be reached, and when.

use std::{cell::Cell, convert::Infallible, future::poll_fn, pin::Pin, task::Poll, time::Duration};

use rpc::{Cause, Import};

/// How long a command waits for the management service and the first metadata target.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// What a process says when it has to wait for a server, before what it waits for.
pub const WAITING: &str = "waiting for";

/// `cannot reach MGS 10.0.0.1:988: connection refused; is stria serve running there?`
pub fn cannot_reach(import: &Import) -> String {
    let cause = import.cause().unwrap_or(Cause::NoAnswer);
    format!("cannot reach {}", place_and_cause(import, &cause))
}

fn place_and_cause(import: &Import, cause: &Cause) -> String {
    let hint = cause.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{}{hint}", cause.of(import.target(), import.endpoint()))
}

/// Does work that needs servers. While one of them cannot be reached, tells so, each cause once, as
/// soon as it is known: `waiting for MGS 10.0.0.1:988: no answer; ...`. Returns whether anything
/// was told.
pub async fn tell_while_any<'i, T>(
    imports: impl IntoIterator<Item = &'i Import>,
    work: impl Future<Output = T>,
    tell: impl Fn(&str),
) -> (T, bool) {
    let has_told = Cell::new(false);
    let tell = |text: &str| {
        has_told.set(true);
        tell(text);
    };
    let mut watches: Vec<Pin<Box<dyn Future<Output = Infallible> + '_>>> = Vec::new();
    for import in imports {
        watches.push(Box::pin(watch(import, &tell)));
    }
    let trouble = poll_fn(|context| {
        for watch in &mut watches {
            let _ = watch.as_mut().poll(context);
        }
        Poll::<Infallible>::Pending
    });
    tokio::select! {
        biased;
        done = work => (done, has_told.get()),
        never = trouble => match never {},
    }
}

/// Tells what keeps a server from being reached, each cause once.
async fn watch(import: &Import, tell: &impl Fn(&str)) -> Infallible {
    let mut told: Vec<Cause> = Vec::new();
    let mut known = None;
    loop {
        let cause = import.trouble(known.as_ref()).await;
        if !told.contains(&cause) {
            tell(&format!("{} {}", WAITING, place_and_cause(import, &cause)));
            told.push(cause.clone());
        }
        known = Some(cause);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rpc::{Endpoint, ImportOptions, Principal};
    use rt::real::Cores;

    use super::*;

    /// Nothing listens at the ports of two servers, which are told apart.
    #[test]
    fn each_server_that_cannot_be_reached_is_told_once() {
        let cores = Cores::start(1).unwrap();
        let seams = crate::seams(&cores);
        let import = |name: &str| {
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let endpoint = Endpoint::Remote(rt::Address::with_port(&format!("127.0.0.1:{port}")).into());
            Import::new(
                seams.clone(),
                name,
                endpoint,
                Principal::of_test(1, rpc::Role::Client),
                ImportOptions::default(),
                None,
            )
        };
        let lines = cores.block_on(async {
            let imports = [import("stria-OST0000"), import("stria-OST0001")];
            let (told, lines) = (tokio::sync::Notify::new(), RefCell::new(Vec::new()));
            let work = async {
                while lines.borrow().len() < 2 {
                    told.notified().await;
                }
            };
            let tell = |line: &str| {
                lines.borrow_mut().push(line.to_owned());
                told.notify_one();
            };
            let ((), has_told) = tell_while_any(&imports, work, tell).await;
            assert!(has_told);
            for import in &imports {
                import.close().await;
            }
            lines.into_inner()
        });
        cores.shutdown();
        for (line, name) in lines.iter().zip(["stria-OST0000", "stria-OST0001"]) {
            assert!(line.contains(": connection refused; is stria serve running there?"), "{line}");
            assert!(lines.iter().any(|line| line.starts_with(&format!("waiting for {name} 127.0.0.1:"))), "{lines:?}");
        }
    }
}
