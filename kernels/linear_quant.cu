// Products with quantised weights, decoded in registers; activations stay f32 (Arithmetic::Exact): see linear.cuh.
#include "linear.cuh"

FOR_QUANTISED_TYPES(LINEAR)
