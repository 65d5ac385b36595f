// Draws a token of each row: top-k, min-p and top-p over the probabilities of the whole row, then the walk by the number of its position (T-117 .. T-119).
//
// Shapes: weights [rows, vocab] and sums [rows] of sample_weights.cu; greedy [rows] of sample_survey.cu; cuts [rows, 2] f32: min_p, top_p; top_k
// [rows] u32; positions [rows] u64; tokens, status [rows] u32.
// Work: a block of 512 takes a row. The best 2048 entries are sorted (head.cuh), and one thread walks them.
// Shared: 16.5 KB. Numerics: src/sample/filter.rs, addition by addition, so the token is the one that the host picks. A walk that needs more than the
// head answers status 1, and the host picks from the row instead; that needs more than 2048 entries with a probability, and few cuts.
// Roof: a dozen passes over the row out of the cache, then the serial walk.
#include "head.cuh"

constexpr u32 HEAD = 2048;
constexpr u32 HEAD_TOO_SHORT = 1;

// Keys are the bits of probabilities: of numbers from 0 on bits have the order of the numbers.
struct Probabilities {
    Ptr<const f32> weights;
    f32 sum;
    DEV_MEMBER u32 at(u32 i) const { return bits_of(weights[i] / sum); }
};

struct Cuts {
    u32 top_k;
    f32 min_p, top_p;
};

// What one thread sees of a sorted row.
struct Walk {
    Ptr<const u64> head;
    u32 present, vocab; // entries with a probability, entries
    bool is_too_short;

    // The probability of entry `index`, best first; false past the end, and where the head does not reach.
    DEV_MEMBER bool get(u32 index, f32& probability) {
        if (index >= present) return false;
        if (index >= HEAD) {
            is_too_short = true;
            return false;
        }
        probability = float_of(key_of(head[index]));
        return true;
    }

    // The shortest head of the first `kept` whose mass reaches top_p, at least one; all of them when none does.
    DEV_MEMBER u32 nucleus(u32 kept, f32 top_p) {
        f32 mass = 0.0f, probability;
        for (u32 index = 0; index < kept && get(index, probability); index++) {
            mass += probability;
            if (mass >= top_p) return index + 1;
        }
        return kept;
    }

    DEV_MEMBER f32 mass_of(u32 kept) {
        f32 mass = 0.0f, probability;
        for (u32 index = 0; index < kept && get(index, probability); index++) mass += probability;
        return mass;
    }
};

// The token where `u` ends among what the cuts leave; `above` entries reach min_p times the best, 0 when that is off.
DEV u32 walk(Walk& row, const Cuts& cuts, u32 above, f64 u) {
    f32 probability;
    if (!row.get(0, probability)) return 0;
    u32 kept = row.vocab;
    bool is_cut = false;
    if (cuts.top_k != 0) {
        kept = smaller(cuts.top_k, kept);
        is_cut = true;
    }
    if (above != 0) {
        is_cut = is_cut || above < kept;
        kept = smaller(kept, above);
    }
    if (cuts.top_p < 1.0f) {
        u32 head = row.nucleus(kept, cuts.top_p);
        is_cut = is_cut || head < kept;
        kept = head;
    }
    f32 target = (f32)u * (is_cut ? row.mass_of(kept) : 1.0f);
    u32 last = 0;
    for (u32 index = 0; index < kept && row.get(index, probability); index++) {
        last = index;
        if (target < probability) break;
        target -= probability;
    }
    return id_of(row.head[last]);
}

// The number in [0, 1) that belongs to a position (T-119).
DEV f64 uniform_of(u64 position) {
    u64 z = position + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return (f64)(z >> 11) / 9007199254740992.0;
}

// Rows of temperature 0 take their greedy token. grid: rows
KERNEL(512)
ictus_pick(Ptr<u32> RESTRICT tokens, Ptr<u32> RESTRICT status, Ptr<const f32> RESTRICT weights, Ptr<const f32> RESTRICT sums,
           Ptr<const u32> RESTRICT greedy, Ptr<const f32> RESTRICT temperatures, Ptr<const u32> RESTRICT top_k, Ptr<const f32> RESTRICT cuts,
           Ptr<const u64> RESTRICT positions, u32 vocab) {
    SHARED(u64, sorted, HEAD);
    SHARED(u32, scratch, 32);
    u32 row = blockIdx.x;
    if (!(temperatures[row] > 0.0f) || !(sums[row] > 0.0f)) {
        if (threadIdx.x == 0) {
            tokens[row] = temperatures[row] > 0.0f ? 0 : greedy[row];
            status[row] = 0;
        }
        return;
    }
    Probabilities keys = {weights + (u64)row * vocab, sums[row]};
    u32 present = head_of<HEAD>(keys, vocab, sorted, scratch);
    Cuts own = {top_k[row], cuts[2 * row], cuts[2 * row + 1]};
    u32 above = 0;
    f32 least = own.min_p * float_of(key_of(sorted[0]));
    if (own.min_p > 0.0f && least > 0.0f) {
        for (u32 i = threadIdx.x; i < vocab; i += HEAD_THREADS) above += float_of(keys.at(i)) >= least ? 1 : 0;
        above = block_sum<HEAD_THREADS>(above, scratch);
        above = above == 0 ? 1 : above;
    }
    if (threadIdx.x != 0) return;
    Walk own_row = {sorted, present, vocab, false};
    tokens[row] = walk(own_row, own, above, uniform_of(positions[row]));
    status[row] = own_row.is_too_short ? HEAD_TOO_SHORT : 0;
}
EXPORT(ictus_pick, 512)
