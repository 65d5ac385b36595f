// What log-probabilities of a picked token and of the best alternatives are made of (T-122).
//
// Shapes: logits [rows, vocab] f32, shaped; tokens [rows] u32; chosen [rows] f32: the token's logit, minus infinity past the row; ids, values
// [rows, 20]: the best entries and their logits, best first, NaN left out, ties to the lower id; counts [rows]: how many there are.
// Work: a block of 512 takes a row (head.cuh). The normaliser is sample_weights.cu's sum at temperature 1, whose logarithm the host takes in f64.
// Numerics: nothing is rounded here. Roof: a dozen passes over the row out of the cache.
#include "head.cuh"

constexpr u32 TOP = 20;
constexpr u32 HEAD = 32;

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

// grid: rows
KERNEL(512)
ictus_logprobs(Ptr<f32> RESTRICT chosen, Ptr<u32> RESTRICT ids, Ptr<f32> RESTRICT values, Ptr<u32> RESTRICT counts,
               Ptr<const f32> RESTRICT logits, Ptr<const u32> RESTRICT tokens, u32 vocab) {
    SHARED(u64, sorted, HEAD);
    SHARED(u32, scratch, 32);
    u32 row = blockIdx.x, token = tokens[row];
    Logits keys = {logits + (u64)row * vocab};
    u32 count = smaller(head_of<HEAD>(keys, vocab, sorted, scratch), TOP);
    if (threadIdx.x < TOP) {
        bool is_there = threadIdx.x < count;
        u32 id = is_there ? id_of(sorted[threadIdx.x]) : 0;
        ids[row * TOP + threadIdx.x] = id;
        values[row * TOP + threadIdx.x] = is_there ? keys.logits[id] : 0.0f;
    }
    if (threadIdx.x == 0) {
        chosen[row] = token < vocab ? keys.logits[token] : -infinity();
        counts[row] = count;
    }
}
EXPORT(ictus_logprobs, 512)
