//! Builds GGUF files in memory, right or wrong.

/// A metadata value.
#[derive(Clone)]
pub(crate) enum Value {
    /// Type 0.
    U8(u8),
    /// Type 1.
    I8(i8),
    /// Type 2.
    U16(u16),
    /// Type 3.
    I16(i16),
    /// Type 4.
    U32(u32),
    /// Type 5.
    I32(i32),
    /// Type 6.
    F32(f32),
    /// Type 7.
    Bool(bool),
    /// Type 8.
    Text(String),
    /// Type 9, of the type of its elements; all must have the same.
    Array(Vec<Value>),
    /// Type 10.
    U64(u64),
    /// Type 11.
    I64(i64),
    /// Type 12.
    F64(f64),
    /// Any type number and bytes.
    Raw(u32, Vec<u8>),
}

impl Value {
    /// A string.
    pub(crate) fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// An array of strings.
    pub(crate) fn texts(texts: &[&str]) -> Self {
        Self::Array(texts.iter().map(|text| Self::text(text)).collect())
    }

    /// Its type number.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) => 8,
            Self::Array(_) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
            Self::Raw(kind, _) => *kind,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(value) => out.push(*value),
            Self::I8(value) => out.extend(value.to_le_bytes()),
            Self::U16(value) => out.extend(value.to_le_bytes()),
            Self::I16(value) => out.extend(value.to_le_bytes()),
            Self::U32(value) => out.extend(value.to_le_bytes()),
            Self::I32(value) => out.extend(value.to_le_bytes()),
            Self::F32(value) => out.extend(value.to_le_bytes()),
            Self::Bool(value) => out.push((*value).into()),
            Self::Text(text) => write_text(text, out),
            Self::U64(value) => out.extend(value.to_le_bytes()),
            Self::I64(value) => out.extend(value.to_le_bytes()),
            Self::F64(value) => out.extend(value.to_le_bytes()),
            Self::Raw(_, bytes) => out.extend(bytes),
            Self::Array(values) => {
                out.extend(values.first().map_or(4, Self::kind).to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| value.write(out));
            }
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A tensor to write.
#[derive(Clone)]
pub(crate) struct TensorEntry {
    /// Name.
    pub(crate) name: String,
    /// Sizes, innermost first.
    pub(crate) dims: Vec<u64>,
    /// Type number.
    pub(crate) kind: u32,
    /// Offset to state; none for the next aligned one.
    pub(crate) offset: Option<u64>,
    /// Data.
    pub(crate) data: Vec<u8>,
}

/// A file to write.
#[derive(Clone)]
pub(crate) struct Gguf {
    /// Version to state.
    pub(crate) version: u32,
    /// Alignment to write with; a key states it when it is not 32.
    pub(crate) alignment: usize,
    /// Number of tensors to state; none for the right one.
    pub(crate) tensor_count: Option<u64>,
    /// Number of keys to state; none for the right one.
    pub(crate) key_count: Option<u64>,
    /// Keys.
    pub(crate) keys: Vec<(String, Value)>,
    /// Tensors.
    pub(crate) tensors: Vec<TensorEntry>,
}

impl Gguf {
    /// An empty file of version 3.
    pub(crate) fn new() -> Self {
        Self { version: 3, alignment: 32, tensor_count: None, key_count: None, keys: Vec::new(), tensors: Vec::new() }
    }

    /// Sets a key: replaces the value, or adds it.
    pub(crate) fn key(mut self, name: &str, value: Value) -> Self {
        match self.keys.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None => self.keys.push((name.to_owned(), value)),
        }
        self
    }

    /// Removes a key.
    pub(crate) fn without_key(mut self, name: &str) -> Self {
        self.keys.retain(|(key, _)| key != name);
        self
    }

    /// Adds a tensor of F32 values that depend on their place only.
    pub(crate) fn f32_tensor(mut self, name: &str, dims: &[u64]) -> Self {
        let count: u64 = dims.iter().product();
        let data = (0..count).flat_map(|i| ((i % 7) as f32 * 0.25 - 0.5).to_le_bytes()).collect();
        self.tensors.push(TensorEntry { name: name.to_owned(), dims: dims.to_vec(), kind: 0, offset: None, data });
        self
    }

    /// Removes a tensor.
    pub(crate) fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// A tensor, to change it.
    pub(crate) fn tensor_mut(&mut self, name: &str) -> &mut TensorEntry {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("the tensor is there")
    }

    /// The file's bytes.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        let stated = (self.alignment != 32).then_some(Value::U32(self.alignment as u32));
        let key_count = self.keys.len() + usize::from(stated.is_some());
        out.extend(self.key_count.unwrap_or(key_count as u64).to_le_bytes());
        let alignment_key = "general.alignment".to_owned();
        for (key, value) in
            self.keys.iter().map(|(key, value)| (key, value)).chain(stated.iter().map(|value| (&alignment_key, value)))
        {
            write_text(key, &mut out);
            out.extend(value.kind().to_le_bytes());
            value.write(&mut out);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            data.resize(usize::next_multiple_of(data.len(), self.alignment), 0);
            write_text(&tensor.name, &mut out);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        out.resize(usize::next_multiple_of(out.len(), self.alignment), 0);
        out.extend(data);
        out
    }
}

/// The smallest llama that opens: one layer, hidden 4, one head of 2, six tokens, F32.
pub(crate) fn tiny_llama() -> Gguf {
    let mut file = Gguf::new()
        .key("general.architecture", Value::text("llama"))
        .key("general.name", Value::text("tiny"))
        .key("llama.block_count", Value::U32(1))
        .key("llama.context_length", Value::U32(16))
        .key("llama.embedding_length", Value::U32(4))
        .key("llama.feed_forward_length", Value::U32(6))
        .key("llama.attention.head_count", Value::U32(2))
        .key("llama.attention.head_count_kv", Value::U32(1))
        .key("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5))
        .key("llama.rope.freq_base", Value::F32(10_000.0))
        .key("llama.rope.dimension_count", Value::U32(2))
        .key("tokenizer.ggml.model", Value::text("gpt2"))
        .key("tokenizer.ggml.pre", Value::text("gpt-2"))
        .key("tokenizer.ggml.tokens", Value::texts(&["a", "b", "ab", "c", "<s>", "</s>"]))
        .key("tokenizer.ggml.token_type", Value::Array([1, 1, 1, 1, 3, 3].map(Value::I32).to_vec()))
        .key("tokenizer.ggml.merges", Value::texts(&["a b"]))
        .key("tokenizer.ggml.bos_token_id", Value::U32(4))
        .key("tokenizer.ggml.eos_token_id", Value::U32(5))
        .f32_tensor("token_embd.weight", &[4, 6])
        .f32_tensor("output_norm.weight", &[4]);
    for (name, dims) in [
        ("attn_norm", &[4][..]),
        ("attn_q", &[4, 4]),
        ("attn_k", &[4, 2]),
        ("attn_v", &[4, 2]),
        ("attn_output", &[4, 4]),
        ("ffn_norm", &[4]),
        ("ffn_gate", &[4, 6]),
        ("ffn_up", &[4, 6]),
        ("ffn_down", &[6, 4]),
    ] {
        file = file.f32_tensor(&format!("blk.0.{name}.weight"), dims);
    }
    file
}
