//! What is noted in a section and run behind it: memory that goes meanwhile, and graphs of more shapes than are kept.

use ictus::backend::cuda::CudaBackend;
use ictus::backend::{Again, Backend, Gate, KvShape, Picked, Span};
use ictus::runtime::{Answers, Feed, GraphCounts, Input, ModelRuntime, PagedOptions, SeqHandle, Want};
use ictus::sample::SampleRequest;

use super::*;

/// Rows of `width` columns, written.
fn rows(backend: &CudaBackend, width: usize, values: &[f32]) -> <CudaBackend as Backend>::Buffer {
    let mut buffer = backend.buffer(width);
    backend.resize(&mut buffer, values.len() / width).expect("memory");
    backend.write(&mut buffer, 0, values).expect("it works");
    buffer
}

/// Matrices, vectors and buffers that a section names may go before it is over: the operations find what they named, and then it is freed.
#[test]
fn cuda_memory_that_goes_in_a_section_is_freed_behind_it() {
    let Some(driver) = simulated() else { return };
    let backend = CudaBackend::new(0).expect("a device");
    let mut random = Random::new("cuda sections");
    let weight = weights::plain(48, 32, &weights::values(&mut random, 48 * 32));
    let norm = weights::plain(1, 48, &weights::values(&mut random, 48));
    let inputs = weights::values(&mut random, 3 * 32);
    let mut out = rows(&backend, 48, &[0.0; 3 * 48]);
    // A program's memory does not move, or graphs would be forgotten.
    let mut run = |is_section: bool, goes: bool| {
        let (matrix, vector) = (backend.matrix(&weight).expect("a matrix"), backend.vector(&norm).expect("a vector"));
        let x = rows(&backend, 32, &inputs);
        let mut wide = rows(&backend, 48, &[0.0; 3 * 48]);
        let before = driver.statistics();
        if is_section {
            backend.part_begin(Again::Keep);
        }
        backend.linear(&x, &matrix, None, &mut wide);
        backend.gate(&mut out, &wide, Gate::Silu);
        backend.add(&mut out, &wide);
        backend.rms_norm_in_place(&mut out, &vector, 1e-5);
        backend.add(&mut out, &wide);
        let noted = driver.statistics();
        assert_eq!(noted.launch_calls > before.launch_calls, !is_section, "noted, not launched");
        let kept = (!goes).then_some((matrix, vector, x, wide));
        if is_section && goes {
            assert_eq!(driver.statistics().live_allocations, noted.live_allocations, "named still");
        }
        backend.part_end();
        if goes {
            assert_eq!(driver.statistics().live_allocations, noted.live_allocations - 4, "freed behind it");
        }
        let mut got = vec![0.0; 3 * 48];
        backend.read(&out, 0, &mut got).expect("the device lives");
        assert_eq!(backend.health(), Ok(()));
        drop(kept);
        backend.write(&mut out, 0, &[0.5; 3 * 48]).expect("it works");
        weights::bits(&got)
    };
    run(false, false);
    let expected = run(false, false);
    for round in 0..4 {
        assert_eq!(run(true, true), expected, "round {round}");
    }
    // A backend that ends within a section frees what went in it.
    let matrix = backend.matrix(&weight).expect("a matrix");
    backend.part_begin(Again::Keep);
    drop(matrix);
    let last = rows(&backend, 32, &inputs);
    drop(out);
    drop(backend);
    drop(last);
    let left = driver.statistics();
    assert_eq!((left.live_allocations, left.leaked, left.live_contexts), (0, 0, 0), "{left:?}");
}

/// With two steps under way, what the second one named and lost in its section is freed behind all of their work, and each picks what is picked alone.
#[test]
fn cuda_memory_that_goes_with_steps_under_way_is_freed_behind_them() {
    let Some(driver) = simulated() else { return };
    let backend = CudaBackend::new(0).expect("a device");
    let shape =
        KvShape { layers: 1, n_kv_heads: 2, head_dim: 16, page_size_tokens: 16, pages: 8, element: KvType::F32 };
    let _pages = backend.pages(&shape).expect("a pool");
    backend.make_room_for_tables(4, 4).expect("room");
    let mut random = Random::new("cuda steps under way");
    let inputs = weights::values(&mut random, 3 * 32);
    let x = rows(&backend, 32, &inputs);
    let drawn = SampleRequest { temperature: 0.8, top_k: 90, top_p: 0.95, position: 9, ..Default::default() };
    let requests = [SampleRequest::default(), drawn, SampleRequest { logprobs: Some(5), position: 77, ..drawn }];
    let requests = requests.each_ref();
    let wanted = requests.map(Some);
    // 5000 entries are two parts.
    for vocab in [300, 5000] {
        let tables = [(); 2].map(|()| weights::plain(vocab, 32, &weights::values(&mut random, vocab * 32)));
        let mut logits = rows(&backend, vocab, &vec![0.0; 3 * vocab]);
        let alone = tables.each_ref().map(|table| {
            let matrix = backend.matrix(table).expect("a matrix");
            let mut out = [Picked::NotServed; 3];
            backend.linear(&x, &matrix, None, &mut logits);
            backend.pick_rows(&mut logits, &wanted, &mut out).expect("it works");
            out
        });
        assert!(alone.iter().flatten().all(|picked| matches!(picked, Picked::Done(Ok(_)))), "{alone:?}");
        assert_ne!(alone[0], alone[1]);
        for round in 0..4 {
            let matrices = tables.each_ref().map(|table| backend.matrix(table).expect("a matrix"));
            let before = driver.statistics().live_allocations;
            for matrix in matrices {
                assert!(backend.can_begin_picks(vocab, &requests));
                backend.part_begin(Again::Keep);
                backend.linear(&x, &matrix, None, &mut logits);
                drop(matrix);
                backend.begin_picks(&mut logits, &requests).expect("it begins");
                backend.part_end();
                backend.send_picks().expect("it is sent");
            }
            assert_eq!(driver.statistics().live_allocations, before - 2, "freed behind the sections");
            assert!(!backend.can_begin_picks(vocab, &requests), "two are under way");
            for alone in &alone {
                let mut out = [Picked::NotServed; 3];
                backend.take_picks(&wanted, &mut out).expect("it ends");
                assert_eq!(&out, alone, "{vocab} entries, round {round}");
            }
        }
    }
    drop((x, backend));
}

/// Pages that are copied in the middle of a section, and again behind a reading: the copies hold what was written before, whatever was noted by then.
#[test]
fn cuda_copies_of_pages_overtake_nothing_in_a_section() {
    let Some(_driver) = simulated() else { return };
    let backend = CudaBackend::new(0).expect("a device");
    let shape =
        KvShape { layers: 1, n_kv_heads: 2, head_dim: 16, page_size_tokens: 16, pages: 8, element: KvType::F32 };
    let mut pages = backend.pages(&shape).expect("a pool");
    backend.make_room_for_tables(4, 4).expect("room");
    let mut random = Random::new("cuda copies of pages");
    let (width, tokens) = (32, 16);
    let [keys, values] = [(); 2].map(|()| rows(&backend, width, &weights::values(&mut random, tokens * width)));
    let spans = [Span { first_row: 0, rows: tokens, start: 0, block_table: &[0] }];
    // Before the section, so that nothing of it is in the arena when pages are copied.
    backend.pass_begin(&[&spans]).expect("room");
    backend.part_begin(Again::No);
    backend.kv_write(&mut pages, 0, &keys, &values, &spans);
    backend.copy_pages(&mut pages, &[(0, 1)]);
    backend.copy_pages(&mut pages, &[(1, 2)]);
    assert_eq!(backend.health(), Ok(()));
    backend.copy_pages(&mut pages, &[(2, 3)]);
    backend.copy_pages(&mut pages, &[(3, 4)]);
    backend.part_end();
    backend.pass_end();
    let bytes = [0, 1, 2, 3, 4].map(|page| {
        let mut bytes = vec![0; 2 * tokens * width * size_of::<f32>()];
        backend.read_tokens(&pages, &[page], 0..tokens, &mut bytes).expect("it works");
        bytes
    });
    assert!(bytes[0].iter().any(|&byte| byte != 0));
    for page in 1..5 {
        assert!(bytes[page] == bytes[0], "page {page}");
    }
}

/// How many programs are remembered (`graphs.rs`).
const MOST_PROGRAMS: usize = 32;

/// One token for each of the first `count` sequences, then none of it ever was; the bits of the rows.
fn step(runtime: &mut ModelRuntime<CudaBackend>, sequences: &[SeqHandle], count: usize) -> Vec<u32> {
    let feed = |&sequence: &SeqHandle| Feed { sequence, input: Input::Tokens(&[9]), want: Want::LastRow };
    let feeds: Vec<Feed<'_>> = sequences[..count].iter().map(feed).collect();
    let mut answers = Answers::new();
    runtime.step(&feeds, &mut answers).expect("the step runs");
    sequences[..count].iter().for_each(|&sequence| runtime.seq_truncate(sequence, 4).expect("it is longer"));
    (0..count).flat_map(|row| answers.row(row).expect("a row")).map(|value| value.to_bits()).collect()
}

/// More shapes than are remembered: the one not used for longest goes, memory stays as it is, and no bit depends on it.
#[test]
fn cuda_graph_not_used_for_longest_goes_first() {
    let Some(driver) = simulated() else { return };
    let checkpoint = Checkpoint::open(model::file(SMALL)).expect("the model opens");
    let options = PagedOptions { pool_pages: 64, max_lanes: 64, ..model::options(KvType::F16, 16) };
    let make = |may_capture| {
        let mut runtime = model::runtime(backend(), &checkpoint, &options);
        runtime.allow_capture(may_capture);
        let ids: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 200).collect();
        let sequences: Vec<SeqHandle> = (0..36)
            .map(|i| {
                let sequence = runtime.seq_create().expect("a sequence");
                let feed = Feed { sequence, input: Input::Tokens(&ids[i..i + 4]), want: Want::Nothing };
                runtime.step(&[feed], &mut Answers::new()).expect("the step runs");
                sequence
            })
            .collect();
        (runtime, sequences)
    };
    let (mut plain, sequences) = make(false);
    let (mut graphed, own) = make(true);
    assert_eq!(sequences, own);
    let expected: Vec<Vec<u32>> = (1..=36).map(|count| step(&mut plain, &sequences, count)).collect();
    let mut run = |count: usize| {
        assert!(step(&mut graphed, &sequences, count) == expected[count - 1], "{count} sequences");
        graphed.take_graph_counts()
    };
    let (hit, miss) = (GraphCounts { hits: 1, misses: 0 }, GraphCounts { hits: 0, misses: 1 });
    for count in 1..=MOST_PROGRAMS {
        assert_eq!([run(count), run(count), run(count)], [miss, miss, hit], "{count}");
    }
    let full = driver.statistics();
    // A graph and an executable one each.
    assert_eq!(full.live_graphs, 2 * MOST_PROGRAMS as u64);
    assert_eq!(run(1), hit, "used again, and so the newest");
    for count in MOST_PROGRAMS + 1..=36 {
        assert_eq!([run(count), run(count), run(count)], [miss, miss, hit], "{count}");
        let now = driver.statistics();
        assert_eq!(now.live_graphs, full.live_graphs, "{count}");
        assert_eq!(
            (now.live_bytes, now.live_allocations, now.live_host_allocations, now.allocations),
            (full.live_bytes, full.live_allocations, full.live_host_allocations, full.allocations),
            "{count}"
        );
    }
    // Four came, so four went: 2 to 5. What is looked for and not found comes itself, and one more goes.
    assert_eq!([run(1), run(6), run(36)], [hit; 3]);
    assert_eq!([run(2), run(2), run(2)], [miss, miss, hit]);
    assert_eq!([run(8), run(7)], [hit, miss], "7 was the oldest then");
    drop((plain, graphed));
    let left = driver.statistics();
    assert_eq!((left.live_graphs, left.live_allocations, left.live_host_allocations), (0, 0, 0), "{left:?}");
}
