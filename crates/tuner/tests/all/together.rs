//! Several tuners at work on one server.

use tuner::Limits;

use crate::world::{Knob, Plant, World, assert_good, best, jain};

fn falling(threads: f64, _: f64) -> f64 {
    150.0 * threads.min(8.0) / (1.0 + 0.03 * (threads - 8.0).max(0.0))
}

fn saturating(threads: f64, _: f64) -> f64 {
    2000.0 * threads / (threads + 1.0)
}

fn tuned_clients(starts: &[u32]) -> Vec<Knob> {
    let limits = Limits::requests_in_flight(1, 64);
    let begins = |(index, start): (usize, &u32)| Knob::tuned(limits, *start, 7_000_000 * index as u64);
    starts.iter().enumerate().map(begins).collect()
}

fn world(plant: Plant, server: u32, clients: &[u32]) -> World {
    World::new(plant, Knob::tuned(Limits::service_threads(1, 64), server, 0), tuned_clients(clients))
}

/// From (1, 1) neither sees that more is better unless the other one begins.
#[test]
fn a_client_and_its_server_find_the_best_together() {
    for (name, plant) in [("falling", falling as Plant), ("saturating", saturating)] {
        for server in [1, 64] {
            for client in [1, 64] {
                let mut world = world(plant, server, &[client]);
                let means = world.means(20..80);
                let log: String = world
                    .server
                    .tuner()
                    .log()
                    .map(|line| format!("\n{:.1} {line}", line.now_ns as f64 / 1e9))
                    .collect();
                assert_good(&means, best(plant, 0.0), &format!("{name} from {server} and {client}{log}"));
            }
        }
    }
}

#[test]
fn eight_clients_and_their_server_find_the_best_together() {
    for server in [1, 64] {
        for starts in [[1; 8], [64; 8]] {
            let mut world = world(falling, server, &starts);
            let means = world.means(20..80);
            assert_good(&means, best(falling, 0.0), &format!("from {server} and {starts:?}"));
        }
    }
}

#[test]
fn equal_clients_get_equal_shares() {
    for starts in [[1, 64, 1, 64, 1, 64, 1, 64], [1, 1, 1, 1, 64, 64, 64, 64], [8; 8]] {
        let mut world = world(falling, 12, &starts);
        world.run_until(30);
        let rates = world.run_until(90);
        assert!(jain(&rates) >= 0.95, "from {starts:?}: {rates:.0?}");
    }
}

/// Without a limit of the server's: every request in flight is executed at once.
#[test]
fn equal_clients_get_equal_shares_of_a_server_that_limits_nothing() {
    let mut world = World::new(saturating, Knob::fixed(512), tuned_clients(&[1, 64, 8, 8]));
    world.run_until(30);
    let rates = world.run_until(90);
    assert!(jain(&rates) >= 0.95, "{rates:.0?}");
}
