//! A target with several addresses.

use std::{sync::Arc, time::Duration};

use rpc::{Cause, Endpoint, Import, ImportOptions, Server};
use rt::{
    Address, Addresses, Seams,
    fault::FaultyTransport,
    memory::{self, MemoryTransport},
};
use types::FsError;

use crate::common::{Counter, LONG_LEASE, call, done, effect, import, quick, read, server};

/// A network on which addresses can be cut off, and a server that listens at these.
async fn serve(at: &[&str]) -> (Seams, FaultyTransport, Arc<Counter>, Arc<Server>) {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let network = FaultyTransport::new(&seams);
    let seams = Seams { transport: Arc::new(network.clone()), ..seams };
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    for address in at {
        server.listen(&Address::from(*address)).await.unwrap();
    }
    (seams, network, handler, server)
}

fn connect(seams: &Seams, addresses: &str, options: ImportOptions) -> Import {
    import(seams, Endpoint::Remote(Addresses::parse(addresses).unwrap()), options)
}

#[tokio::test]
async fn the_second_address_serves_if_the_first_does_not() {
    let (seams, ..) = serve(&["ib:1"]).await;
    // Nobody listens at the first one. A pause between the addresses would be seen.
    let options = ImportOptions { backoff_min: Duration::from_secs(3600), ..quick() };
    let import = connect(&seams, "eth:1,ib:1", ImportOptions { backoff_max: options.backoff_min, ..options });
    assert_eq!(call(&import, effect(1)).await, Ok(done()));
    assert_eq!(import.cause(), None);
    assert_eq!(import.endpoint().to_string(), "eth:1,ib:1");
}

#[tokio::test]
async fn if_none_works_the_error_names_all() {
    let (seams, network, ..) = serve(&["ib:1"]).await;
    network.cut(&Address::from("ib:1"));
    let options = ImportOptions { timeout: Duration::from_millis(300), ..quick() };
    let import = connect(&seams, "eth:1,ib:1", options);
    let causes = [("eth:1".to_owned(), Cause::Refused), ("ib:1".to_owned(), Cause::NoAnswer)];
    let cause = import.trouble(None).await;
    assert_eq!(cause, Cause::Each(causes.to_vec()));
    let error = call(&import, read()).await.unwrap_err();
    assert!(matches!(error, FsError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().ends_with(": eth:1: connection refused, ib:1: no answer"), "{error}");
    network.heal(&Address::from("ib:1"));
    import.connected().await.unwrap();
    assert_eq!((call(&import, effect(1)).await, import.cause()), (Ok(done()), None));
}

#[tokio::test]
async fn the_session_moves_to_another_address_and_stays_there() {
    let (seams, network, handler, server) = serve(&["eth:1", "ib:1"]).await;
    let import = connect(&seams, "eth:1,ib:1", quick());
    assert_eq!(call(&import, effect(1)).await, Ok(done()));
    // Nothing comes through any more, and no end of the connection is seen.
    network.cut(&Address::from("eth:1"));
    assert_eq!(call(&import, effect(2)).await, Ok(done()));
    assert_eq!(handler.events().len(), 1, "it is the same session");
    assert_eq!(server.sessions(crate::common::TARGET).len(), 1);
    // The address that worked last is tried first.
    network.heal(&Address::from("eth:1"));
    let connections = import.statistics().connections;
    network.reset(&Address::from("eth:1"));
    assert_eq!(call(&import, effect(3)).await, Ok(done()));
    assert_eq!(import.statistics().connections, connections, "a reset of the other one changes nothing");
    network.reset(&Address::from("ib:1"));
    network.cut(&Address::from("eth:1"));
    assert_eq!(call(&import, effect(4)).await, Ok(done()));
    let effects = handler.disk.effects.lock().clone();
    assert!(effects.len() == 4 && effects.values().all(|count| *count == 1), "{effects:?}");
}
