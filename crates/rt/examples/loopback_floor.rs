//! What a request and its reply over loopback cost with nothing but the system calls that they
//! need: the floor for what `crates/studies/request_cost` counts of a mount and its servers.
//!
//! Two threads, a socket each that does not block. The client does sendmsg, epoll_wait and recvmsg
//! per request, the server epoll_wait, recvmsg and sendmsg.
//!
//! `cargo run --release -p stria-rt --example loopback_floor [REQUESTS]`

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    thread,
    time::Instant,
};

use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    fd::OwnedFd,
    time::{ClockId, clock_gettime},
};

/// As large as a lookup and its reply.
const REQUEST_BYTES: usize = 120;
const REPLY_BYTES: usize = 200;

struct End {
    stream: TcpStream,
    poller: OwnedFd,
}

impl End {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let poller = epoll::create(CreateFlags::CLOEXEC)?;
        let events = EventFlags::IN | EventFlags::ET;
        epoll::add(&poller, stream.as_fd(), EventData::new_u64(0), events)?;
        Ok(Self { stream, poller })
    }

    /// Waits for bytes and reads them. The second read, which would find nothing, is left out: all
    /// bytes come at once.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut events = Vec::with_capacity(1);
        loop {
            epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut events), None)?;
            match self.stream.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => events.clear(),
                result => return result,
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }
}

/// Processor time of the calling thread in microseconds, and how often it slept.
fn spent() -> (f64, i64) {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // SAFETY: all zeros are a valid value of this struct of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it points to a value of the right type.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0, "getrusage of the own thread");
    (time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3, usage.ru_nvcsw)
}

/// Does the work; prints what a request cost the calling thread.
fn report(name: &str, requests: u32, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let ((time, sleeps), began) = (spent(), Instant::now());
    work()?;
    let (after, sleeps_after) = spent();
    let per = |what: f64| what / f64::from(requests);
    let (cpu, switches) = (per(after - time), per((sleeps_after - sleeps) as f64));
    let took = per(began.elapsed().as_secs_f64() * 1e6);
    println!("{name}: {cpu:.1} us of processor time, {switches:.2} switches, 3 system calls; {took:.1} us each");
    Ok(())
}

fn main() -> io::Result<()> {
    let requests: u32 = std::env::args().nth(1).map_or(Ok(20_000), |text| text.parse()).map_err(io::Error::other)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = End::new(TcpStream::connect(listener.local_addr()?)?)?;
    let mut server = End::new(listener.accept()?.0)?;
    let serve = thread::spawn(move || {
        report("server", requests, || {
            let mut buffer = [0; REQUEST_BYTES];
            for _ in 0..requests {
                server.receive(&mut buffer)?;
                server.send(&[0; REPLY_BYTES])?;
            }
            Ok(())
        })
    });
    let asked = report("client", requests, || {
        let mut buffer = [0; REPLY_BYTES];
        for _ in 0..requests {
            client.send(&[0; REQUEST_BYTES])?;
            client.receive(&mut buffer)?;
        }
        Ok(())
    });
    let served = serve.join().map_err(|_| io::Error::other("the server panicked"))?;
    asked.and(served)
}
