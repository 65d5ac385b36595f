#![forbid(unsafe_code)]
//! The exact arithmetic of narrowing.

use super::*;

fn evidence(entries: &[(u64, u64)]) -> Blocked {
    let domains = Domain::ALL;
    let short: Vec<Shortfall> = entries
        .iter()
        .zip(domains)
        .map(|(&(need, free), domain)| Shortfall { domain, lack: Lack::Now, need, free, total: need, max: need })
        .collect();
    Blocked::on(Remedy::Wait, &short, &core(1, 1, 1).capacity().now())
}

/// A width, entries of need and free, and the width to try next.
type Case = (usize, &'static [(u64, u64)], Option<usize>);

///
#[test]
fn xs_35_widths_are_those_of_the_table() {
    let table: &[Case] = &[
        (0, &[], None),
        (1, &[], None),
        (1, &[(50, 20)], None),
        (2, &[], Some(1)),
        (3, &[], Some(2)),
        (5, &[], Some(3)),
        (300, &[], Some(150)),
        (8, &[(8, 7)], Some(6)),
        (96, &[(50, 40)], Some(72)),
        (96, &[(50, 20)], Some(38)),
        (96, &[(50, 0)], Some(1)),
        (96, &[(50, 40), (30, 10)], Some(32)),
        (4096, &[(1 << 40, (1 << 40) - 1)], Some(3072)),
        (1000, &[(10, 10)], Some(500)),
    ];
    for &(tokens, entries, expected) in table {
        assert_eq!(evidence(entries).narrower(tokens), expected, "{tokens} tokens, need and free {entries:?}");
    }
}

///
#[test]
fn xs_35_a_narrower_width_is_at_least_one_and_at_most_three_quarters() {
    let counts = [0, 1, 2, 3, 7, 50, 1 << 20, u64::MAX / 3, u64::MAX - 1, u64::MAX];
    for tokens in (2..300).chain([4096, 8192, usize::MAX / 2, usize::MAX]) {
        for need in counts {
            for free in counts {
                let width = evidence(&[(need, free)]).narrower(tokens).expect("wider than one");
                assert!(width >= 1 && width <= (tokens - tokens.div_ceil(4)).max(1), "{tokens}: {need} {free}");
                assert!(width < tokens);
            }
        }
    }
    // So a chunk of 8192 is at its end after 28 steps.
    let most = evidence(&[(1 << 40, (1 << 40) - 1)]);
    let mut steps = 0;
    let mut width = 8192;
    while let Some(narrower) = most.narrower(width) {
        width = narrower;
        steps += 1;
    }
    assert!(width == 1 && steps <= 28, "{steps} steps");
}
