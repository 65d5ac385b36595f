//! No decoding lane waits for a prompt: what lies between two of its tokens is counted in tokens fed, not in time.

use std::collections::BTreeMap;

use ictus::driver::{Driver, DriverOptions, EventKind, Request, RequestId};

use super::fake;
use super::random::Random;

const TICK_TOKENS: u32 = 512;
const LONG: usize = 64 * 1024;

#[test]
fn decode_gap_beside_a_64k_prompt_is_at_most_one_and_a_half_ticks() {
    let mut random = Random::new("decode_gap_beside_a_64k_prompt_is_at_most_one_and_a_half_ticks");
    let engine = fake(|options| {
        options.descriptor.max_seq_len = 2 * LONG as u64;
        options.descriptor.prefill_step_tokens = 256;
        options.descriptor.copy_shares_cells = true;
        // Enough for the long prompt, and short for what comes beside it.
        options.descriptor.cells_total = LONG as u64 + 6000;
        options.record = true;
    });
    let options = DriverOptions { max_lanes: 8, tick_tokens: TICK_TOKENS, ..DriverOptions::default() };
    let mut driver = Driver::new(engine, options).expect("a driver");
    let decoding: Vec<RequestId> = (0..4)
        .map(|at| {
            let prompt: Vec<u32> = (at..at + 30).collect();
            let request = Request { max_tokens: 2000, ignore_eos: true, priority: 1, ..Request::tokens(prompt) };
            driver.submit(request).expect("taken")
        })
        .collect();
    for _ in 0..4 {
        driver.step();
    }
    let long = driver.submit(Request { max_tokens: 1, ..Request::tokens(vec![3; LONG]) }).expect("taken");
    // Tokens fed so far when each lane last said something.
    let mut last: BTreeMap<RequestId, usize> = BTreeMap::new();
    let (mut worst, mut gaps, mut read, mut fed) = (0, 0, 0, 0);
    'ticks: loop {
        driver.step();
        let feeds = driver.engine().primitives().feeds();
        fed += feeds[read..].iter().map(|feed| feed.len).sum::<usize>();
        read = feeds.len();
        while let Some(event) = driver.next_event() {
            if event.request == long && matches!(event.kind, EventKind::Finished { .. }) {
                break 'ticks;
            }
            if matches!(event.kind, EventKind::Tokens(_))
                && decoding.contains(&event.request)
                && let Some(before) = last.insert(event.request, fed)
            {
                worst = worst.max(fed - before);
                gaps += 1;
            }
        }
        // Others come and go beside it.
        if random.below(3) == 0 {
            let prompt: Vec<u32> = (0..1 + random.below(900)).map(|_| random.below(64) as u32).collect();
            let _ = driver.submit(Request { max_tokens: 1 + random.below(20) as u64, ..Request::tokens(prompt) });
        }
    }
    println!("{gaps} gaps, the worst of {worst} tokens; a tick has {TICK_TOKENS}");
    assert!(gaps > 400, "the lanes went on while the prompt ran: {gaps} gaps");
    assert!(worst <= TICK_TOKENS as usize * 3 / 2, "{worst} tokens lay between two of a lane");
}
