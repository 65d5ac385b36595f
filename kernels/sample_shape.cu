// What is done to logits before a token is looked for (T-112): mask, bias, penalties.
//
// Shapes: logits [rows, vocab] f32, in place; mask [rows, words] u32, one bit per id, lowest bit first; lists of all rows one behind another, row r from
// offsets[r] to offsets[r + 1]. Work: mask: a block a part of 4096 entries. Lists: a block a row, a thread an entry.
// Numerics: src/sample/shape.rs and penalty.rs, operation by operation. Roof: bytes of the row for the mask, a launch for the lists.
#include "common.cuh"

constexpr u32 PART = 4096;

// Minus infinity where the mask has no bit, ids past its end included; `allowed` [rows, parts] says whether the part keeps any.
// grid: (parts, rows)
KERNEL(256)
ictus_mask(Ptr<f32> RESTRICT logits, Ptr<u32> RESTRICT allowed, Ptr<const u32> RESTRICT mask, u32 words, u32 vocab) {
    SHARED(u32, scratch, 32);
    u64 row = (u64)blockIdx.y * vocab, mask_row = (u64)blockIdx.y * words;
    u32 count = 0, end = smaller(vocab, (blockIdx.x + 1) * PART);
    for (u32 i = blockIdx.x * PART + threadIdx.x; i < end; i += 256) {
        bool is_allowed = i / 32 < words && (mask[mask_row + i / 32] >> (i % 32) & 1);
        if (is_allowed)
            count++;
        else
            logits[row + i] = -infinity();
    }
    count = block_sum<256>(count, scratch);
    if (threadIdx.x == 0) allowed[(u64)blockIdx.y * gridDim.x + blockIdx.x] = count > 0 ? 1 : 0;
}
EXPORT(ictus_mask, 256)

// Adds addends in the order of the list, an id listed twice twice; ids past the row are ignored (E-12). grid: rows
KERNEL(128)
ictus_bias(Ptr<f32> RESTRICT logits, Ptr<const u32> RESTRICT offsets, Ptr<const u32> RESTRICT ids, Ptr<const f32> RESTRICT addends, u32 vocab) {
    u32 begin = offsets[blockIdx.x], end = offsets[blockIdx.x + 1];
    for (u32 i = begin + threadIdx.x; i < end; i += 128) {
        u32 id = ids[i];
        if (id >= vocab) continue;
        // The thread of an id's first entry does all of them.
        bool is_first = true;
        for (u32 j = begin; j < i && is_first; j++) is_first = ids[j] != id;
        if (!is_first) continue;
        f32 logit = logits[(u64)blockIdx.x * vocab + id];
        for (u32 j = i; j < end; j++)
            if (ids[j] == id) logit += addends[j];
        logits[(u64)blockIdx.x * vocab + id] = logit;
    }
}
EXPORT(ictus_bias, 128)

// Penalties (T-113) of distinct ids with their numbers of occurrences; who is exempt is not in the list. `strengths` [rows, 3]: repeat, presence,
// frequency. grid: rows
KERNEL(64)
ictus_penalise(Ptr<f32> RESTRICT logits, Ptr<const u32> RESTRICT offsets, Ptr<const u32> RESTRICT ids, Ptr<const u32> RESTRICT counts,
               Ptr<const f32> RESTRICT strengths, u32 vocab) {
    f32 repeat = strengths[3 * blockIdx.x], presence = strengths[3 * blockIdx.x + 1], frequency = strengths[3 * blockIdx.x + 2];
    for (u32 i = offsets[blockIdx.x] + threadIdx.x; i < offsets[blockIdx.x + 1]; i += 64) {
        if (ids[i] >= vocab) continue;
        u64 place = (u64)blockIdx.x * vocab + ids[i];
        f32 logit = logits[place];
        if (repeat != 1.0f) logit = logit > 0.0f ? logit / repeat : logit * repeat;
        logits[place] = logit - (presence + frequency * (f32)counts[i]);
    }
}
EXPORT(ictus_penalise, 64)
