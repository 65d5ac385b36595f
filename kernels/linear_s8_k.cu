// Fast products with weights in quant blocks of 256: see linear_s8.cuh.
#include "linear_s8.cuh"

FAST_TYPE(q2_k, CodesQ2_K, 256)
FAST_TYPE(q3_k, CodesQ3_K, 256)
FAST_TYPE(q4_k, CodesQ4_K, 256)
FAST_TYPE(q5_k, CodesQ5_K, 256)
FAST_TYPE(q6_k, CodesQ6_K, 256)
FAST_TYPE(iq4_xs, CodesIQ4_XS, 256)
