//! How often memory is allocated for a request and its reply, on both sides together.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::Arc,
};

use rpc::Endpoint;
use rt::{
    Address, Seams,
    buffer::BufferPool,
    memory::{self, MemoryTransport},
    real::{TcpOptions, TcpTransport},
};

use crate::common::{Counter, LONG_LEASE, call, import, quick, read, server};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count per thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count() {
    // A thread that ends may allocate after its count is gone.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: all of it is the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that it asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

/// One thread does the work of both ends, over TCP: its count is theirs together.
#[tokio::test]
async fn a_request_over_tcp_allocates_no_more_than_before() {
    /// For the frames, the boxes of the futures, the caller's channel, the answer; the handler of
    /// this test included. To be lowered when it can be.
    const PER_REQUEST_MAX: u64 = 16;
    const REQUESTS: u64 = 1000;
    let transport = TcpTransport::new(TcpOptions::default(), BufferPool::new(1 << 24));
    let seams = Seams { transport: Arc::new(transport), ..memory::seams(&MemoryTransport::new(), 1) };
    let server = server(&seams, &Counter::new(&Arc::default()), LONG_LEASE);
    let address = server.listen(&Address::from("127.0.0.1:0")).await.unwrap();
    let import = import(&seams, Endpoint::Remote(address.into()), quick());
    for _ in 0..100 {
        call(&import, read()).await.unwrap();
    }
    let before = ALLOCATIONS.get();
    for _ in 0..REQUESTS {
        call(&import, read()).await.unwrap();
    }
    let per_request = (ALLOCATIONS.get() - before).div_ceil(REQUESTS);
    println!("{per_request} allocations per request");
    assert!(per_request <= PER_REQUEST_MAX, "{per_request} allocations per request");
    import.close().await;
    server.stop().await;
}
