// The keys of draws and of log-probabilities, and how many of the best entries each looks at.
#pragma once
#include "head.cuh"

constexpr u32 HEAD_OF_DRAWS = 2048;
constexpr u32 HEAD_OF_LOGPROBS = 32;
// Probabilities are at most 1, whose bits have the two highest ones clear.
constexpr u32 FIRST_OF_PROBABILITIES = 1;

// Keys are the bits of probabilities: of numbers from 0 on bits have the order of the numbers.
struct Probabilities {
    Ptr<const f32> values;
    DEV_MEMBER u32 at(u32 i) const { return bits_of(values[i]); }
};

// Keys with the order of numbers: negative ones have all their bits turned. Both zeros are one number; NaN has no key.
struct Logits {
    Ptr<const f32> logits;
    DEV_MEMBER u32 at(u32 i) const {
        f32 x = logits[i];
        if (is_nan(x)) return 0;
        u32 bits = bits_of(x == 0.0f ? 0.0f : x);
        return bits >> 31 ? ~bits : bits | 0x80000000u;
    }
};
