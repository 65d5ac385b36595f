//! A runtime that answers other than was asked, for one item of a batch; what that is to the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use ictus::executor::Executor;
use ictus::facade::{
    Admission, Bad, Chunk, Core, CoreOptions, End, Fault, FaultCode, FaultState, Logits, ModelExecutor, Out, Row, Seq,
    TokenMask, Work,
};
use ictus::runtime::{
    Answer, Answers, Descriptor, FakeRuntime, Feed, MemCounters, Runtime, RuntimeError, SeqGrowth, SeqHandle,
    Vocabulary,
};
use ictus::sample::Pick;

use crate::host::{VOCAB, bad, pool, prompt, text, token};

/// What a sequence is answered instead.
#[derive(Clone, Copy)]
enum Wrong {
    Token(u32),
    /// The row that was not asked for.
    Row,
    /// A row of one value less; others of its step must not want rows.
    Narrow,
    /// No answer but a code.
    Fault(u32),
}

struct Bent {
    fake: FakeRuntime,
    asked: Answers,
    wrong: BTreeMap<SeqHandle, Wrong>,
}

impl Runtime for Bent {
    fn describe(&self) -> &Descriptor {
        self.fake.describe()
    }
    fn is_eos(&self, token: u32) -> bool {
        self.fake.is_eos(token)
    }
    fn seq_create(&mut self) -> Result<SeqHandle, RuntimeError> {
        self.fake.seq_create()
    }
    fn seq_free(&mut self, sequence: SeqHandle) {
        self.fake.seq_free(sequence);
    }
    fn seq_len(&self, sequence: SeqHandle) -> u64 {
        self.fake.seq_len(sequence)
    }
    fn cells_released(&self, sequences: &[SeqHandle]) -> u64 {
        self.fake.cells_released(sequences)
    }
    fn cells_to_grow(&self, growths: &[SeqGrowth], leaving: &[SeqHandle]) -> u64 {
        self.fake.cells_to_grow(growths, leaving)
    }
    fn cells_resting(&self) -> Option<u64> {
        self.fake.cells_resting()
    }
    fn seq_rest(&mut self, sequence: SeqHandle) {
        self.fake.seq_rest(sequence);
    }
    fn seq_copy(&mut self, source: SeqHandle, target: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        self.fake.seq_copy(source, target, len)
    }
    fn seq_truncate(&mut self, sequence: SeqHandle, len: u64) -> Result<(), RuntimeError> {
        self.fake.seq_truncate(sequence, len)
    }
    fn seq_export(&mut self, sequence: SeqHandle, len: u64, encoding: u8) -> Result<Vec<u8>, RuntimeError> {
        self.fake.seq_export(sequence, len, encoding)
    }
    fn seq_import(&mut self, sequence: SeqHandle, payload: &[u8]) -> Result<u64, RuntimeError> {
        self.fake.seq_import(sequence, payload)
    }
    fn mem_counters(&self) -> MemCounters {
        self.fake.mem_counters()
    }
    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.fake.vocabulary()
    }
    fn step(&mut self, feeds: &[Feed<'_>], answers: &mut Answers) -> Result<(), RuntimeError> {
        self.fake.step(feeds, &mut self.asked)?;
        let narrow = feeds.iter().any(|feed| matches!(self.wrong.get(&feed.sequence), Some(Wrong::Narrow)));
        answers.clear(VOCAB as usize - usize::from(narrow));
        for (feed, answer) in feeds.iter().zip(self.asked.as_slice()) {
            match (self.wrong.remove(&feed.sequence), *answer) {
                (Some(Wrong::Token(token)), _) => answers.push_pick(Pick { token, logprobs: None }),
                (Some(Wrong::Narrow), _) => {
                    answers.push_rows(1);
                }
                (Some(Wrong::Fault(code)), _) => answers.push_fault(code),
                (Some(Wrong::Row), _) => {
                    let row = self.fake.row_for(self.fake.contents(feed.sequence).expect("it was just fed"));
                    answers.push_rows(1).copy_from_slice(&row);
                }
                (None, Answer::Nothing) => answers.push_nothing(),
                (None, Answer::Picked(pick)) => answers.push_pick(pick),
                (None, Answer::Fault(code)) => answers.push_fault(code),
                (None, Answer::Again) => answers.push_again(),
                (None, Answer::Rows { first, count }) => {
                    let rows = answers.push_rows(count);
                    for (to, index) in rows.chunks_mut(VOCAB as usize).zip(first..) {
                        to.copy_from_slice(self.asked.row(index).expect("it was just written"));
                    }
                }
            }
        }
        Ok(())
    }
}

/// A core, its executor, and sequences with the token that each is to be fed next.
type Started = (Core<Bent>, Arc<dyn ModelExecutor>, Vec<(Seq, u32)>);

/// A core over it, and sequences that have had their prompts; runtime sequences are numbered as they first ran, from 1.
fn started(n: u32) -> Started {
    let fake = pool(64, 0);
    let bent = Bent { fake, asked: Answers::new(), wrong: BTreeMap::new() };
    let core = Core::new(Executor::new(bent), CoreOptions::default()).expect("the options are legal");
    let executor = core.executor();
    let (greedy, mut rows) = (Logits::greedy(), Vec::new());
    let chunk = Chunk::new(0, 5, 5).expect("it is one");
    let seqs = (0..n).map(|salt| {
        let seq = executor.admit(&Admission::of(&prompt(5, salt), 64)).expect("there is room");
        executor.run(&[Work::Prefill { seq, chunk, whole: true, logits: &greedy }], &mut rows).expect("there is room");
        (seq, token(&rows[0]))
    });
    let seqs = seqs.collect();
    (core, executor, seqs)
}

fn answer(core: &Core<Bent>, wrong: &[(SeqHandle, Wrong)]) {
    core.inspect(|executor| executor.primitives_mut().wrong.extend(wrong.iter().copied()));
}

const CONTRACT: Fault = Fault { code: FaultCode::Contract, state: FaultState::Lost, detail: 0 };

/// a breach is that item's trouble; full logits for a token that was permitted to be selected are none.
#[test]
fn xs_48_answers_that_break_the_contract_are_faults_of_their_rows() {
    let (core, executor, seqs) = started(6);
    let (plain, full) = (Logits::greedy(), Logits::Full);
    let mut allowed = vec![1u8; VOCAB as usize];
    allowed[17] = 0;
    let masked =
        Logits::Greedy { mask: Some(TokenMask::new(allowed.as_slice())), penalty: 1.0, penalised: Arc::from([]) };
    let decode = |index: usize, logits| {
        let (seq, token) = seqs[index];
        Work::Decode { seq, at: 5, token, logits }
    };
    // A token for a full row; an id past the vocabulary; one that is masked; a full row for a token; and one that is well.
    let wrong = [(1, Wrong::Token(5)), (2, Wrong::Token(VOCAB)), (3, Wrong::Token(17)), (4, Wrong::Row)];
    answer(&core, &wrong);
    let work = [decode(0, &full), decode(1, &plain), decode(2, &masked), decode(3, &plain), decode(4, &plain)];
    let mut rows: Vec<Row> = Vec::new();
    executor.run(&work, &mut rows).expect("it was submitted");
    for row in &rows[..3] {
        assert_eq!((&row.out, row.ran.len()), (&Err(CONTRACT), 0));
    }
    for (row, salt) in rows[3..].iter().zip(3..) {
        assert_eq!(token(row), text(&prompt(5, salt), 2)[1], "accepted, and undisturbed");
    }
    // A row that is a value short.
    answer(&core, &[(6, Wrong::Narrow)]);
    let next = token(&rows[4]);
    let healthy = Work::Decode { seq: seqs[4].0, at: 6, token: next, logits: &plain };
    executor.run(&[decode(5, &full), healthy], &mut rows).expect("it was submitted");
    assert_eq!((&rows[0].out, token(&rows[1])), (&Err(CONTRACT), text(&prompt(5, 4), 3)[2]));
    assert_eq!(executor.stats().faults[FaultCode::Contract as usize], 4);
    // What is lost can only be given up.
    for index in [0, 1, 2, 5] {
        let seq = seqs[index].0;
        assert_eq!(bad(executor.run(&[decode(index, &plain)], &mut rows)).0, Bad::Faulted);
        assert_eq!(bad(executor.close(seq, End::Completed { prompt: 5, output: 1 })).0, Bad::Faulted);
        assert_eq!(bad(executor.truncate(seq, 5)).0, Bad::Faulted);
        executor.close(seq, End::Failed).expect("it can be given up");
    }
    core.inspect(|executor| executor.audit()).expect("the engine is sound");
}

/// seven rows are, bit for bit, those of a run without the one that faults.
#[test]
fn xs_59_fault_of_one_item_changes_no_other_row() {
    let bits = |row: &Row| match &row.out {
        Ok(Out::Logits { rows: 1, data }) => data.iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
        other => panic!("no row: {other:?}"),
    };
    let full = Logits::Full;
    let decodes = |seqs: &[(Seq, u32)], left_out: Option<usize>| -> Vec<Work<'_>> {
        let kept = seqs.iter().enumerate().filter(|(index, _)| left_out != Some(*index));
        kept.map(|(_, &(seq, token))| Work::Decode { seq, at: 5, token, logits: &full }).collect()
    };
    for faulty in 0..8 {
        let (_core, undisturbed, seqs) = started(8);
        let mut truth = Vec::new();
        undisturbed.run(&decodes(&seqs, Some(faulty)), &mut truth).expect("there is room");
        let (core, executor, seqs) = started(8);
        answer(&core, &[(faulty as SeqHandle + 1, Wrong::Fault(4))]);
        let mut rows = Vec::new();
        executor.run(&decodes(&seqs, None), &mut rows).expect("it was submitted");
        let fault = Fault { code: FaultCode::Device, state: FaultState::Lost, detail: 4 };
        assert_eq!(rows.remove(faulty).out, Err(fault));
        assert_eq!(rows.iter().map(bits).collect::<Vec<_>>(), truth.iter().map(bits).collect::<Vec<_>>());
        // And so are later results.
        let mut later = Vec::new();
        for (index, salt) in (0..8).zip(0..).filter(|(index, _)| *index != faulty) {
            let said = text(&prompt(5, salt), 3);
            let work = Work::Decode { seq: seqs[index].0, at: 6, token: said[1], logits: &Logits::greedy() };
            executor.run(&[work], &mut later).expect("there is room");
            assert_eq!(token(&later[0]), said[2]);
        }
    }
}
