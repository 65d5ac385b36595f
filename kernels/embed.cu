// Rows of a table of weights, decoded: out[r][i] = table[tokens[r]][i] * scale.
//
// Shapes: tokens [rows] u32, each below the table's rows; table [vocab, columns] of an element type; out [rows, columns] f32.
// Work: a block takes a row, a thread eight columns at a time. Numerics: see quant.cuh; one product more.
// Roof: bytes of the rows read and written; a decode step is bound by the launch.
#include "quant.cuh"

template <class Type>
DEV void embed(Ptr<f32> out, Ptr<const typename Type::ELEMENT> table, Ptr<const u32> tokens, u32 columns, f32 scale) {
    Ptr<const typename Type::ELEMENT> row = table + (u64)tokens[blockIdx.x] * Type::row_elements(columns);
    u64 to = (u64)blockIdx.x * columns;
    for (u32 column = 8 * threadIdx.x; column < columns; column += 8 * 128) {
        f32 values[8];
        Type::decode(row, column, columns, values);
        for (u32 i = 0; i < 8; i++)
            if (column + i < columns) out[to + column + i] = values[i] * scale;
    }
}

// grid: rows
#define EMBED(type, Type)                                                                                                           \
    KERNEL(128)                                                                                                                     \
    ictus_embed_##type(Ptr<f32> RESTRICT out, Ptr<const Type::ELEMENT> RESTRICT table, Ptr<const u32> RESTRICT tokens,     \
                       u32 columns, f32 scale) {                                                                                    \
        embed<Type>(out, table, tokens, columns, scale);                                                                            \
    }                                                                                                                               \
    EXPORT(ictus_embed_##type, 128)

FOR_PLAIN_TYPES(EMBED)
FOR_QUANTISED_TYPES(EMBED)
