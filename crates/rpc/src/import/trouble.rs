//! Why a target cannot be reached: described for the user, and logged when it changes.
//!
//! Life cycle: the driver notes each failed attempt to connect; a connection that works clears the
//! reason.

use std::{fmt, io, time::Duration};

use rt::Instant;

/// The same cause is logged again after this time.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Why an attempt to connect failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The host's name has no address; what the resolver said.
    Unresolved(String),
    /// The host answers, but no process listens on the port.
    Refused,
    /// Nothing came back in time.
    NoAnswer,
    /// Anything else, in words.
    Other(String),
    /// None of several addresses works: each, and why not.
    Each(Vec<(String, Cause)>),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Unresolved(detail) => write!(f, "does not resolve: {detail}"),
            Cause::Refused => f.write_str("connection refused"),
            Cause::NoAnswer => f.write_str("no answer"),
            Cause::Other(text) => f.write_str(text),
            Cause::Each(causes) => {
                let causes: Vec<String> = causes.iter().map(|(place, cause)| format!("{place}: {cause}")).collect();
                f.write_str(&causes.join(", "))
            }
        }
    }
}

impl Cause {
    /// What the user may look at.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Cause::Unresolved(_) => Some("is the name right?"),
            Cause::Refused => Some("is stria serve running there?"),
            Cause::NoAnswer => Some("is the host up, and does a firewall let the port through?"),
            Cause::Other(_) => None,
            Cause::Each(causes) => causes.iter().find_map(|(_, cause)| cause.hint()),
        }
    }

    /// Where a target is, and why it cannot be reached there: `MGS 10.0.0.1:988: no answer`.
    pub fn of(&self, target: &str, place: impl fmt::Display) -> String {
        match self {
            Cause::Unresolved(_) | Cause::Refused | Cause::NoAnswer | Cause::Other(_) => {
                format!("{target} {place}: {self}")
            }
            Cause::Each(_) => format!("{target} at {self}"),
        }
    }
}

impl From<io::Error> for Cause {
    /// By the kinds that [`rt::Transport::connect`] promises.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Cause::Unresolved(error.to_string()),
            io::ErrorKind::ConnectionRefused => Cause::Refused,
            io::ErrorKind::TimedOut => Cause::NoAnswer,
            io::ErrorKind::HostUnreachable => Cause::Other("no route to the host".to_owned()),
            io::ErrorKind::NetworkUnreachable => Cause::Other("the network is unreachable".to_owned()),
            _ => Cause::Other(error.to_string()),
        }
    }
}

/// What keeps an import from its target.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Addresses that do not work, and why, in the order in which they failed first.
    failed: Vec<(String, Cause)>,
    cause: Option<Cause>,
    /// What was logged last, and when.
    logged: Option<(Cause, Instant)>,
}

impl Trouble {
    /// An attempt failed at one of so many places. Returns what is to be logged, if anything:
    /// nothing as long as there are places that were not tried.
    pub(super) fn note(&mut self, now: Instant, place: &str, places: usize, cause: Cause) -> Option<Cause> {
        match self.failed.iter_mut().find(|(failed, _)| failed == place) {
            Some((_, known)) => *known = cause,
            None => self.failed.push((place.to_owned(), cause)),
        }
        if self.failed.len() < places {
            return None;
        }
        let cause = match &self.failed[..] {
            [(_, only)] => only.clone(),
            several => Cause::Each(several.to_vec()),
        };
        self.cause = Some(cause.clone());
        let is_old = self.logged.as_ref().is_some_and(|(logged, at)| *logged == cause && now.since(*at) < LOG_INTERVAL);
        if is_old {
            return None;
        }
        self.logged = Some((cause.clone(), now));
        Some(cause)
    }

    /// The target is connected, or is elsewhere now.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Why the last attempts failed, if there was none since that worked.
    pub(super) fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    #[test]
    fn a_cause_is_logged_when_it_is_new_and_once_a_minute() {
        let mut trouble = Trouble::default();
        let mut note = |seconds, cause| trouble.note(at(seconds), "a:1", 1, cause).is_some();
        assert!(note(1, Cause::Refused));
        assert!(!note(2, Cause::Refused) && !note(60, Cause::Refused));
        assert!(note(61, Cause::Refused));
        assert!(note(62, Cause::NoAnswer));
        assert_eq!(trouble.cause(), Some(&Cause::NoAnswer));
        trouble.end();
        assert_eq!(trouble.cause(), None);
        assert!(trouble.note(at(63), "a:1", 1, Cause::NoAnswer).is_some(), "another time");
    }

    #[test]
    fn of_several_addresses_all_are_named_once_all_were_tried() {
        let mut trouble = Trouble::default();
        assert_eq!(trouble.note(at(1), "a:1", 2, Cause::Refused), None);
        assert_eq!(trouble.cause(), None, "another one is left");
        let news = trouble.note(at(2), "b:1", 2, Cause::NoAnswer).expect("all were tried");
        assert_eq!(news.of("MGS", "b:1"), "MGS at a:1: connection refused, b:1: no answer");
        assert_eq!(news.hint(), Cause::Refused.hint());
        assert_eq!(trouble.note(at(3), "a:1", 2, Cause::Refused), None, "nothing new");
        assert!(trouble.note(at(4), "a:1", 2, Cause::NoAnswer).is_some());
        assert_eq!(Cause::Refused.of("MGS", "a:1"), "MGS a:1: connection refused");
    }

    #[test]
    fn errors_of_the_network_have_names() {
        let cause = |kind: io::ErrorKind| Cause::from(io::Error::from(kind)).to_string();
        assert_eq!(cause(io::ErrorKind::ConnectionRefused), "connection refused");
        assert_eq!(cause(io::ErrorKind::TimedOut), "no answer");
        assert_eq!(cause(io::ErrorKind::HostUnreachable), "no route to the host");
        let unknown = io::Error::new(io::ErrorKind::NotFound, "Name or service not known");
        assert_eq!(Cause::from(unknown).to_string(), "does not resolve: Name or service not known");
    }
}
