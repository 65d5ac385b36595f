//! A backend of simulated CUDA kernels: each operation is the launches that a device would get.
//!
//! Activations are made anew, unwritten, whenever rows are asked for, so that whoever reads what nobody computed is found. Attention of
//! single rows goes by segments and a merge, of more rows by the prefill kernel.

use std::ops::Range;

use ictus::backend::{AttentionShape, Backend, BackendError, EachRow, Gate, KvShape, KvType, RopeTable, Span};
use ictus::checkpoint::RopePairing;
use ictus::tensor::{DType, Tensor, dequantise_row};

use super::simulator::{Arg, Device, Memory, Owned, args, device};

/// Positions of a segment of attention.
const SEGMENT: usize = 256;
/// Pairs of a row and a head that a block of attention takes.
const PAIRS: usize = 8;

/// The backend. Only where [`device`] answers one.
pub(crate) struct Simulated;

pub(crate) struct Matrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    memory: Owned,
}

pub(crate) struct Vector {
    len: usize,
    memory: Owned,
}

#[derive(Default)]
pub(crate) struct Buffer {
    width: usize,
    rows: usize,
    /// None without rows.
    memory: Option<Owned>,
}

impl Buffer {
    fn len(&self) -> usize {
        self.rows * self.width
    }

    fn memory(&self) -> Memory {
        self.memory.as_ref().expect("there are rows").0
    }
}

pub(crate) struct Pages {
    shape: KvShape,
    memory: Owned,
}

impl Pages {
    fn page_elements(&self) -> usize {
        self.shape.n_kv_heads * 2 * self.shape.page_size_tokens * self.shape.head_dim
    }

    fn layer_elements(&self) -> usize {
        self.shape.pages * self.page_elements()
    }

    fn layer(&self, layer: usize) -> Memory {
        self.memory.0.from(layer * self.layer_elements() * self.shape.element.bytes())
    }

    /// The last part of the names of kernels over this pool.
    fn suffix(&self) -> &'static str {
        match self.shape.element {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
        }
    }
}

fn held() -> Device {
    device().expect("the simulator is there")
}

/// Block tables and spans as kernels take them, and the width of the table.
fn metadata(device: &mut Device, spans: &[Span<'_>]) -> (Memory, Memory, u32) {
    let width = spans.iter().map(|span| span.block_table.len()).max().unwrap_or(0).max(1);
    let row = |span: &Span<'_>| {
        let mut row = span.block_table.to_vec();
        row.resize(width, u32::MAX); // nobody may look there
        row
    };
    let table: Vec<u32> = spans.iter().flat_map(row).collect();
    let spans: Vec<u32> = spans.iter().flat_map(|s| [s.first_row, s.rows, s.start].map(|n| n as u32)).collect();
    (device.upload(&table), device.upload(&spans), width as u32)
}

fn upload(device: &mut Device, tensor: &Tensor) -> Memory {
    let bytes = tensor.data.as_slice();
    match tensor.dtype {
        DType::F32 => {
            let words: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            device.upload(&words)
        }
        DType::F16 | DType::BF16 => {
            let words: Vec<u16> = bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect();
            device.upload(&words)
        }
        _ => device.upload(bytes),
    }
}

fn name(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

/// Blocks of an operation by elements.
fn blocks(count: usize) -> [usize; 3] {
    [count.div_ceil(256).min(64), 1, 1]
}

impl Backend for Simulated {
    type Matrix = Matrix;
    type Vector = Vector;
    type Buffer = Buffer;
    type Pages = Pages;

    fn matrix(&self, tensor: &Tensor) -> Result<Matrix, BackendError> {
        let mut device = held();
        let memory = upload(&mut device, tensor);
        Ok(Matrix { dtype: tensor.dtype, rows: tensor.rows, cols: tensor.cols, memory: device.keep(memory) })
    }

    fn vector(&self, tensor: &Tensor) -> Result<Vector, BackendError> {
        let mut values = vec![0.0; tensor.rows * tensor.cols];
        dequantise_row(tensor.dtype, tensor.data.as_slice(), &mut values).expect("whole rows");
        let mut device = held();
        let memory = device.upload(&values);
        Ok(Vector { len: values.len(), memory: device.keep(memory) })
    }

    fn pages(&self, shape: &KvShape) -> Result<Pages, BackendError> {
        let elements = shape.token_elements() * shape.page_size_tokens * shape.pages;
        let mut device = held();
        let memory = match shape.element {
            KvType::F16 => device.upload(&vec![0_u16; elements]),
            KvType::F32 => device.upload(&vec![0.0_f32; elements]),
        };
        Ok(Pages { shape: *shape, memory: device.keep(memory) })
    }

    fn buffer(&self, width: usize) -> Buffer {
        Buffer { width, ..Buffer::default() }
    }

    fn resize(&self, buffer: &mut Buffer, rows: usize) -> Result<(), BackendError> {
        buffer.memory = None;
        buffer.rows = rows;
        if rows > 0 {
            let mut device = held();
            let memory = device.room::<f32>(buffer.len());
            buffer.memory = Some(device.keep(memory));
        }
        Ok(())
    }

    fn embed(&self, table: &Matrix, tokens: &[u32], scale: f32, out: &mut Buffer) {
        if tokens.is_empty() {
            return;
        }
        let mut device = held();
        let ids = device.upload(tokens);
        let kernel = format!("ictus_embed_{}", name(table.dtype));
        let arguments = args![out.memory(), table.memory.0, ids, table.cols as u32, scale];
        device.launch(&kernel, [tokens.len(), 1, 1], arguments);
    }

    fn rms_norm(&self, x: &Buffer, weight: &Vector, epsilon: f32, out: &mut Buffer) {
        if x.rows > 0 {
            let arguments = args![out.memory(), x.memory(), weight.memory.0, weight.len as u32, epsilon];
            held().launch("ictus_rms_norm", [x.len() / weight.len, 1, 1], arguments);
        }
    }

    fn add_rms_norm(&self, x: &mut Buffer, delta: &Buffer, weight: &Vector, epsilon: f32, out: &mut Buffer) {
        if x.rows > 0 {
            let memory = [out.memory(), x.memory(), delta.memory(), weight.memory.0].map(Arg::from);
            let mut arguments = memory.to_vec();
            arguments.extend([Arg::U32(weight.len as u32), Arg::F32(epsilon)]);
            held().launch("ictus_add_rms_norm", [x.len() / weight.len, 1, 1], &arguments);
        }
    }

    fn rms_norm_in_place(&self, x: &mut Buffer, weight: &Vector, epsilon: f32) {
        if x.rows > 0 {
            let arguments = args![x.memory(), x.memory(), weight.memory.0, weight.len as u32, epsilon];
            held().launch("ictus_rms_norm", [x.len() / weight.len, 1, 1], arguments);
        }
    }

    fn linear(&self, x: &Buffer, weight: &Matrix, bias: Option<&Vector>, out: &mut Buffer) {
        if x.rows == 0 {
            return;
        }
        let at_a_time = match x.rows {
            1 => 1,
            2..=4 => 4,
            _ => 16,
        };
        let kernel = format!("ictus_linear_{}_m{at_a_time}", name(weight.dtype));
        let bias = bias.map_or(Arg::Null, |bias| bias.memory.0.into());
        let sizes = [x.rows, weight.cols, weight.rows].map(|n| Arg::U32(n as u32));
        let mut arguments = vec![out.memory().into(), x.memory().into(), weight.memory.0.into(), bias];
        arguments.extend(sizes);
        held().launch(&kernel, [weight.rows.div_ceil(4), x.rows.div_ceil(at_a_time), 1], &arguments);
    }

    fn angles(&self, table: &RopeTable, spans: &[Span<'_>], out: &mut Buffer) {
        for span in spans {
            for i in 0..span.rows {
                let turns = table.frequencies.iter().map(|frequency| (span.start + i) as f64 * frequency);
                let cosines = turns.clone().map(|turn| turn.cos() as f32);
                let row: Vec<f32> = cosines.chain(turns.map(|turn| turn.sin() as f32)).collect();
                held().write(out.memory().from((span.first_row + i) * out.width * 4), &row);
            }
        }
    }

    fn rope(&self, x: &mut Buffer, head_dim: usize, pairing: RopePairing, angles: &Buffer) {
        if x.rows == 0 {
            return;
        }
        let interleaved = u32::from(pairing == RopePairing::Interleaved);
        let (heads, pairs) = (x.width / head_dim, angles.width / 2);
        let arguments = args![x.memory(), angles.memory(), heads as u32, head_dim as u32, pairs as u32, interleaved];
        held().launch("ictus_rope", [x.rows, 1, 1], arguments);
    }

    fn kv_write(&self, pages: &mut Pages, layer: usize, keys: &Buffer, values: &Buffer, spans: &[Span<'_>]) {
        let most = spans.iter().map(|span| span.rows).max().unwrap_or(0);
        if most == 0 {
            return;
        }
        let mut device = held();
        let (table, list, width) = metadata(&mut device, spans);
        let KvShape { n_kv_heads, head_dim, page_size_tokens, .. } = pages.shape;
        let mut arguments: Vec<Arg> = [pages.layer(layer), keys.memory(), values.memory()].map(Arg::from).to_vec();
        arguments.extend([Arg::Null, table.into(), list.into(), Arg::U32(width)]);
        arguments.extend([n_kv_heads, head_dim, page_size_tokens, 0, 0].map(|n| Arg::U32(n as u32)));
        device.launch(&format!("ictus_kv_write_{}", pages.suffix()), [most, spans.len(), 1], &arguments);
    }

    fn attention(
        &self,
        queries: &Buffer,
        pages: &Pages,
        layer: usize,
        shape: &AttentionShape,
        spans: &[Span<'_>],
        out: &mut Buffer,
    ) {
        let most = spans.iter().map(|span| span.rows).max().unwrap_or(0);
        if most == 0 {
            return;
        }
        let mut device = held();
        let (table, list, width) = metadata(&mut device, spans);
        let chunks = (most * shape.n_heads / shape.n_kv_heads).div_ceil(PAIRS);
        let window = shape.window.unwrap_or(0);
        let page_size = pages.shape.page_size_tokens;
        let mut sizes: Vec<Arg> = [shape.n_heads, shape.n_kv_heads, shape.head_dim, page_size, width as usize, window]
            .map(|n| Arg::U32(n as u32))
            .to_vec();
        sizes.push(Arg::F32(shape.scale));
        let memory = [queries.memory(), pages.layer(layer), table, list].map(Arg::from);
        if most > 1 {
            let kernel = format!("ictus_attention_prefill_{}", pages.suffix());
            let arguments: Vec<Arg> = [out.memory().into()].into_iter().chain(memory).chain(sizes).collect();
            device.launch(&kernel, [chunks, shape.n_kv_heads, spans.len()], &arguments);
            return;
        }
        let last = spans.iter().map(|span| span.start + span.rows).max().unwrap_or(0);
        let segments = last.div_ceil(SEGMENT);
        let states = queries.rows * shape.n_heads * segments;
        let (partial, states) = (device.room::<f32>(states * shape.head_dim), device.room::<f32>(2 * states));
        let mut arguments: Vec<Arg> = vec![partial.into(), states.into()];
        arguments.extend(memory);
        arguments.push(Arg::U32(segments as u32));
        arguments.extend(sizes);
        let kernel = format!("ictus_attention_decode_{}", pages.suffix());
        device.launch(&kernel, [segments, shape.n_kv_heads * chunks, spans.len()], &arguments);
        let arguments = args![out.memory(), partial, states, segments as u32, shape.head_dim as u32];
        device.launch("ictus_attention_merge", [shape.n_heads, queries.rows, 1], arguments);
    }

    fn gate(&self, gate: &mut Buffer, up: &Buffer, act: Gate) {
        let kernel = match act {
            Gate::Silu => "ictus_gate_silu",
            Gate::GeluTanh => "ictus_gate_gelu_tanh",
        };
        if gate.rows > 0 {
            held().launch(kernel, blocks(gate.len()), args![gate.memory(), up.memory(), gate.len() as u64]);
        }
    }

    fn add(&self, x: &mut Buffer, y: &Buffer) {
        if x.rows > 0 {
            held().launch("ictus_add", blocks(x.len()), args![x.memory(), y.memory(), x.len() as u64]);
        }
    }

    fn gather_rows(&self, x: &Buffer, rows: &[usize], out: &mut Buffer) {
        if rows.is_empty() {
            return;
        }
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let mut device = held();
        let list = device.upload(&rows);
        let arguments = args![out.memory(), x.memory(), list, x.width as u32];
        device.launch("ictus_gather_rows", [rows.len(), 1, 1], arguments);
    }

    fn keep_rows(&self, x: &mut Buffer, rows: &[usize]) {
        let mut kept = self.buffer(x.width);
        self.resize(&mut kept, rows.len()).expect("memory");
        self.gather_rows(x, rows, &mut kept);
        *x = kept;
    }

    fn add_rows(&self, x: &mut Buffer, rows: &[usize], y: &Buffer) {
        if rows.is_empty() {
            return;
        }
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let mut device = held();
        let list = device.upload(&rows);
        device.launch("ictus_add_rows", [rows.len(), 1, 1], args![x.memory(), y.memory(), list, x.width as u32]);
    }

    fn each_row(&self, x: &mut Buffer, f: EachRow<'_>) -> Result<(), BackendError> {
        if x.rows == 0 {
            return Ok(());
        }
        let mut values: Vec<f32> = held().read(x.memory());
        values.chunks_mut(x.width).enumerate().for_each(|(row, values)| f(0, row, values));
        held().write(x.memory(), &values);
        Ok(())
    }

    fn read(&self, x: &Buffer, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        if !out.is_empty() {
            let memory = x.memory().from(4 * first_row * x.width).first(4 * out.len());
            out.copy_from_slice(&held().read::<f32>(memory));
        }
        Ok(())
    }

    fn write(&self, x: &mut Buffer, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        if !values.is_empty() {
            held().write(x.memory().from(4 * first_row * x.width), values);
        }
        Ok(())
    }

    fn copy_pages(&self, pages: &mut Pages, copies: &[(u32, u32)]) {
        if copies.is_empty() {
            return;
        }
        let pairs: Vec<u32> = copies.iter().flat_map(|&(from, to)| [from, to]).collect();
        let words = pages.page_elements() * pages.shape.element.bytes() / 4;
        let mut device = held();
        let pairs = device.upload(&pairs);
        let layer_words = (words * pages.shape.pages) as u64;
        let arguments = args![pages.memory.0, pairs, layer_words, words as u32];
        device.launch("ictus_copy_pages", [copies.len(), pages.shape.layers, 1], arguments);
    }

    fn read_tokens(
        &self,
        pages: &Pages,
        block_table: &[u32],
        positions: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        if positions.is_empty() {
            return Ok(());
        }
        let mut device = held();
        match pages.shape.element {
            KvType::F16 => {
                let tokens = device.room::<u16>(out.len() / 2);
                move_tokens(&mut device, pages, block_table, positions, tokens, "gather", 16);
                out.copy_from_slice(bytemuck::cast_slice(&device.read::<u16>(tokens)));
            }
            KvType::F32 => {
                let tokens = device.room::<u32>(out.len() / 4);
                move_tokens(&mut device, pages, block_table, positions, tokens, "gather", 32);
                out.copy_from_slice(bytemuck::cast_slice(&device.read::<u32>(tokens)));
            }
        }
        Ok(())
    }

    fn write_tokens(
        &self,
        pages: &mut Pages,
        block_table: &[u32],
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        if positions.is_empty() {
            return Ok(());
        }
        let mut device = held();
        let (tokens, bits) = match pages.shape.element {
            KvType::F16 => {
                let tokens: Vec<u16> = bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes)).collect();
                (device.upload(&tokens), 16)
            }
            KvType::F32 => {
                let tokens: Vec<u32> = bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
                (device.upload(&tokens), 32)
            }
        };
        move_tokens(&mut device, pages, block_table, positions, tokens, "scatter", bits);
        Ok(())
    }
}

fn move_tokens(
    device: &mut Device,
    pages: &Pages,
    block_table: &[u32],
    positions: Range<usize>,
    tokens: Memory,
    way: &str,
    bits: usize,
) {
    let KvShape { n_kv_heads, head_dim, page_size_tokens, .. } = pages.shape;
    let table = device.upload(block_table);
    let mut memory = [tokens, pages.memory.0];
    if way == "scatter" {
        memory.reverse();
    }
    let mut arguments: Vec<Arg> = memory.map(Arg::from).to_vec();
    arguments.extend([table.into(), Arg::U32(positions.start as u32), Arg::U32(pages.shape.token_elements() as u32)]);
    arguments.push(Arg::U64(pages.layer_elements() as u64));
    arguments.extend([n_kv_heads, head_dim, page_size_tokens].map(|n| Arg::U32(n as u32)));
    device.launch(&format!("ictus_{way}_tokens_{bits}"), [positions.len(), 1, 1], &arguments);
}
