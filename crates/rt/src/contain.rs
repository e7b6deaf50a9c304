//! Panics that end only the work in which they happen, not the process: for example a request,
//! whose target goes out of service.
//!
//! Work runs in a scope ([`catch`], or [`Contained`] around every poll of a future). A panic in it
//! is caught at the boundary of the scope, and returned with its message, its location and its
//! request. Before anything is unwound, while every lock that the work holds is still held, the
//! scope's owner is told ([`OnPanic`]): so code that takes one of these locks next cannot mistake
//! the state under it for consistent.
//!
//! Scopes nest: a mount's request that is served by a target of the same process is in the target's
//! scope as long as the target executes it.
//!
//! Downside: for panics outside of all scopes (background tasks), the binary decides what happens,
//! with a panic hook that asks [`is_contained`].

use std::{
    cell::RefCell,
    fmt,
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook},
    pin::Pin,
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use crate::{BoxFuture, trace};

/// The owner of contained work.
pub trait OnPanic: Send + Sync {
    /// The work panics. Called at the place of the panic: must not take a lock, wait, or panic.
    fn panicked(&self);
}

/// The message of a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked {
    /// Message and place.
    pub what: String,
    /// The request that was being executed; 0: none.
    pub trace: u64,
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

thread_local! {
    /// Scopes of this thread, the innermost last.
    static SCOPES: RefCell<Vec<Option<Arc<dyn OnPanic>>>> = const { RefCell::new(Vec::new()) };
    /// The message of the panic that is being unwound.
    static LAST: RefCell<Option<Panicked>> = const { RefCell::new(None) };
}

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Whether a panic now would be contained. For panic hooks.
pub fn is_contained() -> bool {
    SCOPES.try_with(|scopes| scopes.try_borrow().is_ok_and(|scopes| !scopes.is_empty())).unwrap_or(false)
}

/// Panics of this process that were contained.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Runs `work` in a scope of `owner`, if it has one.
pub fn catch<T>(owner: Option<&Arc<dyn OnPanic>>, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            note(panic);
            before(panic);
        }));
    });
    let scope = Scope::enter(owner.cloned());
    let outcome = catch_unwind(AssertUnwindSafe(work));
    drop(scope);
    outcome.map_err(|_payload| {
        COUNT.fetch_add(1, Ordering::Relaxed);
        let last = LAST.with_borrow_mut(Option::take);
        last.unwrap_or_else(|| Panicked { what: "a panic".to_owned(), trace: trace::current() })
    })
}

/// Tells the innermost scope's owner, and keeps the message.
fn note(panic: &PanicHookInfo<'_>) {
    // Without the thread's variables, or while they are in use, there is nothing to contain.
    let _ = SCOPES.try_with(|scopes| {
        let Ok(scopes) = scopes.try_borrow() else { return };
        let Some(scope) = scopes.last() else { return };
        if let Some(owner) = scope {
            owner.panicked();
        }
        let place = panic.location().map(|location| format!(" at {location}")).unwrap_or_default();
        let said = panic.payload_as_str().unwrap_or("a panic");
        let last = Panicked { what: format!("{said}{place}"), trace: trace::current() };
        let _ = LAST.try_with(|kept| kept.try_borrow_mut().map(|mut kept| *kept = Some(last)).is_ok());
    });
}

/// Ends when dropped, also by a panic.
struct Scope;

impl Scope {
    fn enter(owner: Option<Arc<dyn OnPanic>>) -> Self {
        SCOPES.with_borrow_mut(|scopes| scopes.push(owner));
        Self
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // The owner may end here: not while the scopes are in use.
        let ended = SCOPES.with_borrow_mut(Vec::pop);
        drop(ended);
    }
}

/// A future all of whose polls run in a scope; dropped at its first panic.
pub struct Contained<'a, T> {
    owner: Option<Arc<dyn OnPanic>>,
    future: Option<BoxFuture<'a, T>>,
}

impl<'a, T> Contained<'a, T> {
    /// Contains `future`, in scopes of `owner` if it has one.
    pub fn new(owner: Option<Arc<dyn OnPanic>>, future: BoxFuture<'a, T>) -> Self {
        Self { owner, future: Some(future) }
    }
}

impl<T> Future for Contained<'_, T> {
    type Output = Result<T, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { owner, future } = &mut *self;
        let work = future.as_mut().expect("not polled after its end");
        let polled = catch(owner.as_ref(), || work.as_mut().poll(context));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => {
                *future = None;
                Poll::Ready(Ok(output))
            }
            Err(panicked) => {
                // What it holds is given back here; if that panics too, it is the same panic.
                let dropped = catch(owner.as_ref(), || *future = None);
                drop(dropped);
                Poll::Ready(Err(panicked))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, task::Waker};

    use super::*;

    #[derive(Default)]
    struct Owner {
        told: AtomicBool,
    }

    impl OnPanic for Owner {
        fn panicked(&self) {
            assert!(!self.told.swap(true, Ordering::SeqCst));
        }
    }

    fn owner() -> (Arc<Owner>, Arc<dyn OnPanic>) {
        let owner = Arc::new(Owner::default());
        (owner.clone(), owner)
    }

    fn poll<T>(future: &mut Contained<'_, T>) -> Poll<Result<T, Panicked>> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_panic_ends_its_work_and_says_for_whom() {
        let (seen, owner) = owner();
        let work = trace::scoped(77, Box::pin(async { panic!("on {}", "purpose") }));
        let mut contained: Contained<'_, ()> = Contained::new(Some(owner), Box::pin(work));
        let Poll::Ready(Err(panicked)) = poll(&mut contained) else { panic!("not caught") };
        assert!(panicked.what.starts_with("on purpose at ") && panicked.what.contains("contain.rs"), "{panicked}");
        assert_eq!(panicked.trace, 77);
        assert!(seen.told.load(Ordering::SeqCst) && count() > 0 && !is_contained());
    }

    /// When the lock is taken next, the owner must have been told.
    #[test]
    fn the_owner_is_told_while_locks_are_held() {
        struct Held(Arc<Owner>, Arc<AtomicBool>);
        impl Drop for Held {
            fn drop(&mut self) {
                self.1.store(self.0.told.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        }
        let ((seen, owner), was_told) = (owner(), Arc::new(AtomicBool::new(false)));
        let held = Held(seen, was_told.clone());
        let caught = catch(Some(&owner), move || {
            let _held = held;
            panic!("with a lock");
        });
        assert!(caught.is_err() && was_told.load(Ordering::SeqCst));
    }

    #[test]
    fn a_panic_is_the_innermost_owners() {
        let ((seen_outer, outer), (seen_inner, inner)) = (owner(), owner());
        let caught = catch(Some(&outer), || {
            let caught = catch(Some(&inner), || panic!("inside"));
            assert!(is_contained());
            caught.is_err()
        });
        assert_eq!(caught, Ok(true));
        assert!(seen_inner.told.load(Ordering::SeqCst) && !seen_outer.told.load(Ordering::SeqCst));
    }

    #[test]
    fn what_goes_well_is_left_alone() {
        let (seen, owner) = owner();
        let mut contained = Contained::new(Some(owner), Box::pin(async { 5 }));
        assert_eq!(poll(&mut contained), Poll::Ready(Ok(5)));
        assert!(!seen.told.load(Ordering::SeqCst));
    }
}
