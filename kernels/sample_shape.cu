// What is done to logits before a token is looked for (T-112), and the look at them (sample_survey.cu), in one pass: whether the row as it was is
// finite; mask, bias, penalties; then the largest number.
//
// Shapes: logits [rows, vocab] f32, in place; of each part of 4096 entries best, place, flags as in sample_survey.cu; of each row a record of ten words:
//
//   0 mask, 1 words of it        places are counted in words from `words` on; NOWHERE for none
//   2 list of biases, 3 entries  two words each: id, bits of the addend; ids ascend and may repeat
//   4 list of penalties, 5 entries  two words each: id, how often it came; ids ascend
//   6 repeat, 7 presence, 8 frequency
//   9 not 0 where anything is done to the row
//
// A mask has one bit per id, lowest bit first; what lies past its end is not allowed. Ids past the row are ignored (E-12).
// Work: a block of 256 takes a part, and of the lists the entries that fall into it: one thread does all of an id.
// Numerics: src/sample/shape.rs and penalty.rs, operation by operation. Roof: bytes, 8 an entry.
#include "survey.cuh"

constexpr u32 RECORD = 10;

struct Part {
    Ptr<f32> logits; // of the row
    Ptr<const u32> words;
    u32 from, to;

    DEV_MEMBER bool has(u32 id) const { return id >= from && id < to; }

    // Addends in the order of the list, an id listed twice twice.
    DEV_MEMBER void bias(u32 list, u32 count) const {
        Ptr<const u32> entries = words + list;
        for (u32 i = threadIdx.x; i < count; i += 256) {
            u32 id = entries[2 * i];
            if (!has(id) || (i > 0 && entries[2 * (i - 1)] == id)) continue;
            f32 logit = logits[id];
            for (u32 j = i; j < count && entries[2 * j] == id; j++) logit += float_of(entries[2 * j + 1]);
            logits[id] = logit;
        }
    }

    DEV_MEMBER void penalise(u32 list, u32 count, f32 repeat, f32 presence, f32 frequency) const {
        Ptr<const u32> entries = words + list;
        for (u32 i = threadIdx.x; i < count; i += 256) {
            u32 id = entries[2 * i];
            if (!has(id)) continue;
            f32 logit = logits[id];
            if (repeat != 1.0f) logit = logit > 0.0f ? logit / repeat : logit * repeat;
            logits[id] = logit - (presence + frequency * (f32)entries[2 * i + 1]);
        }
    }
};

// grid: (parts, rows)
KERNEL(256)
ictus_shape(Ptr<f32> RESTRICT best, Ptr<u32> RESTRICT place, Ptr<u32> RESTRICT flags, Ptr<f32> RESTRICT logits, Ptr<const u32> RESTRICT records,
            Ptr<const u32> RESTRICT words, u32 vocab) {
    SHARED(f32, values, 32);
    SHARED(u32, scratch, 32);
    Ptr<const u32> record = records + (u64)blockIdx.y * RECORD;
    Part part = {logits + (u64)blockIdx.y * vocab, words, blockIdx.x * PART, smaller(vocab, (blockIdx.x + 1) * PART)};
    u32 mask = record[0], mask_words = record[1], off = 0, allowed = 0;
    bool is_shaped = record[9] != 0;
    Seen seen = {-infinity(), NOWHERE};
    for (u32 i = part.from + threadIdx.x; i < part.to; i += 256) {
        f32 x = part.logits[i];
        off |= is_finite(x) ? 0 : 1;
        bool is_allowed = mask == NOWHERE || (i / 32 < mask_words && (words[mask + i / 32] >> (i % 32) & 1));
        allowed |= is_allowed ? 1 : 0;
        if (!is_allowed) part.logits[i] = x = -infinity();
        seen.look(x, i);
    }
    if (is_shaped) {
        sync_block();
        part.bias(record[2], record[3]);
        sync_block();
        part.penalise(record[4], record[5], float_of(record[6]), float_of(record[7]), float_of(record[8]));
        sync_block();
        seen = {-infinity(), NOWHERE};
        for (u32 i = part.from + threadIdx.x; i < part.to; i += 256) seen.look(part.logits[i], i);
    }
    off = block_sum<256>(off, scratch);
    allowed = block_sum<256>(allowed, scratch);
    put_part(seen, (off > 0 ? NOT_FINITE : 0) | (allowed > 0 ? 0 : EMPTY), best, place, flags, values, scratch);
}
EXPORT(ictus_shape, 256)
