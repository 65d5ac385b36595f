#![forbid(unsafe_code)]
//! Element types, quantised ones included, with the sizes of their units.
//!
//! A quantised row is a sequence of quant blocks, each of a fixed number of values in a fixed number of bytes.

/// Element type of a tensor.
#[allow(non_camel_case_types, reason = "the names of the file format")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// 32 values, 4 bits each, f16 scale.
    Q4_0,
    /// 32 values, 4 bits each, f16 scale and minimum.
    Q4_1,
    /// 32 values, 5 bits each, f16 scale.
    Q5_0,
    /// 32 values, 5 bits each, f16 scale and minimum.
    Q5_1,
    /// 32 values, 8 bits each, f16 scale.
    Q8_0,
    /// 256 values, 2 bits each, 16 scales and minima of 4 bits.
    Q2_K,
    /// 256 values, 3 bits each, 16 scales of 6 bits.
    Q3_K,
    /// 256 values, 4 bits each, 8 scales and minima of 6 bits.
    Q4_K,
    /// 256 values, 5 bits each, 8 scales and minima of 6 bits.
    Q5_K,
    /// 256 values, 6 bits each, 16 scales of 8 bits.
    Q6_K,
    /// 32 values, 4 bits into a table of levels, f16 scale.
    IQ4_NL,
    /// 256 values, 4 bits into the same table, 8 scales of 6 bits.
    IQ4_XS,
}

impl DType {
    /// Every type.
    pub const ALL: &'static [Self] = &[
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
    ];

    /// Values in a unit: 1, or the values of a quant block.
    pub const fn unit_values(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
        }
    }

    /// Bytes of a unit.
    pub const fn unit_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
        }
    }

    /// Bytes of a row of `cols` values; none when they do not fill whole units or the size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.unit_values()) {
            return None;
        }
        (cols / self.unit_values()).checked_mul(self.unit_bytes())
    }
}
