//! A reference scheduler that obeys the duties of a host (H-1 .. H-8), small enough to be read beside them.
//!
//! One thread. A turn: admit what may be probed, run one batch of what is admitted, and where nothing can go on, take a victim for the one
//! owner, or wait. It never probes without a ticket that moved, which it counts.

use std::collections::VecDeque;
use std::time::Duration;

use ictus::facade::{
    Admission, Blocked, Chunk, Domain, End, Fit, Logits, ModelExecutor, Out, Refusal, Remedy, Row, Seq, Ticket, Work,
};

use crate::host::{host, prompt, text};

/// Times that a request may be overtaken (H-2).
const BYPASSES_MAX: u32 = 8;

/// What a user wants.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: usize,
    pub prompt: Vec<u32>,
    pub outputs: usize,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "evidence is plain data (X-7), and a test keeps few of them")]
pub enum Outcome {
    Said(Vec<u32>),
    /// Nobody can make room for it (H-6).
    NoRoom(Blocked),
}

/// A request on its way.
#[derive(Debug)]
struct Item {
    request: Request,
    said: Vec<u32>,
    /// What it had said when it was admitted last.
    replayed: usize,
    seq: Option<Seq>,
    at: usize,
    /// What it waits for.
    ticket: Option<Ticket>,
    bypasses: u32,
    preemptions: u32,
    blocked: Option<Blocked>,
}

impl Item {
    fn context(&self) -> usize {
        self.request.prompt.len() + self.replayed
    }

    fn decodes(&self) -> bool {
        self.at >= self.context()
    }
}

/// What a scheduler did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    pub probes: u64,
    pub probes_without_news: u64,
    pub refusals: u64,
    pub preemptions: u64,
    pub useless_victims: u64,
    pub waits: u64,
    pub most_preemptions: u32,
    pub most_bypasses: u32,
}

/// The scheduler.
pub struct Scheduler<'e> {
    executor: &'e dyn ModelExecutor,
    chunk: usize,
    queue: VecDeque<Item>,
    running: Vec<Item>,
    /// Whom victims are taken for, until it ends (H-3).
    owner: Option<usize>,
    pub outcomes: Vec<(usize, Outcome)>,
    pub deeds: Deeds,
    rows: Vec<Row>,
    greedy: Logits,
}

impl<'e> Scheduler<'e> {
    pub fn new(executor: &'e dyn ModelExecutor, chunk: usize) -> Self {
        Self {
            executor,
            chunk,
            queue: VecDeque::new(),
            running: Vec::new(),
            owner: None,
            outcomes: Vec::new(),
            deeds: Deeds::default(),
            rows: Vec::new(),
            greedy: Logits::greedy(),
        }
    }

    pub fn submit(&mut self, request: Request) {
        self.queue.push_back(Item {
            request,
            said: Vec::new(),
            replayed: 0,
            seq: None,
            at: 0,
            ticket: None,
            bypasses: 0,
            preemptions: 0,
            blocked: None,
        });
    }

    /// Requests that are on their way.
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.running.len()
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty()
    }

    /// One turn; `check` is called after every call of the executor.
    pub fn turn(&mut self, check: &mut dyn FnMut()) {
        let admitted = self.admit(check);
        let ran = self.run(check);
        if !admitted && !ran && !self.is_idle() {
            self.make_room_or_wait(check);
        }
    }

    /// Whether an item may be probed: it is new, or its ticket has moved (H-1).
    fn may_probe(&self, item: &Item) -> bool {
        let capacity = self.executor.capacity();
        item.ticket.is_none_or(|ticket| capacity.changed(&ticket).expect("it is this core's"))
    }

    /// Counts a probe, and whether nothing that it waited for had moved.
    fn count_probe(&mut self, ticket: Option<Ticket>) {
        self.deeds.probes += 1;
        let moved = ticket.is_none_or(|ticket| self.executor.capacity().changed(&ticket).expect("it is this core's"));
        self.deeds.probes_without_news += u64::from(!moved);
    }

    fn admit(&mut self, check: &mut dyn FnMut()) -> bool {
        let mut any = false;
        let mut index = 0;
        let mut overtaken: Vec<usize> = Vec::new();
        let waits = |queue: &VecDeque<Item>, index: usize| queue[index].bypasses >= BYPASSES_MAX;
        while index < self.queue.len() {
            if overtaken.iter().any(|&earlier| waits(&self.queue, earlier)) {
                break;
            }
            // While somebody owns the room, nobody else takes any (H-3).
            let owned = self.owner.is_some_and(|owner| self.queue[index].request.id != owner);
            if owned || !self.may_probe(&self.queue[index]) {
                overtaken.push(index);
                index += 1;
                continue;
            }
            self.count_probe(self.queue[index].ticket);
            let item = &self.queue[index];
            let admission = Admission {
                replayed: &item.said,
                fit: Fit::Input,
                pressure: Remedy::Recompute,
                ..Admission::of(&item.request.prompt, item.request.prompt.len() + item.request.outputs)
            };
            let outcome = self.executor.admit(&admission);
            check();
            match outcome {
                Ok(seq) => {
                    let Some(mut item) = self.queue.remove(index) else { break };
                    item.seq = Some(seq);
                    item.replayed = item.said.len();
                    (item.at, item.ticket, item.blocked) = (0, None, None);
                    self.running.push(item);
                    any = true;
                    for &earlier in &overtaken {
                        // One that was retried, stayed blocked and saw a later one go (H-2).
                        self.queue[earlier].bypasses += 1;
                        self.deeds.most_bypasses = self.deeds.most_bypasses.max(self.queue[earlier].bypasses);
                    }
                }
                Err(Refusal::Blocked(blocked)) => {
                    self.deeds.refusals += 1;
                    let item = &mut self.queue[index];
                    item.ticket = Some(blocked.ticket);
                    item.blocked = Some(blocked);
                    overtaken.push(index);
                    index += 1;
                }
                Err(Refusal::Never(blocked)) => {
                    let Some(item) = self.queue.remove(index) else { break };
                    self.finish(item, Outcome::NoRoom(blocked));
                }
                Err(other) => panic!("an admission is legal: {other:?}"),
            }
        }
        any
    }

    /// Runs what may run: all decodes, and chunks of prompts. After a refusal its head, then nothing (H-7).
    fn run(&mut self, check: &mut dyn FnMut()) -> bool {
        let executor = self.executor;
        let ready: Vec<usize> = (0..self.running.len()).filter(|&i| self.may_probe(&self.running[i])).collect();
        let most = usize::try_from(executor.info().max_items).unwrap_or(usize::MAX);
        let mut batch: Vec<usize> = ready;
        // The owner first, then decodes, then prompts.
        batch.sort_by_key(|&i| (Some(self.running[i].request.id) != self.owner, !self.running[i].decodes()));
        batch.truncate(most);
        while !batch.is_empty() {
            let mut rows = std::mem::take(&mut self.rows);
            for &index in &batch {
                self.count_probe(self.running[index].ticket);
            }
            let work: Vec<Work<'_>> = batch.iter().map(|&i| self.work(i)).collect();
            let outcome = executor.run(&work, &mut rows);
            drop(work);
            self.rows = rows;
            check();
            match outcome {
                Ok(()) => {
                    self.take_rows(&batch);
                    return true;
                }
                Err(Refusal::Blocked(blocked)) => {
                    self.deeds.refusals += 1;
                    let fits = blocked.fits as usize;
                    for &i in batch.iter().skip(fits).take(if fits == 0 { usize::MAX } else { 1 }) {
                        self.running[i].ticket = Some(blocked.ticket);
                        self.running[i].blocked = Some(blocked);
                    }
                    batch.truncate(fits);
                }
                Err(other) => panic!("a batch is legal: {other:?}"),
            }
        }
        false
    }

    fn work(&self, index: usize) -> Work<'_> {
        let item = &self.running[index];
        let seq = item.seq.expect("it is admitted");
        let logits = &self.greedy;
        if item.decodes() {
            let token = item.said[item.at - item.request.prompt.len()];
            return Work::Decode { seq, at: item.at, token, logits };
        }
        let len = self.chunk.min(item.context() - item.at);
        let chunk = Chunk::new(item.at, len, item.context()).expect("it is one");
        Work::Prefill { seq, chunk, whole: false, logits }
    }

    fn take_rows(&mut self, batch: &[usize]) {
        let mut done: Vec<usize> = Vec::new();
        for (row, &index) in self.rows.iter().zip(batch) {
            let item = &mut self.running[index];
            item.at = row.ran.end;
            item.ticket = None;
            item.blocked = None;
            match row.out.as_ref().expect("no step fails") {
                Out::Silent => {}
                Out::Tokens(tokens) => item.said.push(tokens[0]),
                other => panic!("a token was asked for: {other:?}"),
            }
            if item.said.len() >= item.request.outputs {
                done.push(index);
            }
        }
        done.sort_unstable();
        for index in done.into_iter().rev() {
            let item = self.running.swap_remove(index);
            let seq = item.seq.expect("it is admitted");
            let end = End::Completed { prompt: item.request.prompt.len(), output: item.said.len() };
            self.executor.close(seq, end).expect("it is idle");
            let said = item.said.clone();
            self.finish(item, Outcome::Said(said));
        }
    }

    fn finish(&mut self, item: Item, outcome: Outcome) {
        if self.owner == Some(item.request.id) {
            self.owner = None;
        }
        self.deeds.most_preemptions = self.deeds.most_preemptions.max(item.preemptions);
        self.outcomes.push((item.request.id, outcome));
    }

    /// Nothing went on: a victim for the one who owns the room, else a failure, else a wait (H-3 .. H-6).
    fn make_room_or_wait(&mut self, check: &mut dyn FnMut()) {
        let longest = self.running.iter().min_by_key(|item| item.request.id).map(|item| item.request.id);
        let Some(owner) = self.owner.or(longest) else { return self.wait() };
        self.owner = Some(owner);
        let Some(at) = self.running.iter().position(|item| item.request.id == owner) else { return self.wait() };
        let Some(blocked) = self.running[at].blocked else { return self.wait() };
        let blocks = Domain::Blocks.index();
        let victim = (0..self.running.len())
            .filter(|&i| i != at)
            .filter(|&i| self.executor.frees(&[self.seq(i)]).is_ok_and(|units| units[blocks] > 0))
            .max_by_key(|&i| self.running[i].request.id);
        match victim {
            Some(victim) => {
                let mut item = self.running.swap_remove(victim);
                self.executor.close(item.seq.take().expect("it is admitted"), End::Recompute).expect("it is idle");
                check();
                self.deeds.preemptions += 1;
                item.preemptions += 1;
                let moved = self.executor.capacity().changed(&blocked.ticket).expect("it is this core's");
                self.deeds.useless_victims += u64::from(!moved);
                // It comes back when room comes, at its old place in the queue.
                item.ticket = None;
                let place = self.queue.iter().position(|other| other.request.id > item.request.id);
                self.queue.insert(place.unwrap_or(self.queue.len()), item);
            }
            None if self.queue.is_empty() && self.running.len() == 1 && !self.others_hold() => {
                let item = self.running.swap_remove(at);
                self.executor.close(self.seq_of(&item), End::Failed).expect("it is idle");
                check();
                self.finish(item, Outcome::NoRoom(blocked));
            }
            None => self.wait(),
        }
    }

    fn seq(&self, index: usize) -> Seq {
        self.seq_of(&self.running[index])
    }

    fn seq_of(&self, item: &Item) -> Seq {
        item.seq.expect("it is admitted")
    }

    /// Whether somebody beside this scheduler holds blocks.
    fn others_hold(&self) -> bool {
        let blocks = Domain::Blocks.index();
        let own: u64 =
            self.running.iter().map(|item| self.executor.held(self.seq_of(item)).map_or(0, |u| u[blocks])).sum();
        let memory = self.executor.capacity().memory();
        memory.blocks_total - memory.blocks_free - memory.blocks_evictable > own
    }

    /// Waits for any of what is waited for.
    fn wait(&mut self) {
        self.deeds.waits += 1;
        let tickets = self.queue.iter().chain(&self.running).filter_map(|item| item.ticket);
        let union = tickets.reduce(|a, b| Ticket::union(&a, &b).expect("of one core"));
        let Some(ticket) = union else { return };
        let wait = self.executor.capacity().wait(ticket).expect("it watches something");
        let woken = wait.block(Some(Duration::from_secs(30))).expect("the core is open");
        assert!(woken.is_some(), "nobody ever came: {:?}", self.deeds);
    }
}

/// Runs all to their ends.
fn drain(scheduler: &mut Scheduler<'_>) {
    let mut turns = 0;
    while !scheduler.is_idle() {
        scheduler.turn(&mut || ());
        turns += 1;
        assert!(turns < 100_000, "no end: {:?}", scheduler.deeds);
    }
    scheduler.outcomes.sort_by_key(|outcome| outcome.0);
}

fn request(id: usize, len: usize, outputs: usize) -> Request {
    Request { id, prompt: prompt(len, id as u32), outputs }
}

/// H-6: nobody can free anything, so it fails, with the evidence.
#[test]
fn xs_38_request_that_nobody_can_make_room_for_fails() {
    let host = host(4, 8);
    // A tick host keeps all blocks but one.
    let hog = host.core.clone();
    let bare = hog.inspect(|executor| {
        use ictus::engine::Engine;
        use ictus::runtime::{Answers, Feed, Input, Runtime, Want};
        let bare = executor.create_sequence().expect("there is room");
        let tokens = prompt(96, 1);
        let feed = Feed { sequence: bare, input: Input::Tokens(&tokens), want: Want::Nothing };
        executor.primitives_mut().step(&[feed], &mut Answers::new()).expect("there is room");
        executor.free_sequence(0).expect_err("tells the coordinator what is held");
        executor.pump();
        bare
    });
    assert_eq!(host.free(), 1);
    let mut scheduler = Scheduler::new(&*host.executor, 64);
    scheduler.submit(Request { id: 0, prompt: prompt(30, 1), outputs: 8 });
    // It waits while somebody else holds something, and goes on when that comes back.
    let freeing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        hog.inspect(|executor| ictus::engine::Engine::free_sequence(executor, bare)).expect("it is there");
    });
    drain(&mut scheduler);
    freeing.join().expect("it ends");
    assert_eq!(scheduler.outcomes, [(0, Outcome::Said(text(&prompt(30, 1), 8)))]);
    assert!(scheduler.deeds.waits >= 1 && scheduler.deeds.probes_without_news == 0, "{:?}", scheduler.deeds);

    // Alone in a pool that is too small for its text: the end, typed.
    let small = crate::host::host(2, 8);
    let mut scheduler = Scheduler::new(&*small.executor, 64);
    scheduler.submit(Request { id: 0, prompt: prompt(60, 1), outputs: 8 });
    drain(&mut scheduler);
    assert!(matches!(&scheduler.outcomes[0].1, Outcome::NoRoom(blocked) if blocked.short[0].domain == Domain::Blocks));
    assert_eq!(small.free(), 2);
}

/// H-3: two that block each other do not rotate.
#[test]
fn xs_66_owner_runs_to_its_end() {
    let host = host(4, 8);
    let mut scheduler = Scheduler::new(&*host.executor, 64);
    // Each needs three blocks at its end, and both have two when they block each other.
    let requests = [request(0, 60, 20), request(1, 60, 20)];
    requests.iter().cloned().for_each(|request| scheduler.submit(request));
    drain(&mut scheduler);
    for (request, outcome) in requests.iter().zip(&scheduler.outcomes) {
        assert_eq!(outcome.1, Outcome::Said(text(&request.prompt, request.outputs)));
    }
    assert_eq!((scheduler.deeds.preemptions, scheduler.deeds.most_preemptions), (1, 1));
    assert_eq!(scheduler.deeds.useless_victims, 0);
    assert_eq!(host.free(), 4);
}

/// H-2: a large request is overtaken so often, and no more.
#[test]
fn xs_67_large_request_is_not_overtaken_for_ever() {
    let host = host(8, 8);
    let mut scheduler = Scheduler::new(&*host.executor, 64);
    scheduler.submit(request(0, 100, 40));
    scheduler.turn(&mut || ());
    scheduler.submit(request(1, 7 * 32, 8));
    let mut id = 2;
    let mut turns = 0;
    while !scheduler.outcomes.iter().any(|outcome| outcome.0 == 1) {
        scheduler.submit(request(id, 20, 3));
        id += 1;
        let before: usize = scheduler.running.iter().filter(|item| item.decodes()).map(|item| item.said.len()).sum();
        let names: Vec<usize> = scheduler.running.iter().filter(|i| i.decodes()).map(|i| i.request.id).collect();
        scheduler.turn(&mut || ());
        let still = scheduler.running.iter().filter(|item| names.contains(&item.request.id)).count();
        let after: usize =
            scheduler.running.iter().filter(|item| names.contains(&item.request.id)).map(|item| item.said.len()).sum();
        assert!(still < names.len() || names.is_empty() || after > before, "running decodes never stop");
        turns += 1;
        assert!(turns < 1000, "it never got its turn: {:?}", scheduler.deeds);
    }
    assert!(scheduler.deeds.most_bypasses <= BYPASSES_MAX, "{:?}", scheduler.deeds);
    drain(&mut scheduler);
    assert_eq!(scheduler.outcomes.len(), id);
    for (id, outcome) in &scheduler.outcomes {
        let len = [100, 7 * 32].get(*id).copied().unwrap_or(20);
        let outputs = [40, 8].get(*id).copied().unwrap_or(3);
        assert_eq!(*outcome, Outcome::Said(text(&prompt(len, *id as u32), outputs)), "{id}");
    }
}
