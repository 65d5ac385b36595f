//! What rows hold, and what a fault of one item is to the others.

use std::sync::Arc;

use ictus::executor::Executor;
use ictus::facade::{CoreOptions, FaultCode, FaultState, Logits, Out, Row, Seq, TokenMask, Work};

use crate::host::{Host, VOCAB, host, pool_with, prompt, text, token};

fn greedy(mask: Option<&[u8]>, penalty: f32, penalised: &[u32]) -> Logits {
    Logits::Greedy { mask: mask.map(TokenMask::new), penalty, penalised: Arc::from(penalised) }
}

fn plant(host: &Host, index: u64, row: &[f32]) {
    host.core.inspect(|executor| executor.primitives_mut().plant_row(index, row));
}

/// a row without a candidate is that row's trouble.
#[test]
fn xs_49_row_without_a_finite_candidate_is_said_to_be_one() {
    let host = Host::over(pool_with(16, 8, |_| {}));
    let started: Vec<(Seq, u32)> = (0..3).map(|salt| host.started(&prompt(5, salt), 32)).collect();
    let nothing = greedy(Some(&[0; VOCAB as usize]), 1.0, &[]);
    let plain = Logits::greedy();
    let decode = |index: usize, at, token, logits| Work::Decode { seq: started[index].0, at, token, logits };
    // Runtime sequences are numbered as they first ran. What the step could not pick from is asked for again.
    for _ in 0..2 {
        plant(&host, 2, &[f32::NAN; VOCAB as usize]);
    }
    let work =
        [decode(0, 5, started[0].1, &plain), decode(1, 5, started[1].1, &plain), decode(2, 5, started[2].1, &nothing)];
    let mut rows: Vec<Row> = Vec::new();
    host.executor.run(&work, &mut rows).expect("there is room");
    assert_eq!(token(&rows[0]), text(&prompt(5, 0), 2)[1]);
    assert_eq!((&rows[1].out, &rows[2].out), (&Ok(Out::NoFinite), &Ok(Out::NoFinite)));
    assert_eq!(host.executor.stats().non_finite_rows, 1);
    // Both have advanced and live.
    for (index, salt) in [(1, 1), (2, 2)] {
        let said = text(&prompt(5, salt), 3);
        let row = host.one(decode(index, 6, said[1], &plain)).expect("it lives");
        assert_eq!(token(&row), said[2]);
    }
    // Some values are not finite: the largest that is.
    let mut row = [f32::NAN; VOCAB as usize];
    (row[7], row[9], row[11]) = (1.0, 2.0, f32::INFINITY);
    plant(&host, 1, &row);
    plant(&host, 1, &row);
    let said = text(&prompt(5, 0), 3);
    assert_eq!(token(&host.one(decode(0, 6, said[1], &plain)).expect("there is room")), 9);
    assert_eq!(host.executor.stats().non_finite_rows, 2);
}

/// mask and penalty decide, and full rows are full.
#[test]
fn xs_48_rows_hold_what_was_asked() {
    let host = host(16, 8);
    let (seq, next) = host.started(&prompt(5, 1), 32);
    let full = Logits::Full;
    let row = host.one(Work::Decode { seq, at: 5, token: next, logits: &full }).expect("there is room");
    let Ok(Out::Logits { rows: 1, data }) = row.out else { panic!("a row: {row:?}") };
    let all: Vec<u32> = prompt(5, 1).into_iter().chain([next]).collect();
    let expected = host.core.inspect(|executor| executor.primitives().row_for(&all));
    assert_eq!(data, expected);
    let best = text(&prompt(5, 1), 2)[1];
    let mut allowed = vec![1u8; VOCAB as usize];
    allowed[best as usize] = 0;
    let second = (0..VOCAB)
        .filter(|&id| id != best)
        .max_by(|&a, &b| data[a as usize].total_cmp(&data[b as usize]).then(b.cmp(&a)));
    host.executor.truncate(seq, 5).expect("it is idle");
    let masked = greedy(Some(&allowed), 1.0, &[]);
    let row = host.one(Work::Decode { seq, at: 5, token: next, logits: &masked }).expect("there is room");
    assert_eq!(Some(token(&row)), second);
    host.executor.truncate(seq, 5).expect("it is idle");
    let punished = greedy(None, 1e6, &[best, best]);
    let row = host.one(Work::Decode { seq, at: 5, token: next, logits: &punished }).expect("there is room");
    assert_eq!(Some(token(&row)), second);
    for wrong in [greedy(None, 0.0, &[1]), greedy(None, f32::NAN, &[1]), greedy(None, 1.5, &[VOCAB])] {
        let refused = host.one(Work::Decode { seq, at: 6, token: 1, logits: &wrong });
        assert_eq!(crate::host::bad(refused).0, ictus::facade::Bad::Policy);
    }
}

/// a verification has the rows of one decode after another, and what it commits is cut to what was accepted.
#[test]
fn xs_52_verified_rows_are_those_of_decodes() {
    for verifies in [true, false] {
        let host = Host::over(pool_with(16, 8, |options| options.descriptor.verify_rows = verifies));
        let question = prompt(5, 1);
        let said = text(&question, 16);
        let (seq, _) = host.started(&question, 64);
        let wrong = (said[3] + 1) % (VOCAB - 1);
        let draft = [said[0], said[1], said[2], wrong];
        let row = host.one(Work::Verify { seq, at: 5, tokens: &draft, logits: &host.greedy }).expect("there is room");
        let Ok(Out::Tokens(tokens)) = row.out else { panic!("tokens: {row:?}") };
        assert_eq!((row.ran, &tokens[..3]), (5..9, &said[1..4]));
        host.executor.truncate(seq, 8).expect("it is idle");
        assert_eq!(token(&host.decode(seq, 8, said[3]).expect("there is room")), said[4]);
        // More tokens than a feed may want rows of.
        host.executor.truncate(seq, 5).expect("it is idle");
        let row = host.one(Work::Verify { seq, at: 5, tokens: &said[..15], logits: &Logits::Full });
        let Ok(Out::Logits { rows: 15, data }) = row.expect("there is room").out else { panic!("fifteen rows") };
        for (row, known) in data.chunks(VOCAB as usize).zip(1..) {
            let all: Vec<u32> = question.iter().chain(&said[..known]).copied().collect();
            assert_eq!(row, host.core.inspect(|executor| executor.primitives().row_for(&all)));
        }
        assert_eq!(host.executor.frontier(seq), Ok(20));
    }
}

/// a step that fails before anything moved leaves every sequence as it was.
#[test]
fn xs_59_fault_of_a_step_leaves_sequences_intact() {
    let host = Host::with(Executor::new(pool_with(16, 8, |_| {})), CoreOptions::default());
    let started: Vec<(Seq, u32)> = (0..8).map(|salt| host.started(&prompt(5, salt), 32)).collect();
    let work: Vec<Work<'_>> =
        started.iter().map(|&(seq, token)| Work::Decode { seq, at: 5, token, logits: &host.greedy }).collect();
    host.core.inspect(|executor| executor.primitives_mut().fail_next_step(ictus::runtime::RuntimeError::Fault(7)));
    let mut rows = Vec::new();
    host.executor.run(&work, &mut rows).expect("it was submitted");
    for row in &rows {
        let fault = row.out.as_ref().expect_err("the step failed");
        assert_eq!((fault.code, fault.state, fault.detail), (FaultCode::Device, FaultState::Intact, 7));
    }
    host.executor.run(&work, &mut rows).expect("nothing moved");
    for (row, salt) in rows.iter().zip(0..) {
        assert_eq!(token(row), text(&prompt(5, salt), 2)[1]);
    }
    assert_eq!(host.executor.stats().faults[FaultCode::Device as usize], 8);
    host.audit();
}
