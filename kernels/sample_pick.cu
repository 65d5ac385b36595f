// Draws a token of each row: top-k, min-p and top-p over the probabilities of the whole row, then the walk by the number of its position (T-117 .. T-119).
//
// Shapes: probabilities [rows, vocab], counts and pivots of sample_reach.cu; sums [rows] of sample_weights.cu; greedy [rows] of sample_survey.cu; cuts
// [rows, 2] f32: min_p, top_p; top_k [rows] u32; positions [rows] u64; tokens, status [rows] u32.
// Work: a block of 1024 takes a row. The best 2048 entries are sorted (head.cuh), and one thread walks them, eight at a time: additions are a chain,
// comparisons are not.
// Shared: 20.5 KB. Numerics: src/sample/filter.rs, addition by addition, so the token is the one that the host picks. A walk that needs more than the
// head answers status 1, and the host picks from the row instead; that needs more than 2048 entries with a probability, and few cuts.
// Roof: the row twice out of the cache, 66 steps of a sort, then additions one after another.
#include "sample_head.cuh"

constexpr u32 HEAD = HEAD_OF_DRAWS;
constexpr u32 HEAD_TOO_SHORT = 1;
// Entries that a walk looks at at once.
constexpr u32 STRIDE = 8;

struct Cuts {
    u32 top_k;
    f32 min_p, top_p;
};

// What one thread sees of a sorted row.
struct Walk {
    Ptr<const u64> head;
    u32 present, vocab; // entries with a probability, entries
    bool is_too_short;

    // How many of the first `kept` there are to be looked at; notes where the head does not reach that far.
    DEV_MEMBER u32 reach_of(u32 kept) {
        u32 all = smaller(kept, present);
        if (all > HEAD) is_too_short = true;
        return smaller(all, HEAD);
    }

    // The probabilities from `index` on, 0 from `limit` on.
    DEV_MEMBER void get(f32 (&out)[STRIDE], u32 index, u32 limit) const {
        UNROLL for (u32 j = 0; j < STRIDE; j++) out[j] = index + j < limit ? float_of(key_of(head[index + j])) : 0.0f;
    }

    // The shortest head of the first `kept` whose mass reaches top_p, at least one; all of them when none does. And the mass of what is answered.
    DEV_MEMBER u32 nucleus(u32 kept, f32 top_p, f32& mass) {
        f32 probabilities[STRIDE], masses[STRIDE], sum = 0.0f;
        u32 all = smaller(kept, present), limit = smaller(all, HEAD);
        for (u32 index = 0; index < limit; index += STRIDE) {
            get(probabilities, index, limit);
            UNROLL for (u32 j = 0; j < STRIDE; j++) masses[j] = sum = sum + probabilities[j];
            if (!(sum >= top_p)) continue;
            UNROLL for (u32 j = 0; j < STRIDE; j++) {
                if (!(masses[j] >= top_p)) continue;
                mass = masses[j];
                return index + j + 1;
            }
        }
        if (all > HEAD) is_too_short = true;
        mass = sum;
        return kept;
    }

    DEV_MEMBER f32 mass_of(u32 kept) {
        f32 probabilities[STRIDE], sum = 0.0f;
        u32 limit = reach_of(kept);
        for (u32 index = 0; index < limit; index += STRIDE) {
            get(probabilities, index, limit);
            UNROLL for (u32 j = 0; j < STRIDE; j++) sum += probabilities[j];
        }
        return sum;
    }

    // The entry of the first `kept` in which `target` ends; the last one where it ends in none.
    DEV_MEMBER u32 end_of(u32 kept, f32 target) {
        f32 probabilities[STRIDE], targets[STRIDE];
        u32 all = smaller(kept, present), limit = smaller(all, HEAD);
        for (u32 index = 0; index < limit; index += STRIDE) {
            get(probabilities, index, limit);
            bool is_here = false;
            UNROLL for (u32 j = 0; j < STRIDE; j++) {
                targets[j] = target;
                is_here |= index + j < limit && target < probabilities[j];
                target -= probabilities[j];
            }
            if (!is_here) continue;
            UNROLL for (u32 j = 0; j < STRIDE; j++)
                if (targets[j] < probabilities[j]) return index + j;
        }
        if (all > HEAD) is_too_short = true;
        return limit - 1;
    }
};

// The token where `u` ends among what the cuts leave; `above` entries reach min_p times the best, 0 when that is off.
DEV u32 walk(Walk& row, const Cuts& cuts, u32 above, f64 u) {
    if (row.present == 0) return 0;
    u32 kept = row.vocab;
    bool is_cut = false, has_mass = false;
    f32 mass = 0.0f;
    if (cuts.top_k != 0) {
        kept = smaller(cuts.top_k, kept);
        is_cut = true;
    }
    if (above != 0) {
        is_cut = is_cut || above < kept;
        kept = smaller(kept, above);
    }
    if (cuts.top_p < 1.0f) {
        u32 head = row.nucleus(kept, cuts.top_p, mass);
        is_cut = is_cut || head < kept;
        kept = head;
        has_mass = true;
    }
    // The additions of the mass are those of the nucleus.
    if (is_cut && !has_mass) mass = row.mass_of(kept);
    f32 target = (f32)u * (is_cut ? mass : 1.0f);
    return id_of(row.head[row.end_of(kept, target)]);
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
KERNEL(1024)
ictus_pick(Ptr<u32> RESTRICT tokens, Ptr<u32> RESTRICT status, Ptr<const f32> RESTRICT probabilities, Ptr<const f32> RESTRICT sums,
           Ptr<u32> RESTRICT counts, Ptr<u32> RESTRICT pivots, Ptr<const u32> RESTRICT greedy, Ptr<const f32> RESTRICT temperatures,
           Ptr<const u32> RESTRICT top_k, Ptr<const f32> RESTRICT cuts, Ptr<const u64> RESTRICT positions, u32 vocab) {
    SHARED(u64, sorted, HEAD);
    SHARED(u32, scratch, HEAD_THREADS);
    u32 row = blockIdx.x;
    if (!(temperatures[row] > 0.0f) || !(sums[row] > 0.0f)) {
        if (threadIdx.x == 0) {
            tokens[row] = temperatures[row] > 0.0f ? 0 : greedy[row];
            status[row] = 0;
        }
        return;
    }
    Probabilities keys = {probabilities + (u64)row * vocab};
    Reached reached = {counts, pivots, row, gridDim.x, (vocab + PART - 1) / PART};
    u32 pivot = reached.pivot_behind<HEAD_THREADS>(PASSES - 1, HEAD, scratch);
    u32 present = head_of<HEAD>(keys, vocab, pivot, sorted, scratch);
    Cuts own = {top_k[row], cuts[2 * row], cuts[2 * row + 1]};
    u32 above = 0;
    f32 least = own.min_p * float_of(key_of(sorted[0]));
    if (own.min_p > 0.0f && least > 0.0f) {
        // Entries are sorted: what the head has is all there is, unless all of it reaches that far.
        bool is_longer = present > HEAD && float_of(key_of(sorted[HEAD - 1])) >= least;
        if (is_longer) for (u32 i = threadIdx.x; i < vocab; i += HEAD_THREADS) above += float_of(keys.at(i)) >= least ? 1 : 0;
        else for (u32 i = threadIdx.x; i < HEAD; i += HEAD_THREADS) above += float_of(key_of(sorted[i])) >= least ? 1 : 0;
        above = block_sum<HEAD_THREADS>(above, scratch);
        above = above == 0 ? 1 : above;
    }
    if (threadIdx.x != 0) return;
    Walk own_row = {sorted, present, vocab, false};
    tokens[row] = walk(own_row, own, above, uniform_of(positions[row]));
    status[row] = own_row.is_too_short ? HEAD_TOO_SHORT : 0;
}
EXPORT(ictus_pick, 1024)
