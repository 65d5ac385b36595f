// The pairs of a row and a query head that a block of attention takes; of rows that are split by position also which blocks there are, and where their
// results lie.
//
//   members [member][3] u32   a row that is split: its row, its position, its first slot
//   parts   [span][2] u32     the first member of a span, whose rows are members one after another, or WALKED; the segments that its block table
//                             shares with others, which are not its own work
//   tasks   [task][4] u32     a shared segment: its number, the span whose block table is read, the first member and how many there are
//
// A slot holds what one segment gave one row: of each head `partial[slot][head][dim]`, and `states[slot][head][2]`, its m and l. A row at position p has
// p / SEGMENT + 1 slots, one for each segment from position 0 on, so rows of very different lengths waste nothing; of segments before its window nobody
// writes or reads them. Every segment that a row sees is the work of one block for each of its heads: a task of all rows that have it in the same pages, or the
// span's own.
#pragma once
#include "common.cuh"

// Positions of a segment, cut at absolute positions.
constexpr u32 SEGMENT = 256;
// In the place of a span's first member: its rows are not split.
constexpr u32 WALKED = 0xffffffffu;

// What a launch says of all its blocks.
struct Attention {
    u32 n_heads, n_kv_heads, head_dim, page_size, table_width;
    u32 window; // a row at p sees positions above p - window; 0 sees all up to p
    f32 scale;
};

DEV u32 first_seen(u32 position, u32 window) { return window == 0 || position + 1 < window ? 0 : position + 1 - window; }

// The pairs of a block that walks: of one span and one key and value head.
template <u32 N> struct SpanPairs {
    static constexpr u32 MOST = N;
    u32 head;               // key and value head
    u32 first_row, start;   // of the span
    u32 first, count;       // pair number i is row i / group, head i % group of its kv head
    u32 group, n_heads;

    DEV_MEMBER u32 row(u32 pair) const { return (first + pair) / group; }
    // Its number among all rows and heads.
    DEV_MEMBER u64 query(u32 pair) const { return (u64)(first_row + row(pair)) * n_heads + head * group + (first + pair) % group; }
    DEV_MEMBER u32 position(u32 pair) const { return start + row(pair); }
    DEV_MEMBER u32 lowest() const { return position(0); }
    DEV_MEMBER u32 highest() const { return position(count - 1); }
};

// Pairs number N * chunk and the ones behind it of span `span`; count 0 when it has none.
template <u32 N> DEV SpanPairs<N> pairs_of(Ptr<const u32> spans, u32 span, u32 head, u32 chunk, const Attention& shape) {
    SpanPairs<N> pairs;
    pairs.head = head;
    pairs.group = shape.n_heads / shape.n_kv_heads;
    pairs.n_heads = shape.n_heads;
    pairs.first_row = spans[3 * span];
    pairs.start = spans[3 * span + 2];
    u32 total = spans[3 * span + 1] * pairs.group;
    pairs.first = N * chunk;
    pairs.count = pairs.first < total ? smaller(N, total - pairs.first) : 0;
    return pairs;
}

// Some members that the same pages serve.
struct Members {
    u32 first, count;
};

// Pairs of members and the query heads of one key and value head: pair i is head i % group of member i / group. The lists are shared arrays of N
// places, which `load` fills.
template <u32 N> struct MemberPairs {
    static constexpr u32 MOST = N;
    u32 head, count, group, n_heads;
    Ptr<u32> rows, positions, slots;
    u32 least, most; // positions

    DEV_MEMBER u32 query_head(u32 pair) const { return head * group + (first + pair) % group; }
    DEV_MEMBER u64 query(u32 pair) const { return (u64)rows[pair] * n_heads + query_head(pair); }
    DEV_MEMBER u32 position(u32 pair) const { return positions[pair]; }
    DEV_MEMBER u32 lowest() const { return least; }
    DEV_MEMBER u32 highest() const { return most; }
    // Where the result of a segment lies.
    DEV_MEMBER u64 place(u32 pair, u32 segment) const { return (u64)(slots[pair] + segment) * n_heads + query_head(pair); }

    // Pairs number N * chunk and the ones behind it; none where there are no more. By all threads.
    DEV_MEMBER void choose(const Members& members, u32 kv_head, u32 chunk, const Attention& shape) {
        head = kv_head;
        n_heads = shape.n_heads;
        group = shape.n_heads / shape.n_kv_heads;
        first = N * chunk;
        u32 total = members.count * group;
        count = first < total ? smaller(N, total - first) : 0;
    }
    // The lists, behind a barrier. By all threads, of which there are at least N.
    DEV_MEMBER void load(Ptr<const u32> all, const Members& members) {
        if (threadIdx.x < count) {
            u64 at = 3 * (u64)(members.first + (first + threadIdx.x) / group);
            rows[threadIdx.x] = all[at];
            positions[threadIdx.x] = all[at + 1];
            slots[threadIdx.x] = all[at + 2];
        }
        sync_block();
        least = most = positions[0];
        for (u32 pair = 1; pair < count; pair++) {
            u32 position = positions[pair];
            least = smaller(least, position);
            most = position > most ? position : most;
        }
    }

    u32 first;
};

// Positions of segment `segment` that some pair sees: from .. to.
template <class P> DEV void seen_range(u32 segment, const P& pairs, const Attention& shape, u32& from, u32& to) {
    u32 begin = segment * SEGMENT, lowest = first_seen(pairs.lowest(), shape.window);
    from = lowest > begin ? lowest : begin;
    to = smaller(begin + SEGMENT, pairs.highest() + 1);
}

DEV f32 merged(f32 old_value, f32 old_factor, f32 new_value, f32 new_factor) { return fused(old_value, old_factor, new_value * new_factor); }

// The segments that a member sees into one, in ascending order; `F::factors` says by what both sides of a merge are multiplied. A block takes one head of one
// member, grid (n_heads, members), a thread every 128th dimension. Results are read some at a time, as nothing of a merge is needed to read the next.
template <class F>
DEV void merge_segments(Ptr<f32> out, Ptr<const f32> partial, Ptr<const f32> states, Ptr<const u32> members, u32 head_dim, u32 window) {
    constexpr u32 AT_ONCE = 8;
    u32 head = blockIdx.x, n_heads = gridDim.x;
    u64 member = 3 * (u64)blockIdx.y;
    u32 row = members[member], position = members[member + 1], slot = members[member + 2];
    u32 begin = first_seen(position, window) / SEGMENT, end = position / SEGMENT + 1;
    for (u32 dim = threadIdx.x; dim < head_dim; dim += 128) {
        f32 most = -infinity(), sum = 0.0f, value = 0.0f;
        for (u32 first = begin; first < end; first += AT_ONCE) {
            f32 segment_most[AT_ONCE], segment_sum[AT_ONCE], segment_value[AT_ONCE];
            for (u32 i = 0; i < AT_ONCE; i++) {
                segment_sum[i] = 0.0f;
                if (first + i >= end) continue;
                u64 place = (u64)(slot + first + i) * n_heads + head;
                segment_most[i] = states[2 * place];
                segment_sum[i] = states[2 * place + 1];
                segment_value[i] = partial[place * head_dim + dim];
            }
            for (u32 i = 0; i < AT_ONCE; i++) {
                if (segment_sum[i] == 0.0f) continue;
                f32 old_factor, new_factor;
                F::factors(most, segment_most[i], old_factor, new_factor);
                sum = merged(sum, old_factor, segment_sum[i], new_factor);
                value = merged(value, old_factor, segment_value[i], new_factor);
            }
        }
        out[((u64)row * n_heads + head) * head_dim + dim] = value / sum;
    }
}
