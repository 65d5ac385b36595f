#![forbid(unsafe_code)]
//! Sixteen lanes as two vectors, where lanes meet: softmax and merging.

use super::super::pages::SIDE;
use super::super::simd::{LANES, Simd};

/// Sixteen numbers.
pub(super) type Wide16<S> = [<S as Simd>::V; 2];

#[inline(always)]
pub(super) fn splat<S: Simd>(s: S, x: f32) -> Wide16<S> {
    [s.splat(x), s.splat(x)]
}

#[inline(always)]
pub(super) fn load<S: Simd>(s: S, from: &[f32; SIDE]) -> Wide16<S> {
    let halves = from.as_chunks::<LANES>().0;
    [s.load(&halves[0]), s.load(&halves[1])]
}

#[inline(always)]
pub(super) fn store<S: Simd>(s: S, v: Wide16<S>, to: &mut [f32; SIDE]) {
    let halves = to.as_chunks_mut::<LANES>().0;
    s.store(v[0], &mut halves[0]);
    s.store(v[1], &mut halves[1]);
}

#[inline(always)]
pub(super) fn add<S: Simd>(s: S, a: Wide16<S>, b: Wide16<S>) -> Wide16<S> {
    [s.add(a[0], b[0]), s.add(a[1], b[1])]
}

#[inline(always)]
pub(super) fn sub<S: Simd>(s: S, a: Wide16<S>, b: Wide16<S>) -> Wide16<S> {
    [s.sub(a[0], b[0]), s.sub(a[1], b[1])]
}

#[inline(always)]
pub(super) fn mul<S: Simd>(s: S, a: Wide16<S>, b: Wide16<S>) -> Wide16<S> {
    [s.mul(a[0], b[0]), s.mul(a[1], b[1])]
}

#[inline(always)]
pub(super) fn fma<S: Simd>(s: S, a: Wide16<S>, b: Wide16<S>, c: Wide16<S>) -> Wide16<S> {
    [s.fma(a[0], b[0], c[0]), s.fma(a[1], b[1], c[1])]
}

#[inline(always)]
pub(super) fn max<S: Simd>(s: S, a: Wide16<S>, b: Wide16<S>) -> Wide16<S> {
    [s.max(a[0], b[0]), s.max(a[1], b[1])]
}

#[inline(always)]
pub(super) fn pow2<S: Simd>(s: S, n: Wide16<S>) -> Wide16<S> {
    [s.pow2(n[0]), s.pow2(n[1])]
}

/// The sum of the lanes: `i` and `i + 8`, then in the order of `simd`.
#[inline(always)]
pub(super) fn sum<S: Simd>(s: S, v: Wide16<S>) -> f32 {
    s.sum(s.add(v[0], v[1]))
}

/// Up to sixteen numbers, the rest of the lanes 0.
#[inline(always)]
pub(super) fn load_part<S: Simd>(s: S, from: &[f32]) -> Wide16<S> {
    if let Some(from) = from.first_chunk() {
        return load(s, from);
    }
    let mut lanes = [0.0; SIDE];
    for (lane, &x) in lanes.iter_mut().zip(from) {
        *lane = x;
    }
    load(s, &lanes)
}

/// Writes as many lanes as fit.
#[inline(always)]
pub(super) fn store_part<S: Simd>(s: S, v: Wide16<S>, to: &mut [f32]) {
    if let Some(to) = to.first_chunk_mut() {
        return store(s, v, to);
    }
    let mut lanes = [0.0; SIDE];
    store(s, v, &mut lanes);
    for (x, &lane) in to.iter_mut().zip(&lanes) {
        *x = lane;
    }
}
