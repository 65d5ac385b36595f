//! The kernels, one operation per file, each written once over `Simd`.

pub(super) mod attention;
pub(super) mod elementwise;
mod exp;
pub(super) mod linear;
pub(super) mod norm;
pub(super) mod rope;
pub(super) mod unpack;
