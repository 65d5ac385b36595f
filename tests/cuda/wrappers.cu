// The wrappers of common.cuh by themselves: what must come of them on a device and in the simulator says tests/cuda_wrappers.rs.
#include "common.cuh"

// out[5 i ..]: of the word i the f16 and the bf16 in its lower half, the number with its bits as f16 and as bf16, how many bits are set.
KERNEL(32) good_numbers(Ptr<u32> out, Ptr<const u32> in, u32 count) {
    for (u32 i = blockIdx.x * 32 + threadIdx.x; i < count; i += gridDim.x * 32) {
        u32 word = in[i];
        out[5 * i] = bits_of(from_f16((u16)word));
        out[5 * i + 1] = bits_of(from_bf16((u16)word));
        out[5 * i + 2] = to_f16(float_of(word));
        out[5 * i + 3] = to_bf16(float_of(word));
        out[5 * i + 4] = ones(word);
    }
}
EXPORT(good_numbers, 32)

// out[6 i ..] of three words a, b, c: as numbers a b + c in one rounding, in two, a / b, the root of |c|; as integers a . b + c by bytes, bytes of a and b as c chooses.
KERNEL(32) good_arithmetic(Ptr<u32> out, Ptr<const u32> in, u32 count) {
    for (u32 i = blockIdx.x * 32 + threadIdx.x; i < count; i += gridDim.x * 32) {
        u32 words[3] = {in[3 * i], in[3 * i + 1], in[3 * i + 2]};
        f32 a = float_of(words[0]), b = float_of(words[1]), c = float_of(words[2]);
        out[6 * i] = bits_of(fused(a, b, c));
        out[6 * i + 1] = bits_of(a * b + c);
        out[6 * i + 2] = bits_of(a / b);
        out[6 * i + 3] = bits_of((f32)root((f64)(c < 0 ? 0.0f - c : c)));
        out[6 * i + 4] = (u32)dp4a(words[0], words[1], (i32)words[2]);
        out[6 * i + 5] = choose_bytes(words[0], words[1], words[2] & 0x7777);
    }
}
EXPORT(good_arithmetic, 32)

// out[32 n + lane] for each operation of a warp, n from 0 on.
KERNEL(32) good_warp(Ptr<u32> out, Ptr<const u32> in) {
    u32 lane = threadIdx.x, word = in[lane];
    f32 number = (f32)(i32)word;
    u32 came[10] = {shuffle_xor(word, 1),
                    shuffle_xor(word, 16),
                    bits_of(shuffle_xor(number, 5)),
                    shuffle_up(word, 3),
                    bits_of(shuffle_from(number, 7)),
                    warp_or(word),
                    warp_sum(word),
                    warp_least(word),
                    bits_of(warp_sum(number)),
                    bits_of(warp_max(number))};
    for (u32 n = 0; n < 10; n++) out[32 * n + lane] = came[n];
}
EXPORT(good_warp, 32)

// A copy of which only the first bytes are read: four, eight, ... of the lane's sixteen.
KERNEL(32) good_copy_parts(Ptr<u32> out, Ptr<const u32> in) {
    SHARED_QUADS(u32, values, 128);
    u32 lane = threadIdx.x;
    copy_async(values + 4 * lane, in + 4 * lane, 4 * (lane % 5));
    copy_commit();
    copy_wait<0>();
    for (u32 i = 0; i < 4; i++) out[4 * lane + i] = values[4 * lane + i];
}
EXPORT(good_copy_parts, 32)
