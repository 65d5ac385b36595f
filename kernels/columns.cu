// Parts of rows, which several devices computed, become whole rows; and who of them has a token's row of a table that is cut like that.
//
// out[r][c] = part[p][r][c - first(p)], where part p has the columns from first(p) = unit * (width / unit * p / parts) to first(p + 1).
// Shapes: f32; out [rows, width]; part p [rows, first(p + 1) - first(p)], contiguous: part `own` at own_part, the others at others + rows * first(p).
// Work: a thread an element of a part, block y a row; strides over columns, so any number of blocks in x gives the same. Shared memory: none.
// Numerics: words are moved. Roof: bytes, 8 an element.
#include "common.cuh"

// unit divides width. grid: any number of blocks in x, rows in y
KERNEL(256) ictus_place_parts(Ptr<f32> RESTRICT out, Ptr<const f32> RESTRICT own_part, Ptr<const f32> RESTRICT others, u32 width, u32 unit,
                              u32 parts, u32 own) {
    u64 row = blockIdx.y, rows = gridDim.y, units = width / unit;
    for (u32 part = 0; part < parts; part++) {
        u32 first = unit * (u32)(units * part / parts), columns = unit * (u32)(units * (part + 1) / parts) - first;
        for (u32 c = blockIdx.x * 256 + threadIdx.x; c < columns; c += gridDim.x * 256) {
            f32 value = part == own ? own_part[row * columns + c] : others[rows * first + row * columns + c];
            out[row * width + first + c] = value;
        }
    }
}
EXPORT(ictus_place_parts, 256)

// Of a table whose rows are cut as columns are above: ids[i] is the row of token i in part `own`, 0 where another part has it. Where each part has a row for
// every token, part after part, rows[i] is the one of token i in the part that has it. tokens, ids, rows [count] u32, tokens below width. grid: any number of blocks
KERNEL(256) ictus_own_tokens(Ptr<u32> RESTRICT ids, Ptr<u32> RESTRICT rows, Ptr<const u32> RESTRICT tokens, u32 count, u32 width, u32 unit, u32 parts,
                             u32 own) {
    u64 units = width / unit;
    for (u32 i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
        u32 token = tokens[i], part = 0;
        while (part + 1 < parts && unit * (u32)(units * (part + 1) / parts) <= token) part++;
        ids[i] = part == own ? token - unit * (u32)(units * part / parts) : 0;
        rows[i] = part * count + i;
    }
}
EXPORT(ictus_own_tokens, 256)
