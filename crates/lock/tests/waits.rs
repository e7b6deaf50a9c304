//! Waits for a lock, message by message: all orders of the messages of three clients that want the
//! same lock, of which one may give up waiting, with one crash of a client or of the server. No two
//! clients hold the lock at a time, everybody gets it or hears why not, and nothing of those who
//! are gone stays.

use std::collections::BTreeSet;

use lock::{
    AdvisoryLocks, Completion, HeldLock, LockAnswer, LockError, LockFamily, LockMode, LockOwner, LockRange,
    LockRequest, WaitTicket,
};
use types::{ClientId, InodeNumber};

const FILE: InodeNumber = InodeNumber(300);
const CLIENTS: usize = 3;
/// It may give up waiting.
const CANCELLED: usize = 2;
const TICKET: WaitTicket = WaitTicket(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Asking,
    Queued,
    Cancelling,
    /// The cancel came too late: the completion decides.
    Completing,
    Holding,
    Releasing,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Lock,
    Cancel,
    Unlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Granted,
    Queued,
    Cancelled,
    NotQueued,
    Unlocked,
}

#[derive(Clone, Debug)]
struct Client {
    state: State,
    /// The request of which the answer has not arrived.
    request: Option<Message>,
    /// Its answer, on the way; `None`: the request is.
    reply: Option<Reply>,
    /// A callback on the way.
    callback: Option<Result<(), LockError>>,
    /// What a callback said before the answer arrived.
    heard: Option<Result<(), LockError>>,
    /// The server restarted since the request was sent.
    restarted: bool,
    /// It claims the lock again after a restart.
    noted: bool,
}

#[derive(Clone, Debug)]
struct World {
    locks: AdvisoryLocks,
    clients: [Client; CLIENTS],
    may_crash: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(usize),
    Cancel(usize),
    Release(usize),
    Execute(usize),
    Answer(usize),
    CallBack(usize),
    ClientDies(usize),
    ServerRestarts,
}

fn id(client: usize) -> ClientId {
    ClientId(client as u64)
}

fn lock_request(client: usize, mode: LockMode) -> LockRequest {
    let owner = LockOwner { client: id(client), owner: 7 };
    let ticket = (mode != LockMode::Unlock).then_some(TICKET);
    LockRequest { inode: FILE, family: LockFamily::Posix, owner, pid: 1, range: LockRange::WHOLE, mode, ticket }
}

impl World {
    fn new() -> Self {
        let client = Client {
            state: State::Idle,
            request: None,
            reply: None,
            callback: None,
            heard: None,
            restarted: false,
            noted: false,
        };
        let clients = [client.clone(), client.clone(), client];
        Self { locks: AdvisoryLocks::new(100), clients, may_crash: true }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            match client.state {
                State::Idle => steps.push(Step::Ask(number)),
                State::Queued if number == CANCELLED => steps.push(Step::Cancel(number)),
                State::Holding => steps.push(Step::Release(number)),
                _ => {}
            }
            match (client.request, client.reply) {
                (Some(_), None) => steps.push(Step::Execute(number)),
                (Some(_), Some(_)) => steps.push(Step::Answer(number)),
                (None, _) => {}
            }
            if client.callback.is_some() {
                steps.push(Step::CallBack(number));
            }
            if self.may_crash && client.state != State::Gone {
                steps.push(Step::ClientDies(number));
            }
        }
        if self.may_crash {
            steps.push(Step::ServerRestarts);
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Ask(number) => self.clients[number].send(State::Asking, Message::Lock),
            Step::Cancel(number) => self.clients[number].send(State::Cancelling, Message::Cancel),
            Step::Release(number) => {
                let client = &mut self.clients[number];
                client.send(State::Releasing, Message::Unlock);
                // Others may have it before the answer arrives.
                client.noted = false;
            }
            Step::Execute(number) => self.execute(number),
            Step::Answer(number) => self.clients[number].answered(),
            Step::CallBack(number) => self.clients[number].called_back(),
            Step::ClientDies(number) => {
                self.may_crash = false;
                self.clients[number] = Client { state: State::Gone, ..World::new().clients[number].clone() };
                let mut completed = Vec::new();
                self.locks.drop_client(id(number), &mut completed);
                self.complete(completed);
            }
            Step::ServerRestarts => self.restart(),
        }
        let holders = self.clients.iter().filter(|client| client.state == State::Holding).count();
        assert!(holders <= 1, "two hold the lock: {self:?}");
    }

    fn execute(&mut self, number: usize) {
        let mut completed = Vec::new();
        let reply = match self.clients[number].request.expect("it was sent") {
            Message::Lock => match self.locks.set(&lock_request(number, LockMode::Exclusive), &mut completed) {
                Ok(LockAnswer::Granted) => Reply::Granted,
                Ok(LockAnswer::Queued) => Reply::Queued,
                Err(error) => panic!("{error:?}"),
            },
            Message::Cancel => match self.locks.cancel(FILE, LockFamily::Posix, id(number), TICKET, &mut completed) {
                true => Reply::Cancelled,
                false => Reply::NotQueued,
            },
            Message::Unlock => {
                let answer = self.locks.set(&lock_request(number, LockMode::Unlock), &mut completed);
                assert_eq!(answer, Ok(LockAnswer::Granted));
                Reply::Unlocked
            }
        };
        self.clients[number].reply = Some(reply);
        self.complete(completed);
    }

    fn complete(&mut self, completed: Vec<Completion>) {
        for Completion { client, ticket, outcome } in completed {
            assert_eq!(ticket, TICKET);
            let client = &mut self.clients[client.0 as usize];
            assert_eq!(client.callback.replace(outcome), None, "a request is completed once");
        }
    }

    /// What the server knew and what it sent is lost; clients claim what they hold, ask again what
    /// they wait for, and repeat their requests.
    fn restart(&mut self) {
        self.may_crash = false;
        self.locks = AdvisoryLocks::new(100);
        for (number, client) in self.clients.iter_mut().enumerate() {
            (client.callback, client.reply) = (None, None);
            if client.noted {
                let held = HeldLock {
                    inode: FILE,
                    family: LockFamily::Posix,
                    client: id(number),
                    owner: 7,
                    pid: 1,
                    range: LockRange::WHOLE,
                    mode: LockMode::Exclusive,
                };
                self.locks.reclaim(&held).expect("one client at a time knows that it holds the lock");
            }
            match client.state {
                State::Queued => client.send(State::Asking, Message::Lock),
                State::Completing => client.state = State::Gone,
                State::Asking | State::Cancelling => client.restarted = true,
                State::Idle | State::Holding | State::Releasing | State::Gone => {}
            }
        }
    }
}

impl Client {
    fn send(&mut self, state: State, message: Message) {
        (self.state, self.request, self.reply) = (state, Some(message), None);
    }

    fn answered(&mut self) {
        let reply = self.reply.take().expect("it is on the way");
        self.request = None;
        match (self.state, reply) {
            (State::Asking, Reply::Granted) => (self.state, self.noted) = (State::Holding, true),
            (State::Asking, Reply::Queued) if std::mem::take(&mut self.restarted) => {
                self.send(State::Asking, Message::Lock);
            }
            (State::Asking, Reply::Queued) => {
                self.state = State::Queued;
                self.go_on();
            }
            (State::Cancelling, Reply::Cancelled) => self.state = State::Gone,
            (State::Cancelling, Reply::NotQueued) if self.heard.is_none() && self.restarted => self.state = State::Gone,
            (State::Cancelling, Reply::NotQueued) => {
                self.state = State::Completing;
                self.go_on();
            }
            (State::Releasing, Reply::Unlocked) => self.state = State::Gone,
            other => panic!("{other:?}"),
        }
    }

    fn called_back(&mut self) {
        let outcome = self.callback.take().expect("it is on the way");
        // A callback of a request that was answered otherwise after a restart says nothing new.
        if matches!(self.state, State::Asking | State::Queued | State::Cancelling | State::Completing) {
            self.noted = outcome.is_ok();
            self.heard = Some(outcome);
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        if matches!(self.state, State::Queued | State::Completing)
            && let Some(outcome) = self.heard.take()
        {
            assert_eq!(outcome, Ok(()), "nobody waits in a circle");
            self.state = State::Holding;
        }
    }
}

#[test]
fn everybody_gets_the_lock_or_hears_why_not() {
    let mut seen = BTreeSet::new();
    let mut next = vec![World::new()];
    let mut ends = 0;
    while let Some(world) = next.pop() {
        let steps = world.steps();
        let waits = |client: &Client| client.state != State::Gone;
        let is_over = steps.iter().all(|step| matches!(step, Step::ClientDies(_) | Step::ServerRestarts));
        if is_over {
            assert!(!world.clients.iter().any(waits), "somebody waits forever: {world:?}");
            assert!(world.locks.is_empty(), "a lock stays: {world:?}");
            ends += 1;
        }
        for step in steps {
            let mut world = world.clone();
            world.take(step);
            if seen.insert(format!("{world:?}")) {
                next.push(world);
            }
        }
    }
    assert!(ends > 1 && seen.len() > 1000, "{ends} ends of {} states", seen.len());
}
