// Stored weights to numbers: the element types of src/tensor, whose module has the pictures of their bytes.
//
// A type is a struct: ELEMENT (what its rows are made of), WHOLE_EIGHTS (whether columns are multiples of 8), `row_elements(columns)`, and `decode(row, column, columns, out)`: the eight values
// from `column` on, a multiple of 8. Of a quantised type the columns are whole quant blocks; of a plain one those past the end are 0.
// Eight values never leave a group with one scale, so it is decoded once for all of them.
//
// Numerics: as src/tensor/dequant: a scale times an integer is exact, only the addition of a minimum rounds.
#pragma once
#include "common.cuh"

DEV f32 f16_at(Ptr<const u8> block, u32 at) { return from_f16((u16)(block[at] | block[at + 1] << 8)); }

struct TypeF32 {
    using ELEMENT = f32;
    static constexpr bool WHOLE_EIGHTS = false;
    DEV u64 row_elements(u32 columns) { return columns; }
    DEV void decode(Ptr<const f32> row, u32 column, u32 columns, f32 (&out)[8]) {
        for (u32 i = 0; i < 8; i++) out[i] = column + i < columns ? row[column + i] : 0.0f;
    }
};

struct TypeF16 {
    using ELEMENT = u16;
    static constexpr bool WHOLE_EIGHTS = false;
    DEV u64 row_elements(u32 columns) { return columns; }
    DEV void decode(Ptr<const u16> row, u32 column, u32 columns, f32 (&out)[8]) {
        for (u32 i = 0; i < 8; i++) out[i] = column + i < columns ? from_f16(row[column + i]) : 0.0f;
    }
};

struct TypeBF16 {
    using ELEMENT = u16;
    static constexpr bool WHOLE_EIGHTS = false;
    DEV u64 row_elements(u32 columns) { return columns; }
    DEV void decode(Ptr<const u16> row, u32 column, u32 columns, f32 (&out)[8]) {
        for (u32 i = 0; i < 8; i++) out[i] = column + i < columns ? from_bf16(row[column + i]) : 0.0f;
    }
};

// Quant blocks of VALUES values in BYTES bytes; `Format::eight` decodes eight values from number `first` of a block on.
template <class Format, u32 VALUES, u32 BYTES> struct Quantised {
    using ELEMENT = u8;
    static constexpr bool WHOLE_EIGHTS = true;
    DEV u64 row_elements(u32 columns) { return (u64)(columns / VALUES) * BYTES; }
    DEV void decode(Ptr<const u8> row, u32 column, u32, f32 (&out)[8]) {
        Format::eight(row + (u64)(column / VALUES) * BYTES, column % VALUES, out);
    }
};

// Of 16 bytes whose low halves are values 0..16 and whose high halves are values 16..32.
DEV i32 half_byte(Ptr<const u8> bytes, u32 i) { return bytes[i % 16] >> (i / 16 * 4) & 15; }

struct FormatQ4_0 {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        f32 d = f16_at(block, 0);
        for (u32 i = 0; i < 8; i++) out[i] = d * (f32)(half_byte(block + 2, first + i) - 8);
    }
};

struct FormatQ4_1 {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        f32 d = f16_at(block, 0), m = f16_at(block, 2);
        for (u32 i = 0; i < 8; i++) out[i] = d * (f32)half_byte(block + 4, first + i) + m;
    }
};

// Fifth bits of eight values, from bit 0 on.
DEV u32 fifth_bits(Ptr<const u8> block, u32 at, u32 first) { return block[at + first / 8]; }

struct FormatQ5_0 {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        f32 d = f16_at(block, 0);
        u32 high = fifth_bits(block, 2, first);
        for (u32 i = 0; i < 8; i++) out[i] = d * (f32)((half_byte(block + 6, first + i) | (i32)(high >> i & 1) << 4) - 16);
    }
};

struct FormatQ5_1 {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        f32 d = f16_at(block, 0), m = f16_at(block, 2);
        u32 high = fifth_bits(block, 4, first);
        for (u32 i = 0; i < 8; i++) out[i] = d * (f32)(half_byte(block + 8, first + i) | (i32)(high >> i & 1) << 4) + m;
    }
};

struct FormatQ8_0 {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        f32 d = f16_at(block, 0);
        for (u32 i = 0; i < 8; i++) out[i] = d * (f32)(i8)block[2 + first + i];
    }
};

// Of 64 bytes in two halves of 128 values: bits 2j and 2j + 1 of byte l belong to value 32 j + l.
DEV i32 two_bits(Ptr<const u8> bytes, u32 i) { return bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3; }
// Of 128 bytes in four parts of 64 values: low halves first.
DEV i32 four_bits(Ptr<const u8> bytes, u32 i) { return bytes[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15; }

// Six-bit scale and minimum of group g of 32 values, from 12 bytes.
DEV void scale_and_minimum(Ptr<const u8> bytes, u32 g, i32& scale, i32& minimum) {
    if (g < 4) {
        scale = bytes[g] & 63;
        minimum = bytes[g + 4] & 63;
    } else {
        scale = (bytes[g + 4] & 15) | bytes[g - 4] >> 6 << 4;
        minimum = bytes[g + 4] >> 4 | bytes[g] >> 6 << 4;
    }
}

struct FormatQ2_K {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        u32 group = block[first / 16];
        f32 scale = f16_at(block, 80) * (f32)(group & 15), minimum = f16_at(block, 82) * (f32)(group >> 4);
        for (u32 i = 0; i < 8; i++) out[i] = scale * (f32)two_bits(block + 16, first + i) - minimum;
    }
};

struct FormatQ3_K {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        u32 group = first / 16;
        Ptr<const u8> scales = block + 96;
        i32 lower = scales[group % 8] >> (group / 8 * 4) & 15, upper = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        f32 scale = f16_at(block, 108) * (f32)((lower | upper << 4) - 32);
        for (u32 i = 0; i < 8; i++) {
            u32 value = first + i;
            i32 third = block[value % 32] >> (value / 32) & 1;
            out[i] = scale * (f32)((two_bits(block + 32, value) | third << 2) - 4);
        }
    }
};

struct FormatQ4_K {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        i32 s, t;
        scale_and_minimum(block + 4, first / 32, s, t);
        f32 scale = f16_at(block, 0) * (f32)s, minimum = f16_at(block, 2) * (f32)t;
        for (u32 i = 0; i < 8; i++) out[i] = scale * (f32)four_bits(block + 16, first + i) - minimum;
    }
};

struct FormatQ5_K {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        i32 s, t;
        scale_and_minimum(block + 4, first / 32, s, t);
        f32 scale = f16_at(block, 0) * (f32)s, minimum = f16_at(block, 2) * (f32)t;
        for (u32 i = 0; i < 8; i++) {
            i32 fifth = block[16 + (first + i) % 32] >> (first / 32) & 1;
            out[i] = scale * (f32)(four_bits(block + 48, first + i) | fifth << 4) - minimum;
        }
    }
};

struct FormatQ6_K {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        f32 scale = f16_at(block, 208) * (f32)(i8)block[192 + first / 16];
        for (u32 i = 0; i < 8; i++) {
            u32 value = first + i, half = value / 128, place = value % 128;
            i32 lower = block[64 * half + place % 64] >> (place / 64 * 4) & 15;
            out[i] = scale * (f32)((lower | two_bits(block + 128, value) << 4) - 32);
        }
    }
};

// Level `i` of the table of IQ4_NL and IQ4_XS, out of four words of four signed bytes, so that no array is indexed.
DEV i32 level(i32 i) {
    u32 words = i < 8 ? (i < 4 ? 0xbfad9881u : 0xf6eaddcfu) : (i < 12 ? 0x26190d01u : 0x71594535u);
    return (i8)(words >> (i % 4 * 8) & 0xff);
}

struct FormatIQ4_NL {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        f32 d = f16_at(block, 0);
        for (u32 i = 0; i < 8; i++) out[i] = d * (f32)level(half_byte(block + 2, first + i));
    }
};

struct FormatIQ4_XS {
    DEV void eight(Ptr<const u8> block, u32 first, f32 (&out)[8]) {
        u32 group = first / 32, upper = block[2 + group / 4] >> (group % 4 * 2) & 3;
        u32 lower = block[4 + group / 2] >> (group % 2 * 4) & 15;
        f32 scale = f16_at(block, 0) * (f32)((i32)(lower | upper << 4) - 32);
        for (u32 i = 0; i < 8; i++) out[i] = scale * (f32)level(half_byte(block + 8 + 16 * group, first % 32 + i));
    }
};

using TypeQ4_0 = Quantised<FormatQ4_0, 32, 18>;
using TypeQ4_1 = Quantised<FormatQ4_1, 32, 20>;
using TypeQ5_0 = Quantised<FormatQ5_0, 32, 22>;
using TypeQ5_1 = Quantised<FormatQ5_1, 32, 24>;
using TypeQ8_0 = Quantised<FormatQ8_0, 32, 34>;
using TypeQ2_K = Quantised<FormatQ2_K, 256, 84>;
using TypeQ3_K = Quantised<FormatQ3_K, 256, 110>;
using TypeQ4_K = Quantised<FormatQ4_K, 256, 144>;
using TypeQ5_K = Quantised<FormatQ5_K, 256, 176>;
using TypeQ6_K = Quantised<FormatQ6_K, 256, 210>;
using TypeIQ4_NL = Quantised<FormatIQ4_NL, 32, 18>;
using TypeIQ4_XS = Quantised<FormatIQ4_XS, 256, 136>;

// Calls a macro with the name in entries and the struct of each type.
#define FOR_PLAIN_TYPES(what) what(f32, TypeF32) what(f16, TypeF16) what(bf16, TypeBF16)
#define FOR_QUANTISED_TYPES(what)                                                                                                      \
    what(q4_0, TypeQ4_0) what(q4_1, TypeQ4_1) what(q5_0, TypeQ5_0) what(q5_1, TypeQ5_1) what(q8_0, TypeQ8_0) what(q2_k, TypeQ2_K)      \
        what(q3_k, TypeQ3_K) what(q4_k, TypeQ4_K) what(q5_k, TypeQ5_K) what(q6_k, TypeQ6_K) what(iq4_nl, TypeIQ4_NL)                   \
            what(iq4_xs, TypeIQ4_XS)
