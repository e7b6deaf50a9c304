//! The listings that the kernel keeps: what an open directory is told of them, and how they are
//! dropped. What is right is decided in [`super::listing`].

use std::{sync::Arc, time::Instant};

use client::{FileSystem, LockSpan, OpenFile};
use types::InodeNumber;

use super::{
    Change, Ending, KernelCache, Opening, Session, names::Invalidation, statistics::Count, table::Name, teller::Job,
    withdrawal::Parts,
};

impl KernelCache {
    /// A directory was opened, and is about to be answered. `None`: the kernel keeps no names.
    /// `looks`: the program is shown the attributes of files.
    pub fn opens_directory(&self, file_system: &FileSystem, directory: &OpenFile, looks: bool) -> Option<Opening> {
        let session = self.session.get()?;
        let span = || file_system.listing_span(directory);
        let opening = self.table.open_listing(directory.inode().0, span, looks, Instant::now());
        if opening == Opening::Joined {
            self.statistics.add(Count::ListingsServed);
            self.watch(session);
        }
        Some(opening)
    }

    /// Names are about to be shown through a directory through which the kernel keeps them. The
    /// answer was asked for at `asked`; the span was known later.
    pub fn shows_names(&self, directory: InodeNumber, span: Option<LockSpan>, asked: Instant) {
        self.table.show_names(directory.0, span, asked);
    }

    /// Those names are shown without the attributes of files.
    pub fn shows_bare(&self, directory: InodeNumber) {
        self.table.show_bare(directory.0);
    }

    /// The same of the end of the directory.
    pub fn shows_end(&self, directory: InodeNumber, span: Option<LockSpan>, asked: Instant) -> Ending {
        let Some(session) = self.session.get() else { return Ending::Short };
        let ending = self.table.finish_listing(directory.0, span, asked);
        match ending {
            Ending::Complete => self.watch(session),
            Ending::Dropped => {
                // Does not wait: the kernel copies names of this directory to nobody, because its
                // only handle that could be served from them waits for this answer.
                session.notifications.listing(directory.0);
                self.statistics.add(Count::ListingsDropped);
            }
            Ending::Short => {}
        }
        ending
    }

    /// A directory through which the kernel kept names is closed.
    pub fn closes_directory(&self, directory: InodeNumber) {
        self.table.close_listing(directory.0);
    }

    fn watch(&self, session: &Session) {
        if self.table.needs_watch() {
            session.send(Job::Watch);
        }
    }

    /// The names of a directory change. Complete when no open handle is served from those that the
    /// kernel has.
    pub(super) fn end_listing(&self, session: &Session, directory: u64, complete: &mut Parts) {
        if self.table.end_listing(directory) {
            session.drop_listing(directory, complete);
        }
    }

    /// The same of all directories.
    pub(super) fn end_listings(&self, session: &Session, complete: &mut Parts) {
        for directory in self.table.end_listings() {
            session.drop_listing(directory, complete);
        }
    }
}

impl Session {
    fn drop_listing(&self, directory: u64, complete: &mut Parts) {
        let name = Arc::new(Name::new(directory, b""));
        self.names.withdraw(name, Invalidation::Listing, Instant::now(), complete.add());
        // It makes the thread look after it.
        self.send(Job::Attributes(Vec::new(), complete.add()));
    }
}

impl Change {
    /// It changes the listings of these directories, of which the kernel does not know.
    pub fn of_listings(mut self, directories: impl IntoIterator<Item = u64>) -> Self {
        if let Some(session) = self.cache.session.get() {
            for directory in directories {
                self.cache.end_listing(session, directory, &mut self.listings);
            }
        }
        self
    }

    /// It makes a name in this directory, of which the kernel does not know. What is read of the
    /// listing before its end may be without the name, so the listing ends once more then: with
    /// [`Change::has_named`], or when this is dropped.
    pub fn of_name_in(mut self, directory: Option<u64>) -> Self {
        self.named.extend(directory);
        self.of_listings(directory)
    }

    /// The name is made, or will not be. Completes when the kernel serves no listing from before.
    pub async fn has_named(&mut self) {
        let cache = self.cache.clone();
        if let Some(session) = cache.session.get() {
            self.end_named(session);
        }
        self.has_dropped_listings().await;
    }

    pub(super) fn end_named(&mut self, session: &Session) {
        for directory in std::mem::take(&mut self.named) {
            self.cache.end_listing(session, directory, &mut self.listings);
        }
    }

    /// Completes when the kernel serves none of them.
    pub async fn has_dropped_listings(&mut self) {
        if !self.listings.is_empty() {
            std::mem::take(&mut self.listings).complete().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::OwnedFd, time::Duration};

    use client::SpanNumber;

    use super::*;
    use crate::{
        protocol::notify::MINOR_OF_EPOCHS,
        session::{Notifications, device::Device},
    };

    const ROOT: u64 = 1;

    /// Whether the kernel is served a listing that it has, which then is closed.
    fn is_served(cache: &KernelCache, span: LockSpan) -> bool {
        let opening = cache.table.open_listing(ROOT, || Some(span), true, Instant::now());
        cache.table.close_listing(ROOT);
        opening == Opening::Joined
    }

    fn list(cache: &KernelCache, span: LockSpan) {
        let now = Instant::now();
        assert_eq!(cache.table.open_listing(ROOT, || Some(span), true, now), Opening::Anew);
        cache.table.show_names(ROOT, Some(span), now);
        assert_eq!(cache.table.finish_listing(ROOT, Some(span), now), Ending::Complete);
        cache.table.close_listing(ROOT);
        assert!(is_served(cache, span));
    }

    /// A request whose caller is killed is dropped at any moment.
    #[test]
    fn a_name_of_which_the_kernel_does_not_know_ends_the_listing_before_and_after() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let device = Arc::new(Device::from_descriptor(OwnedFd::from(writer)));
        let cache = KernelCache::new(true);
        cache.begin(Notifications::new(&device, MINOR_OF_EPOCHS));
        let span = LockSpan { number: SpanNumber(1, 0), validity: Duration::from_secs(60) };
        list(&cache, span);
        let change = cache.begin_change(Vec::new(), vec![ROOT]).unwrap().of_name_in(Some(ROOT));
        assert!(!is_served(&cache, span), "before");
        list(&cache, span);
        drop(change);
        assert!(!is_served(&cache, span), "after");
    }
}
