// Products with weights of 16 and 32 bits: see linear.cuh.
#include "linear.cuh"

FOR_PLAIN_TYPES(LINEAR)
