//! What the kernel keeps of the names of directories: a [`Listing`] with each that was opened.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use client::LockSpan;
use parking_lot::Mutex;

use super::Table;
use crate::kernel_cache::listing::{Ending, Listing, Opening};

/// Listings end earlier by this time: the task that ends them may be late by half of it.
const EARLY: Duration = Duration::from_millis(200);

/// Listings that open handles may be served from.
#[derive(Debug, Default)]
pub(super) struct Listings {
    /// Their directories, and until when.
    served: Mutex<HashMap<u64, Instant>>,
    /// Somebody looks after them.
    is_watched: AtomicBool,
}

impl Listings {
    fn note(&self, node: u64, listing: &Listing) {
        match listing.serves_until() {
            Some(until) => drop(self.served.lock().insert(node, until)),
            None if !listing.is_open() => drop(self.served.lock().remove(&node)),
            None => {}
        }
    }
}

impl Table {
    fn change_listing<T>(&self, node: u64, change: impl FnOnce(&mut Listing) -> T) -> Option<T> {
        let mut shard = self.shard(node).lock();
        let listing = shard.get_mut(&node)?.listing.as_deref_mut()?;
        let changed = change(listing);
        self.listings.note(node, listing);
        Some(changed)
    }

    /// A directory is opened. `span` is asked for while the listing is locked: if the span ends
    /// later, that finds the handle. `looks`: see [`Listing::open`].
    pub fn open_listing(
        &self,
        node: u64,
        span: impl FnOnce() -> Option<LockSpan>,
        looks: bool,
        now: Instant,
    ) -> Opening {
        let mut shard = self.shard(node).lock();
        // The kernel opens what it knows.
        let Some(known) = shard.get_mut(&node) else { return Opening::Apart };
        let listing = known.listing.get_or_insert_default();
        let opening = listing.open(span(), looks, now);
        self.listings.note(node, listing);
        opening
    }

    /// See [`Listing::show`].
    pub fn show_names(&self, node: u64, span: Option<LockSpan>, now: Instant) {
        self.change_listing(node, |listing| listing.show(span, now));
    }

    /// See [`Listing::show_bare`].
    pub fn show_bare(&self, node: u64) {
        self.change_listing(node, Listing::show_bare);
    }

    /// See [`Listing::finish`].
    pub fn finish_listing(&self, node: u64, span: Option<LockSpan>, now: Instant) -> Ending {
        self.change_listing(node, |listing| listing.finish(span, now)).unwrap_or(Ending::Short)
    }

    /// See [`Listing::close`].
    pub fn close_listing(&self, node: u64) {
        self.change_listing(node, Listing::close);
    }

    /// See [`Listing::end`].
    pub fn end_listing(&self, node: u64) -> bool {
        self.change_listing(node, Listing::end).unwrap_or(false)
    }

    /// All listings are outdated: those that the kernel has to drop.
    pub fn end_listings(&self) -> Vec<u64> {
        let mut served: Vec<u64> = self.listings.served.lock().keys().copied().collect();
        served.retain(|node| self.end_listing(*node));
        served
    }

    /// Whether listings are to be looked after that nobody looks after yet.
    pub fn needs_watch(&self) -> bool {
        !self.listings.served.lock().is_empty() && !self.listings.is_watched.swap(true, Ordering::AcqRel)
    }

    /// Whether there still are listings to be looked after; if not, nobody does any more.
    pub fn keeps_watch(&self) -> bool {
        let served = self.listings.served.lock();
        let is_watched = !served.is_empty();
        self.listings.is_watched.store(is_watched, Ordering::Release);
        is_watched
    }

    /// The listings that the kernel has to drop because they have been served long enough.
    pub fn expired_listings(&self, now: Instant) -> Vec<u64> {
        let end = now + EARLY;
        let mut over =
            self.listings.served.lock().extract_if(|_, until| *until <= end).map(|(node, _)| node).collect::<Vec<_>>();
        over.retain(|node| self.change_listing(*node, |listing| listing.expire(end)).unwrap_or(false));
        over
    }
}
