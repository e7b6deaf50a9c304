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
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Unresolved(detail) => write!(f, "does not resolve: {detail}"),
            Cause::Refused => f.write_str("connection refused"),
            Cause::NoAnswer => f.write_str("no answer"),
            Cause::Other(text) => f.write_str(text),
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
    cause: Option<Cause>,
    /// What was logged last, and when.
    logged: Option<(Cause, Instant)>,
}

impl Trouble {
    /// An attempt failed. Returns whether that is to be logged.
    pub(super) fn note(&mut self, now: Instant, cause: Cause) -> bool {
        let is_old = self.logged.as_ref().is_some_and(|(logged, at)| *logged == cause && now.since(*at) < LOG_INTERVAL);
        if !is_old {
            self.logged = Some((cause.clone(), now));
        }
        self.cause = Some(cause);
        !is_old
    }

    /// The target is connected.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Why the last attempt failed, if there was none since that worked.
    pub(super) fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_logged_when_it_is_new_and_once_a_minute() {
        let mut trouble = Trouble::default();
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        assert!(trouble.note(at(1), Cause::Refused));
        assert!(!trouble.note(at(2), Cause::Refused) && !trouble.note(at(60), Cause::Refused));
        assert!(trouble.note(at(61), Cause::Refused));
        assert!(trouble.note(at(62), Cause::NoAnswer));
        assert_eq!(trouble.cause(), Some(&Cause::NoAnswer));
        trouble.end();
        assert_eq!(trouble.cause(), None);
        assert!(trouble.note(at(63), Cause::NoAnswer), "another time");
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
