#![forbid(unsafe_code)]
//! The numbers that GGUF files give to element types.

use crate::tensor::DType;

/// Number of an element type in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeId(pub u32);

impl TypeId {
    /// The element type, when it is one that this crate reads.
    pub fn dtype(self) -> Option<DType> {
        Some(match self.0 {
            0 => DType::F32,
            1 => DType::F16,
            2 => DType::Q4_0,
            3 => DType::Q4_1,
            6 => DType::Q5_0,
            7 => DType::Q5_1,
            8 => DType::Q8_0,
            10 => DType::Q2_K,
            11 => DType::Q3_K,
            12 => DType::Q4_K,
            13 => DType::Q5_K,
            14 => DType::Q6_K,
            20 => DType::IQ4_NL,
            23 => DType::IQ4_XS,
            30 => DType::BF16,
            _ => return None,
        })
    }

    /// The name that people know, for messages.
    pub fn name(self) -> String {
        if let Some(dtype) = self.dtype() {
            return format!("{dtype:?}");
        }
        let name = match self.0 {
            9 => "Q8_1",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            21 => "IQ3_S",
            22 => "IQ2_S",
            24 => "I8",
            25 => "I16",
            26 => "I32",
            27 => "I64",
            28 => "F64",
            29 => "IQ1_M",
            34 => "TQ1_0",
            35 => "TQ2_0",
            39 => "MXFP4",
            other => return format!("number {other}"),
        };
        name.to_owned()
    }
}
