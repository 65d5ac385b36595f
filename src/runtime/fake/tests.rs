#![forbid(unsafe_code)]
use super::*;
use crate::record::constant::encoding;
use crate::runtime::{Answer, SamplingSupport};
use crate::sample::argmax;

fn feed(sequence: SeqHandle, tokens: &[u32]) -> Feed<'_> {
    Feed { sequence, input: Input::Tokens(tokens), want: Want::Nothing }
}

fn holding(fake: &mut FakeRuntime, tokens: &[u32]) -> SeqHandle {
    let sequence = fake.seq_create().expect("slots are unlimited");
    if !tokens.is_empty() {
        fake.step(&[feed(sequence, tokens)], &mut Answers::new()).expect("there is room");
    }
    sequence
}

fn head_only() -> FakeRuntime {
    FakeRuntime::with(|options| options.descriptor.truncate_partial = false)
}

/// The vectors of R-31.
/// `token_for` and `row_for` are those of the list.
#[test]
fn tokens_and_rows_are_the_published_ones() {
    let fake = FakeRuntime::default();
    let next: [(&[u32], u32); 5] =
        [(&[1], 1009), (&[1, 2], 11552), (&[1, 2, 3], 18921), (&[10, 20, 30], 19927), (&[], 2574)];
    for (list, token) in next {
        assert_eq!(fake.token_for(list), token, "{list:?}");
    }
    let row = fake.row_for(&[1, 2]);
    assert_eq!(row.len(), 32000);
    for (logit, published) in row.iter().zip([0.472, 0.228, -0.016, -0.26]) {
        assert!((logit - published).abs() < 1e-6, "{logit} {published}");
    }
    assert_eq!(row[11552], 10.0);
    let mut list = vec![10, 20, 30];
    for token in [19927, 17910, 10995, 14421, 15192, 3993, 2816, 8225] {
        assert_eq!(fake.token_for(&list), token);
        list.push(token);
    }
}

/// R-31 through `step`, in every way of asking.
///
#[test]
fn rows_and_picks_of_a_step_are_those_of_the_list() {
    let mut fake = FakeRuntime::with(|options| options.descriptor.verify_rows = true);
    let (a, b, c) = (holding(&mut fake, &[1]), holding(&mut fake, &[]), holding(&mut fake, &[4, 5]));
    let mut answers = Answers::new();
    let greedy = Want::Token(SampleRequest::default());
    let feeds = [
        Feed { want: Want::LastRow, ..feed(a, &[2]) },
        Feed { want: greedy, ..feed(b, &[10, 20, 30]) },
        Feed { want: Want::EveryRow, ..feed(c, &[6, 7]) },
    ];
    fake.step(&feeds, &mut answers).expect("all of it is served");
    let expected = [
        Answer::Rows { first: 0, count: 1 },
        Answer::Picked(Pick { token: 19927, logprobs: None }),
        Answer::Rows { first: 1, count: 2 },
    ];
    assert_eq!(answers.as_slice(), expected);
    let rows: [&[u32]; 3] = [&[1, 2], &[4, 5, 6], &[4, 5, 6, 7]];
    for (index, list) in rows.into_iter().enumerate() {
        assert_eq!(answers.row(index), Some(&fake.row_for(list)[..]), "{list:?}");
    }
    assert_eq!(fake.contents(c), Some(&[4, 5, 6, 7][..]));
    //
    let lens: Vec<(usize, bool)> = fake.feeds().iter().map(|feed| (feed.len, feed.wants_row)).collect();
    assert_eq!(lens, [(1, false), (2, false), (1, true), (3, true), (2, true)]);
    assert_eq!(fake.idle_cells(), [0, 1, 0]);
}

/// what is picked inside equals what the row would have given.
#[test]
fn picks_inside_equal_picks_from_the_row() {
    let all = SamplingSupport { greedy: true, draws: true, shaping: true, logprobs: true };
    let mut fake = FakeRuntime::with(|options| {
        options.descriptor.vocab_size = 64;
        options.descriptor.sampling = all;
    });
    let bias = [(7, 9.5), (9, 9.5)];
    let mask = [0xFFFF_0000, 0x0000_FFFF];
    for position in 0..50 {
        let sampled = SampleRequest { temperature: 4.0, position, ..SampleRequest::default() };
        for request in [
            sampled,
            SampleRequest { top_k: 5, top_p: 0.8, ..sampled },
            SampleRequest { bias: &bias, logprobs: Some(3), ..sampled },
            SampleRequest { mask: Some(&mask), ..SampleRequest::default() },
            SampleRequest::default(),
        ] {
            let list = [position as u32, 3];
            let sequence = holding(&mut fake, &list[..1]);
            let mut answers = Answers::new();
            let wanted = Feed { want: Want::Token(request), ..feed(sequence, &list[1..]) };
            fake.step(&[wanted], &mut answers).expect("everything is served");
            let from_row = pick(&mut fake.row_for(&list), &request, &mut Scratch::new()).expect("something is allowed");
            assert_eq!(answers.as_slice(), [Answer::Picked(from_row)], "{request:?}");
            fake.seq_free(sequence);
        }
    }
}

/// R-37 and the like: a want that is not served moves nothing.
#[test]
fn unserved_wants_are_unsupported_and_move_nothing() {
    let mut fake = FakeRuntime::default();
    let (a, b) = (holding(&mut fake, &[1, 2]), holding(&mut fake, &[]));
    let draw = SampleRequest { temperature: 1.0, ..SampleRequest::default() };
    let logprobs = SampleRequest { logprobs: Some(0), ..SampleRequest::default() };
    let mut answers = Answers::new();
    for want in [Want::EveryRow, Want::Token(draw), Want::Token(logprobs)] {
        for _ in 0..2 {
            let feeds = [feed(a, &[3]), Feed { want, ..feed(b, &[4]) }];
            assert_eq!(fake.step(&feeds, &mut answers), Err(RuntimeError::Unsupported));
            assert_eq!((fake.seq_len(a), fake.seq_len(b), answers.as_slice().len()), (2, 0, 0));
        }
    }
    let media = Feed { sequence: a, input: Input::Media { handle: 1, offset: 0 }, want: Want::Nothing };
    assert_eq!(fake.step(&[media], &mut answers), Err(RuntimeError::Unsupported));
    assert_eq!(fake.step(&[feed(99, &[3])], &mut answers), Err(RuntimeError::UnknownSeq));
    fake.options.descriptor.verify_rows = true;
    let nine = Feed { want: Want::EveryRow, ..feed(a, &[0; 9]) };
    assert_eq!(fake.step(&[nine], &mut answers), Err(RuntimeError::Unsupported));
    assert_eq!(fake.seq_len(a), 2);
}

///
#[test]
fn copy_model_repeats_and_misses_where_it_should() {
    let copying = FakeRuntime::with(|options| options.copy_model = Some(CopyModel::default()));
    let hashing = FakeRuntime::default();
    assert_eq!(copying.token_for(&[10, 11, 12, 10, 13, 10]), 13);
    assert_eq!(copying.token_for(&[10, 11]), hashing.token_for(&[10, 11]));
    assert_eq!(copying.token_for(&[]), hashing.token_for(&[]));
    let missing = FakeRuntime::with(|options| options.copy_model = Some(CopyModel { miss_every: 3 }));
    assert_eq!(missing.token_for(&[1, 2, 1]), hashing.token_for(&[1, 2, 1]));
    assert_eq!(missing.token_for(&[1, 2, 3, 1]), 2);
}

/// one scripted id per row that is asked for, then the hash again; `EveryRow` passes scripts by.
#[test]
fn script_answers_row_by_row_and_then_ends() {
    let mut fake = FakeRuntime::with(|options| options.descriptor.verify_rows = true);
    let sequence = holding(&mut fake, &[1]);
    fake.script(sequence, &[77, 31999]);
    let mut answers = Answers::new();
    fake.step(&[Feed { want: Want::EveryRow, ..feed(sequence, &[2]) }], &mut answers).expect("rows are served");
    assert_eq!(answers.row(0).map(argmax), Some(11552));
    fake.step(&[feed(sequence, &[3])], &mut answers).expect("served");
    fake.step(&[Feed { want: Want::LastRow, ..feed(sequence, &[4]) }], &mut answers).expect("served");
    let row = answers.row(0).expect("a row was wanted");
    assert_eq!((row[77], row[0], row[31999]), (10.0, -1.0, -1.0));
    let greedy = Want::Token(SampleRequest::default());
    fake.step(&[Feed { want: greedy, ..feed(sequence, &[5]) }], &mut answers).expect("served");
    assert_eq!(answers.as_slice(), [Answer::Picked(Pick { token: 31999, logprobs: None })]);
    fake.step(&[Feed { want: greedy, ..feed(sequence, &[6]) }], &mut answers).expect("served");
    let token = fake.token_for(&[1, 2, 3, 4, 5, 6]);
    assert_eq!(answers.as_slice(), [Answer::Picked(Pick { token, logprobs: None })]);
    assert_eq!(fake.planned(sequence), 0);
}

/// A row that is not finite is the failure of its own lane, and the tokens are in the sequence.
#[test]
fn planted_nan_fails_one_pick_of_a_step() {
    let mut fake = FakeRuntime::default();
    let (a, b) = (holding(&mut fake, &[1]), holding(&mut fake, &[1]));
    fake.plant_row(a, &[0.0, f32::NAN]);
    let greedy = Want::Token(SampleRequest::default());
    let mut answers = Answers::new();
    let feeds = [Feed { want: greedy, ..feed(a, &[2]) }, Feed { want: greedy, ..feed(b, &[2]) }];
    fake.step(&feeds, &mut answers).expect("the step itself succeeds");
    assert_eq!(answers.as_slice(), [Answer::Fault(5), Answer::Picked(Pick { token: 11552, logprobs: None })]);
    assert_eq!(fake.seq_len(a), 2);
}

/// a planted failure comes first, is consumed, and moves nothing.
#[test]
fn planted_failure_strikes_once_and_moves_nothing() {
    let mut fake = FakeRuntime::default();
    let sequence = holding(&mut fake, &[1]);
    for error in [RuntimeError::Fault(3), RuntimeError::Capacity, RuntimeError::Fatal] {
        fake.fail_next_step(error);
        assert_eq!(fake.step(&[feed(99, &[2])], &mut Answers::new()), Err(error));
        assert_eq!(fake.step(&[feed(99, &[2])], &mut Answers::new()), Err(RuntimeError::UnknownSeq));
        assert_eq!(fake.seq_len(sequence), 1);
    }
}

/// RS-35: the head-only runtime cuts nowhere but at its ends.
#[test]
fn head_only_state_is_cut_at_its_ends_only() {
    let mut fake = head_only();
    assert!(fake.describe().recurrent);
    let (a, b) = (holding(&mut fake, &[1, 2, 3]), holding(&mut fake, &[9]));
    for _ in 0..2 {
        assert_eq!(fake.seq_copy(a, b, 2), Err(RuntimeError::OutOfBoundary));
        assert_eq!(fake.seq_truncate(a, 2), Err(RuntimeError::OutOfBoundary));
        assert_eq!(fake.seq_export(a, 2, encoding::LOSSLESS), Err(RuntimeError::OutOfBoundary));
        assert_eq!((fake.contents(a), fake.contents(b)), (Some(&[1, 2, 3][..]), Some(&[9][..])));
    }
    assert_eq!((fake.seq_boundary(a, 2), fake.seq_boundary(a, 3), fake.seq_boundary(a, 9)), (0, 3, 3));
    assert_eq!(fake.seq_copy(a, b, 3), Ok(()));
    assert_eq!(fake.contents(b), Some(&[1, 2, 3][..]));
    assert_eq!(fake.seq_truncate(a, 0), Ok(()));
    assert_eq!(fake.mem_counters().cells_used, 3);
}

/// RS-35 and: what an import refuses, and what a poisoned one leaves.
#[test]
fn import_takes_whole_words_into_an_empty_sequence() {
    let mut fake = FakeRuntime::default();
    let (full, empty) = (holding(&mut fake, &[1, 2]), holding(&mut fake, &[]));
    let payload = fake.seq_export(full, 1, encoding::LOSSLESS).expect("a cuttable runtime exports any length");
    assert_eq!(payload, [1, 0, 0, 0]);
    assert_eq!(fake.seq_export(full, 1, encoding::Q8), Err(RuntimeError::Unsupported));
    assert_eq!(fake.seq_import(full, &payload), Err(RuntimeError::OutOfBoundary));
    assert_eq!(fake.seq_import(empty, &payload[..3]), Err(RuntimeError::OutOfBoundary));
    assert_eq!(fake.seq_import(99, &payload), Err(RuntimeError::UnknownSeq));
    fake.poison_next_import();
    assert_eq!(fake.seq_import(empty, &payload), Err(RuntimeError::Fatal));
    assert_eq!(fake.seq_len(empty), 1);
    assert_eq!(fake.seq_truncate(empty, 0), Ok(()));
    assert_eq!(fake.seq_import(empty, &payload), Ok(1));
    assert_eq!(fake.token_for(fake.contents(empty).expect("it exists")), 1009);
}

/// RS-35, R-34: growth past the pool is refused whole.
#[test]
fn growth_past_the_pool_is_capacity_and_moves_nothing() {
    let mut fake = FakeRuntime::with(|options| options.descriptor.cells_total = 8);
    let (a, b) = (holding(&mut fake, &[1, 2, 3]), holding(&mut fake, &[4]));
    for _ in 0..2 {
        let feeds = [feed(a, &[5, 6]), feed(b, &[7, 8, 9])];
        assert_eq!(fake.step(&feeds, &mut Answers::new()), Err(RuntimeError::Capacity));
        assert_eq!((fake.seq_len(a), fake.seq_len(b), fake.mem_counters().cells_used), (3, 1, 4));
    }
    fake.step(&[feed(a, &[5, 6]), feed(b, &[7, 8])], &mut Answers::new()).expect("exactly full is legal");
    assert_eq!(fake.seq_import(holding(&mut FakeRuntime::default(), &[]), &[0; 4]), Err(RuntimeError::OutOfBoundary));
    let c = fake.seq_create().expect("slots are unlimited");
    assert_eq!(fake.seq_import(c, &[0; 4]), Err(RuntimeError::Capacity));
    assert_eq!(fake.seq_copy(a, c, 1), Err(RuntimeError::Capacity));
    // A copy counts the cells that its target gives up.
    assert_eq!(fake.seq_copy(a, b, 3), Ok(()));
    assert_eq!((fake.seq_len(b), fake.mem_counters().cells_used), (3, 8));
}

/// RS-36, R-8.
#[test]
fn shared_cells_are_released_when_their_last_holder_goes() {
    let mut fake = FakeRuntime::with(|options| options.descriptor.copy_shares_cells = true);
    let entry = holding(&mut fake, &[1, 2, 3, 4, 5, 6]);
    let lane = holding(&mut fake, &[9, 9]);
    assert_eq!(fake.seq_copy(entry, lane, 4), Ok(()));
    assert_eq!(fake.mem_counters().cells_used, 6);
    assert_eq!(fake.cells_released(&[entry]), 2);
    assert_eq!(fake.cells_released(&[lane]), 0);
    assert_eq!(fake.cells_released(&[entry, lane]), 6);
    assert_eq!(fake.cells_released(&[entry, entry]), 2);
    fake.seq_free(entry);
    assert_eq!((fake.mem_counters().cells_used, fake.cells_released(&[lane])), (4, 4));
    assert_eq!(fake.contents(lane), Some(&[1, 2, 3, 4][..]));
    fake.step(&[feed(lane, &[7])], &mut Answers::new()).expect("unbounded");
    fake.seq_free(lane);
    fake.seq_free(lane);
    assert_eq!(fake.mem_counters(), MemCounters { allocated_bytes: 0, cells_used: 0, cells_total: 0 });
}

///
#[test]
fn handles_ascend_and_slots_run_out() {
    let mut fake = FakeRuntime::with(|options| options.descriptor.max_seqs = 2);
    assert_eq!((fake.seq_create(), fake.seq_create()), (Ok(1), Ok(2)));
    assert_eq!(fake.seq_create(), Err(RuntimeError::Capacity));
    fake.seq_free(1);
    assert_eq!(fake.seq_create(), Ok(3));
    assert_eq!((fake.seq_len(1), fake.seq_truncate(1, 0)), (0, Err(RuntimeError::UnknownSeq)));
}

/// The strictness that the header declares.
#[test]
fn steps_that_no_executor_should_make_are_fatal() {
    let mut fake = FakeRuntime::with(|options| options.descriptor.max_seq_len = 4);
    let sequence = holding(&mut fake, &[1, 2, 3]);
    let bad: [&[Feed<'_>]; 4] = [
        &[feed(sequence, &[])],
        &[feed(sequence, &[32000])],
        &[feed(sequence, &[1, 2])],
        &[feed(sequence, &[1]), feed(sequence, &[2])],
    ];
    for feeds in bad {
        assert_eq!(fake.step(feeds, &mut Answers::new()), Err(RuntimeError::Fatal));
        assert_eq!(fake.seq_len(sequence), 3);
    }
}

/// what only asks answers the same twice, and answers for sequences that do not exist.
#[test]
fn questions_are_pure_and_take_unknown_sequences() {
    for partial in [true, false] {
        let mut fake = FakeRuntime::with(|options| {
            options.descriptor.truncate_partial = partial;
            options.descriptor.cells_total = 10;
        });
        let described = fake.describe().clone();
        let held = holding(&mut fake, &[1, 2, 3, 4]);
        let unknown = held + 100;
        let ask = |fake: &FakeRuntime| {
            let boundaries = [0, 3, 4, 9].map(|cap| fake.seq_boundary(held, cap));
            let ends = [31_998, 31_999].map(|token| fake.is_eos(token));
            (
                fake.seq_len(held),
                fake.seq_len(unknown),
                boundaries,
                fake.seq_boundary(unknown, 5),
                ends,
                fake.mem_counters(),
            )
        };
        let first = ask(&fake);
        assert_eq!(first, ask(&fake));
        let boundaries = if partial { [0, 3, 4, 4] } else { [0, 0, 4, 4] };
        assert_eq!((first.0, first.1, first.2, first.3, first.4), (4, 0, boundaries, 0, [false, true]));
        assert_eq!((first.5.cells_used, first.5.cells_total), (4, 10));
        assert_eq!(*fake.describe(), described, "constant");
    }
}
