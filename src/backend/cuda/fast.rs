//! Fast products: rows are rounded to the form that a weight type is multiplied in, then multiplied as integers or in tensor cores
//! (kernels/round_rows.cu, linear_16.cu, linear_s8.cuh).
//!
//! ```text
//! weights          rows become                            rows of the walk: 1       2 ..= 16    17 ..= 64   more
//! quant blocks     bytes, a scale and sums per 32         m1 (dp4a)                 m16         m64         m64
//! bf16, f16        the same type, f16 with a scale a row  m16                       m16         m64         m128
//! f32, and 16-bit rows that are no multiple of 8: as in exact arithmetic
//! ```
//! # Invariants
//! - All kernels of a type give the same bits, so the number of rows decides about speed alone.
//! - Rounded rows lie in one place per backend, made with the workspace: what one product wrote, the next one overwrites, in order of the stream.

use super::driver::At;
use super::launch::{Launcher, Parameter, Weights, by_type, check, parameters, word};
use super::{Buffer, CudaBackend, Matrix, Vector};
use crate::backend::{Arithmetic, BackendError};
use crate::tensor::DType;

/// Columns of rounded rows are a multiple of this.
const GROUP: usize = 32;
/// What follows codes or scales begins at a multiple of this.
const ALIGNMENT: usize = 256;

/// What rows are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Bf16,
    F16,
    /// Signed bytes.
    Codes,
}

impl Form {
    /// That of products with these weights; none where they take rows as they are.
    pub(super) fn of(dtype: DType, cols: usize) -> Option<Self> {
        match dtype {
            DType::F32 => None,
            DType::BF16 | DType::F16 if !cols.is_multiple_of(8) => None,
            DType::BF16 => Some(Self::Bf16),
            DType::F16 => Some(Self::F16),
            _ => Some(Self::Codes),
        }
    }
}

/// Bytes that rows of up to so many columns take in any form.
pub(super) fn rounded_bytes(rows: usize, cols: usize) -> usize {
    // Of 16 bits: a scale a row and two bytes a column. Codes: one byte a column, and of each group eight, for an even number of rows.
    let elements = rows.saturating_add(1).saturating_mul(cols.next_multiple_of(GROUP));
    elements.saturating_mul(2).saturating_add(rows.saturating_mul(4)).saturating_add(2 * ALIGNMENT)
}

/// Where the parts of rounded rows lie.
#[derive(Clone, Copy)]
struct Rounded {
    /// Numbers of 16 bits, or codes.
    values: At<u8>,
    /// Scales of rows, or scales and sums of groups.
    notes: At<u32>,
    /// Columns of 16-bit rows.
    padded_cols: usize,
    /// Rows that notes of groups are there for.
    padded_rows: usize,
}

impl Rounded {
    fn new(place: At<u8>, form: Form, rows: usize, cols: usize) -> Self {
        let (padded_cols, padded_rows) = (cols.next_multiple_of(GROUP), rows.next_multiple_of(2));
        let (values, notes) = match form {
            Form::Bf16 | Form::F16 => (2 * rows * padded_cols, rows),
            Form::Codes => (rows * cols, 2 * padded_rows * (cols / GROUP)),
        };
        let at = values.next_multiple_of(ALIGNMENT);
        Self { values: place.first(values), notes: place.from(at).cast().first(notes), padded_cols, padded_rows }
    }

    /// Whether all of it is there.
    fn fits(&self, form: Form, rows: usize, cols: usize) -> bool {
        let (values, notes) = match form {
            Form::Bf16 | Form::F16 => (2 * rows * self.padded_cols, rows),
            Form::Codes => (rows * cols, 2 * self.padded_rows * (cols / GROUP)),
        };
        self.values.len() == values && self.notes.len() == notes
    }
}

impl Launcher {
    /// Has the fast kernels of this type compiled, and those that round rows.
    pub(super) fn prepare_fast(&self, dtype: DType, cols: usize) -> Result<(), BackendError> {
        if Form::of(dtype, cols).is_none() {
            return Ok(());
        }
        self.compile(by_type!(dtype, "ictus_fast_", "_m16"))?;
        self.compile("ictus_round_s8")
    }

    /// Rounds `rows` rows of `x` into `place`.
    fn round(&self, place: At<u8>, x: At<f32>, form: Form, rows: usize, cols: usize) -> Result<(), BackendError> {
        let rounded = Rounded::new(place, form, rows, cols);
        let name = match form {
            Form::Bf16 => "ictus_round_bf16",
            Form::F16 => "ictus_round_f16",
            Form::Codes => "ictus_round_s8",
        };
        check(name, rounded.fits(form, rows, cols) && x.len() >= rows * cols)?;
        let Rounded { values, notes, padded_cols, padded_rows } = rounded;
        if form == Form::Codes {
            check(name, cols.is_multiple_of(GROUP))?;
            let parameters = parameters![values, notes, x, word(rows)?, word(cols)?];
            let grid = [padded_rows, (cols / GROUP).div_ceil(8), 1];
            // SAFETY: `rows` rows of `x` and of codes, and notes of all groups for an even number of rows, all there by the checks.
            return unsafe { self.launch(name, grid, &parameters) };
        }
        let parameters = parameters![values, notes, x, word(cols)?, word(padded_cols)?];
        // SAFETY: `rows` rows of `x`, as many padded ones and scales, all there by the checks.
        unsafe { self.launch(name, [rows, 1, 1], &parameters) }
    }

    /// As [`Launcher::linear`], of rows that [`Launcher::round`] left in `place`.
    fn linear_rounded(
        &self,
        out: At<f32>,
        place: At<u8>,
        form: Form,
        weight: Weights,
        bias: Option<At<f32>>,
        rows: usize,
    ) -> Result<(), BackendError> {
        let (name, [outputs_at_once, rows_at_once]) = match (form, rows) {
            (Form::Codes, 1) => (by_type!(weight.dtype, "ictus_fast_", "_m1"), [4, 1]),
            (_, ..=16) => (by_type!(weight.dtype, "ictus_fast_", "_m16"), [16, 16]),
            (Form::Codes, _) | (_, ..=64) => (by_type!(weight.dtype, "ictus_fast_", "_m64"), [64, 64]),
            _ => (by_type!(weight.dtype, "ictus_fast_", "_m128"), [128, 128]),
        };
        let rounded = Rounded::new(place, form, rows, weight.cols);
        let Weights { rows: outputs, cols: inputs, .. } = weight;
        check(name, weight.needed().is_some_and(|needed| needed <= weight.bytes.len()))?;
        check(name, rounded.fits(form, rows, inputs) && out.len() >= rows * outputs)?;
        check(name, bias.is_none_or(|bias| bias.len() >= outputs))?;
        let Rounded { values, notes, padded_cols, padded_rows } = rounded;
        let bias = bias.unwrap_or(At::null());
        let (rows_word, inputs, outputs_word) = (word(rows)?, word(inputs)?, word(outputs)?);
        let parameters = match form {
            Form::Codes => {
                parameters![out, values, notes, weight.bytes, bias, rows_word, word(padded_rows)?, inputs, outputs_word]
            }
            Form::Bf16 | Form::F16 => {
                parameters![out, values, notes, weight.bytes, bias, rows_word, inputs, word(padded_cols)?, outputs_word]
            }
        };
        let grid = [outputs.div_ceil(outputs_at_once), rows.div_ceil(rows_at_once), 1];
        // SAFETY: rounded rows of this form with their notes, `rows` rows of `out`, all rows of the weight and of the bias, all there by the checks.
        unsafe { self.launch(name, grid, &parameters) }
    }
}

impl CudaBackend {
    /// The same backend with this arithmetic; a new one is exact. Matrices are prepared for it.
    pub fn with_arithmetic(self, arithmetic: Arithmetic) -> Self {
        Self { arithmetic, ..self }
    }

    /// Bytes of device memory that fast arithmetic takes for rounded rows, where a walk has so many, of inputs of up to `inputs` elements.
    pub fn rounded_bytes(rows: usize, inputs: usize) -> u64 {
        rounded_bytes(rows, inputs) as u64
    }

    /// Makes room for so many rounded rows of the widest input.
    pub(super) fn reserve_rounded(&self, rows: usize) -> Result<(), BackendError> {
        let bytes = rounded_bytes(rows, self.widest_input.get());
        if self.arithmetic == Arithmetic::Exact
            || self.widest_input.get() == 0
            || self.rounded.borrow().bytes() >= bytes
        {
            return Ok(());
        }
        let larger = self.driver().memory(bytes)?;
        self.forget_graphs()?;
        *self.rounded.borrow_mut() = larger;
        Ok(())
    }

    /// `out = x weight + bias`. `left` is the form in which `x` lies rounded, by an earlier product of the same operation.
    pub(super) fn product(
        &self,
        x: &Buffer,
        weight: &Matrix,
        bias: Option<&Vector>,
        out: &mut Buffer,
        left: &mut Option<Form>,
    ) -> Result<(), BackendError> {
        let bias = bias.map(|bias| bias.0.at());
        let form = Form::of(weight.dtype, weight.cols).filter(|_| self.arithmetic == Arithmetic::Fast);
        let Some(form) = form else {
            return self.launcher().linear(out.values(), x.values(), weight.weights(), bias, x.rows);
        };
        if self.rounded.borrow().bytes() < rounded_bytes(x.rows, weight.cols) {
            // An operation by itself, not a step's.
            self.widest_input.set(self.widest_input.get().max(weight.cols));
            self.reserve_rounded(x.rows)?;
            *left = None;
        }
        let place = self.rounded.borrow().at();
        if *left != Some(form) {
            self.launcher().round(place, x.values(), form, x.rows, weight.cols)?;
            *left = Some(form);
        }
        self.launcher().linear_rounded(out.values(), place, form, weight.weights(), bias, x.rows)
    }
}
