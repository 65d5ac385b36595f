// Exponential, SiLU and GELU: the formulas of the CPU backend (src/backend/cpu/math.rs), fused in the same places, so that both have
// the same bits. No approximate instruction is used.
#pragma once
#include "common.cuh"

// 2^n for a whole number n in [-126, 127].
DEV f32 power_of_two(f32 n) { return float_of((u32)((i32)n + 127) << 23); }

// e^x within one unit in the last place: x = n ln 2 + r, the Taylor sum of e^r up to r^7 / 7!, and 2^n in two factors, so that results go down
// through the subnormals and up to infinity. NaN stays NaN; e^-inf is 0.
DEV f32 exponential(f32 x) {
    constexpr f32 LIMIT = 105.0f, ROUND = 12582912.0f;
    if (is_nan(x)) return x;
    x = x < -LIMIT ? -LIMIT : x > LIMIT ? LIMIT : x;
    f32 n = fused(x, 1.44269504088896340736f, ROUND) - ROUND;
    f32 r = fused(n, -0.6933594f, x);
    r = fused(n, 2.1219444e-4f, r);
    f32 sum = 1.0f / 5040.0f;
    sum = fused(sum, r, 1.0f / 720.0f);
    sum = fused(sum, r, 1.0f / 120.0f);
    sum = fused(sum, r, 1.0f / 24.0f);
    sum = fused(sum, r, 1.0f / 6.0f);
    sum = fused(sum, r, 0.5f);
    sum = fused(sum, r, 1.0f);
    sum = fused(sum, r, 1.0f);
    f32 half = fused(n, 0.5f, ROUND) - ROUND;
    return sum * power_of_two(half) * power_of_two(n - half);
}

// x / (1 + e^-x)
DEV f32 silu(f32 x) { return x / (1.0f + exponential(0.0f - x)); }

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which is x / (1 + e^-2u)
DEV f32 gelu_tanh(f32 x) {
    constexpr f32 FACTOR = -2.0f * 1.1283791671f * 0.70710678119f;
    f32 inner = fused(x * x, 0.044715f * FACTOR, FACTOR);
    return x / (1.0f + exponential(x * inner));
}

// e^x for x in (-36.7368, 0] as sampling defines it (T-121): no fused operation.
DEV f32 sampling_exponential(f32 x) {
    constexpr f32 SHIFT = 12582912.0f;
    x = x < -36.7368f ? -36.7368f : x > 0.0f ? 0.0f : x;
    f32 exponent = x * 1.44269504088896340736f - 0.5f;
    f32 nearest = (exponent + SHIFT) - SHIFT;
    f32 n = nearest < exponent ? nearest + 1.0f : nearest;
    f32 r = (x - n * 0.6933594f) - n * -2.1219444e-4f;
    f32 polynomial = 1.9875691e-4f;
    polynomial = polynomial * r + 1.3982e-3f;
    polynomial = polynomial * r + 8.333452e-3f;
    polynomial = polynomial * r + 4.1665796e-2f;
    polynomial = polynomial * r + 0.16666665f;
    polynomial = polynomial * r + 0.5f;
    f32 mantissa = polynomial * (r * r) + r + 1.0f;
    return mantissa * power_of_two(n);
}
