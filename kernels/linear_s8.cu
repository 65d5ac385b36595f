// Fast products with weights in quant blocks of 32: see linear_s8.cuh.
#include "linear_s8.cuh"

FAST_TYPE(q4_0, CodesQ4_0, 256)
FAST_TYPE(q4_1, CodesQ4_1, 256)
FAST_TYPE(q5_0, CodesQ5_0, 256)
FAST_TYPE(q5_1, CodesQ5_1, 256)
FAST_TYPE(q8_0, CodesQ8_0, 128)
FAST_TYPE(iq4_nl, CodesIQ4_NL, 256)
