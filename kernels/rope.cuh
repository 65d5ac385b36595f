// One element of a rotated head.
#pragma once
#include "common.cuh"

// Element `i` of a head whose first 2 * pairs dimensions turn in pairs: (2p, 2p + 1) when interleaved, else (p, p + pairs).
//   (a, b) -> (a cos - b sin, a sin + b cos)
// `angles`: the cosines of all pairs, then their sines.
DEV f32 rotated(Ptr<const f32> head, u32 i, Ptr<const f32> angles, u32 pairs, u32 interleaved) {
    f32 own = head[i];
    if (i >= 2 * pairs) return own;
    u32 pair = interleaved ? i / 2 : i % pairs;
    bool is_first = interleaved ? i % 2 == 0 : i < pairs;
    u32 partner = interleaved ? i ^ 1 : is_first ? i + pairs : i - pairs;
    f32 other = head[partner], cosine = angles[pair], sine = angles[pairs + pair];
    return is_first ? own * cosine - other * sine : own * cosine + other * sine;
}
