// Where keys and values lie on the device, and how rows find them.
//
//   pool    [layer][page][kv_head][keys, values][slot][dim]     elements of f16 or f32; a kernel gets the pool from its layer on
//   table   [span][table_width] u32                              physical page of each logical page
//   spans   [span][3] u32                                        first row, rows, position of the first row
//
// A span is the rows of one sequence in a step. Position p of it is slot p % page_size of page table[p / page_size].
#pragma once
#include "common.cuh"

// Of f16 the bits.
DEV f32 element_value(u16 bits) { return from_f16(bits); }
DEV f32 element_value(f32 value) { return value; }
DEV void put_element(Ptr<u16> to, u64 at, f32 value) { to[at] = to_f16(value); }
DEV void put_element(Ptr<f32> to, u64 at, f32 value) { to[at] = value; }

// Element offset of dimension 0 of the key (or, with `part` 1, of the value) of a slot.
DEV u64 cell_of(u32 page, u32 head, u32 part, u32 slot, u32 n_kv_heads, u32 page_size, u32 head_dim) {
    return ((((u64)page * n_kv_heads + head) * 2 + part) * page_size + slot) * head_dim;
}
