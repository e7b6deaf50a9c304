//! A port that stays reserved for the test while the server on it is stopped and started again.
//!
//! The system assigns a port to which no socket is bound to the next socket that asks for any port:
//! another test's server, or a connection. So the test itself binds to the port, from before the
//! server starts until the end, without listening; as long as no socket listens, and all set
//! SO_REUSEADDR as servers do, several sockets may be bound to one port (Linux).

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

/// See the module documentation.
pub struct Port {
    /// Nobody else gets the port while this is open.
    _bound: OwnedFd,
    address: SocketAddrV4,
}

impl Port {
    /// A port of the loopback interface that nobody uses.
    pub fn reserve() -> Self {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&socket, true).expect("an option of every socket");
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("any port");
        let address = getsockname(&socket).expect("it is bound").try_into().expect("an IPv4 address");
        Self { _bound: socket, address }
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }
}
