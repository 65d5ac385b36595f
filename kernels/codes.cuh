// Quantised weights as the codes that they are stored as: signed bytes for integer products (linear_s8.cuh), not numbers.
//
// A type is a struct: VALUES of a quant block in BYTES bytes; HALVES, whether 16 values share a scale, else 32; MINIMUM, whether there is an offset; `words`: of group `group` of 32 values of a
// block the codes 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3; `factors`: what they are multiplied by. src/tensor has the pictures of the bytes.
// A block lies at an address that is a multiple of the largest power of two in BYTES, at most 16.
#pragma once
#include "quant.cuh"

// weight = scale * code, with HALVES scale * (first, second) * code; with MINIMUM + minimum, with both + minimum * (first_minimum, second_minimum).
struct Factors {
    f32 scale, minimum;
    i32 first, second, first_minimum, second_minimum;
};

DEV f32 f16_of_half(Ptr<const u8> from) { return from_f16((u16)load_half(from)); }
// Four bytes from an even address.
DEV u32 two_halves(Ptr<const u8> from) { return load_half(from) | load_half(from + 2) << 16; }
// Each byte of 0 .. 127 less `count`, as a signed byte.
DEV u32 minus(u32 bytes, u32 count) { return ((bytes | 0x80808080u) - count * 0x01010101u) ^ 0x80808080u; }
DEV u32 low_halves(u32 bytes) { return bytes & 0x0f0f0f0fu; }
// Bit i of four to the lowest bit of byte i.
DEV u32 spread(u32 bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

struct CodesQ4_0 {
    static constexpr u32 VALUES = 32, BYTES = 18;
    static constexpr bool HALVES = false, MINIMUM = false;
    DEV void words(Ptr<const u8> block, u32, u32 t, u32 (&out)[2]) {
        u32 bytes = two_halves(block + 2 + 4 * t);
        out[0] = minus(low_halves(bytes), 8);
        out[1] = minus(low_halves(bytes >> 4), 8);
    }
    DEV Factors factors(Ptr<const u8> block, u32) { return {f16_of_half(block), 0.0f, 0, 0, 0, 0}; }
};

struct CodesQ4_1 {
    static constexpr u32 VALUES = 32, BYTES = 20;
    static constexpr bool HALVES = false, MINIMUM = true;
    DEV void words(Ptr<const u8> block, u32, u32 t, u32 (&out)[2]) {
        u32 bytes = load_word(block + 4 + 4 * t);
        out[0] = low_halves(bytes);
        out[1] = low_halves(bytes >> 4);
    }
    DEV Factors factors(Ptr<const u8> block, u32) { return {f16_of_half(block), f16_of_half(block + 2), 0, 0, 0, 0}; }
};

struct CodesQ5_0 {
    static constexpr u32 VALUES = 32, BYTES = 22;
    static constexpr bool HALVES = false, MINIMUM = false;
    DEV void words(Ptr<const u8> block, u32, u32 t, u32 (&out)[2]) {
        u32 fifths = two_halves(block + 2) >> 4 * t, bytes = two_halves(block + 6 + 4 * t);
        out[0] = minus(low_halves(bytes) | spread(fifths) << 4, 16);
        out[1] = minus(low_halves(bytes >> 4) | spread(fifths >> 16) << 4, 16);
    }
    DEV Factors factors(Ptr<const u8> block, u32) { return {f16_of_half(block), 0.0f, 0, 0, 0, 0}; }
};

struct CodesQ5_1 {
    static constexpr u32 VALUES = 32, BYTES = 24;
    static constexpr bool HALVES = false, MINIMUM = true;
    DEV void words(Ptr<const u8> block, u32, u32 t, u32 (&out)[2]) {
        u32 fifths = load_word(block + 4) >> 4 * t, bytes = load_word(block + 8 + 4 * t);
        out[0] = low_halves(bytes) | spread(fifths) << 4;
        out[1] = low_halves(bytes >> 4) | spread(fifths >> 16) << 4;
    }
    DEV Factors factors(Ptr<const u8> block, u32) { return {f16_of_half(block), f16_of_half(block + 2), 0, 0, 0, 0}; }
};

struct CodesQ8_0 {
    static constexpr u32 VALUES = 32, BYTES = 34;
    static constexpr bool HALVES = false, MINIMUM = false;
    DEV void words(Ptr<const u8> block, u32, u32 t, u32 (&out)[2]) {
        out[0] = two_halves(block + 2 + 4 * t);
        out[1] = two_halves(block + 18 + 4 * t);
    }
    DEV Factors factors(Ptr<const u8> block, u32) { return {f16_of_half(block), 0.0f, 0, 0, 0, 0}; }
};

struct CodesQ2_K {
    static constexpr u32 VALUES = 256, BYTES = 84;
    static constexpr bool HALVES = true, MINIMUM = true;
    DEV void words(Ptr<const u8> block, u32 group, u32 t, u32 (&out)[2]) {
        for (u32 half = 0; half < 2; half++)
            out[half] = load_word(block + 16 + group / 4 * 32 + 16 * half + 4 * t) >> group % 4 * 2 & 0x03030303u;
    }
    DEV Factors factors(Ptr<const u8> block, u32 group) {
        u32 both = load_half(block + 2 * group);
        return {f16_of_half(block + 80), -f16_of_half(block + 82), (i32)(both & 15), (i32)(both >> 8 & 15), (i32)(both >> 4 & 15), (i32)(both >> 12)};
    }
};

struct CodesQ3_K {
    static constexpr u32 VALUES = 256, BYTES = 110;
    static constexpr bool HALVES = true, MINIMUM = false;
    DEV void words(Ptr<const u8> block, u32 group, u32 t, u32 (&out)[2]) {
        for (u32 half = 0; half < 2; half++) {
            u32 two = two_halves(block + 32 + group / 4 * 32 + 16 * half + 4 * t) >> group % 4 * 2 & 0x03030303u;
            u32 third = two_halves(block + 16 * half + 4 * t) >> group & 0x01010101u;
            out[half] = minus(two | third << 2, 4);
        }
    }
    DEV i32 scale(Ptr<const u8> scales, u32 i) {
        i32 lower = scales[i % 8] >> (i / 8 * 4) & 15, upper = scales[8 + i % 4] >> (i / 4 * 2) & 3;
        return (lower | upper << 4) - 32;
    }
    DEV Factors factors(Ptr<const u8> block, u32 group) {
        return {f16_of_half(block + 108), 0.0f, scale(block + 96, 2 * group), scale(block + 96, 2 * group + 1), 0, 0};
    }
};

// Codes and factors of groups of 32 with scales and minima of six bits.
DEV Factors six_bit_factors(Ptr<const u8> block, u32 group) {
    i32 scale, minimum;
    scale_and_minimum(block + 4, group, scale, minimum);
    return {f16_of_half(block) * (f32)scale, -(f16_of_half(block + 2) * (f32)minimum), 0, 0, 0, 0};
}

struct CodesQ4_K {
    static constexpr u32 VALUES = 256, BYTES = 144;
    static constexpr bool HALVES = false, MINIMUM = true;
    DEV void words(Ptr<const u8> block, u32 group, u32 t, u32 (&out)[2]) {
        for (u32 half = 0; half < 2; half++)
            out[half] = low_halves(load_word(block + 16 + group / 2 * 32 + 16 * half + 4 * t) >> group % 2 * 4);
    }
    DEV Factors factors(Ptr<const u8> block, u32 group) { return six_bit_factors(block, group); }
};

struct CodesQ5_K {
    static constexpr u32 VALUES = 256, BYTES = 176;
    static constexpr bool HALVES = false, MINIMUM = true;
    DEV void words(Ptr<const u8> block, u32 group, u32 t, u32 (&out)[2]) {
        for (u32 half = 0; half < 2; half++) {
            u32 fifth = load_word(block + 16 + 16 * half + 4 * t) >> group & 0x01010101u;
            out[half] = low_halves(load_word(block + 48 + group / 2 * 32 + 16 * half + 4 * t) >> group % 2 * 4) | fifth << 4;
        }
    }
    DEV Factors factors(Ptr<const u8> block, u32 group) { return six_bit_factors(block, group); }
};

struct CodesQ6_K {
    static constexpr u32 VALUES = 256, BYTES = 210;
    static constexpr bool HALVES = true, MINIMUM = false;
    DEV void words(Ptr<const u8> block, u32 group, u32 t, u32 (&out)[2]) {
        u32 part = group / 4, place = group % 4;
        for (u32 half = 0; half < 2; half++) {
            u32 lower = low_halves(two_halves(block + 64 * part + place % 2 * 32 + 16 * half + 4 * t) >> place / 2 * 4);
            u32 upper = two_halves(block + 128 + 32 * part + 16 * half + 4 * t) >> 2 * place & 0x03030303u;
            out[half] = minus(lower | upper << 4, 32);
        }
    }
    DEV Factors factors(Ptr<const u8> block, u32 group) {
        u32 both = load_half(block + 192 + 2 * group);
        return {f16_of_half(block + 208), 0.0f, (i8)(both & 0xff), (i8)(both >> 8), 0, 0};
    }
};

// The levels whose numbers are the lower halves of four bytes.
DEV u32 levels(u32 numbers) {
    u32 choice = numbers & 0x07070707u;
    choice |= choice >> 4;
    choice = (choice & 0xff) | (choice >> 8 & 0xff00);
    u32 negative = choose_bytes(0xbfad9881u, 0xf6eaddcfu, choice), positive = choose_bytes(0x26190d01u, 0x71594535u, choice);
    u32 is_positive = (numbers >> 3 & 0x01010101u) * 0xffu;
    return (negative & ~is_positive) | (positive & is_positive);
}

struct CodesIQ4_NL {
    static constexpr u32 VALUES = 32, BYTES = 18;
    static constexpr bool HALVES = false, MINIMUM = false;
    DEV void words(Ptr<const u8> block, u32, u32 t, u32 (&out)[2]) {
        u32 bytes = two_halves(block + 2 + 4 * t);
        out[0] = levels(bytes);
        out[1] = levels(bytes >> 4);
    }
    DEV Factors factors(Ptr<const u8> block, u32) { return {f16_of_half(block), 0.0f, 0, 0, 0, 0}; }
};

struct CodesIQ4_XS {
    static constexpr u32 VALUES = 256, BYTES = 136;
    static constexpr bool HALVES = false, MINIMUM = false;
    DEV void words(Ptr<const u8> block, u32 group, u32 t, u32 (&out)[2]) {
        u32 bytes = load_word(block + 8 + 16 * group + 4 * t);
        out[0] = levels(bytes);
        out[1] = levels(bytes >> 4);
    }
    DEV Factors factors(Ptr<const u8> block, u32 group) {
        u32 upper = block[2 + group / 4] >> (group % 4 * 2) & 3, lower = block[4 + group / 2] >> (group % 2 * 4) & 15;
        return {f16_of_half(block) * (f32)((i32)(lower | upper << 4) - 32), 0.0f, 0, 0, 0, 0};
    }
};
