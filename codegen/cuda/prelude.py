"""What texts in CUDA C begin with: functions and types of ours. Read `prelude`."""

from __future__ import annotations

from collections.abc import Sequence

from ..expr.dtype import DType

PRELUDE = """\
template <typename T, int N> struct alignas(sizeof(T) * N) Lanes { T at[N]; };
template <typename T> static __device__ __forceinline__ T least(T a, T b) { return b < a || b != b ? b : a; }
template <typename T> static __device__ __forceinline__ T largest(T a, T b) { return b > a || b != b ? b : a; }
static __device__ __forceinline__ float least(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
static __device__ __forceinline__ float largest(float a, float b) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
template <typename T> static __device__ __forceinline__ T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }
static __device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
template <typename To, typename From> static __device__ __forceinline__ To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To result;
  memcpy(&result, &x, sizeof(To));
  return result;
}
static __device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
"""
"""The begin of every text. `least` and `largest` of NaN and a number are NaN.

`await_previous` waits until the launch before is done and its results can be seen, then lets the next one start, which
does the same: see `launch_call.OVERLAPPING` (PTX ISA, "griddepcontrol").
"""

INTEGER_POWER = """\
template <typename T, typename N> static __device__ T integer_power(T x, N exponent) {
  T result = 1, square = x;
  if (exponent < 0 && x != 1 && !((T)-1 < 0 && x == (T)-1)) return 0;
  unsigned long long left = exponent < 0 ? 0 - (unsigned long long)exponent : (unsigned long long)exponent;
  for (; left; left >>= 1, square = (T)(square * square)) {
    if (left & 1) result = (T)(result * square);
  }
  return result;
}
"""
"""For texts that take powers of integers."""

QUOTIENT = """\
static __device__ __forceinline__ float quotient(float x, float by, float inverse) {
  const float first = x * inverse, magnitude = fabsf(x);
  const float exact = fmaf(fmaf(-first, by, x), inverse, first);
  return magnitude > 0x1p-100f && magnitude < 0x1p100f ? exact : first;
}
"""
"""For texts that divide by a known number: no branch, which a division of floats has for operands far from 1.

The same to the last bit where the dividend is of such magnitude, else within two units in the last place. Brisebarre,
Muller and Raina, "Accelerating Correctly Rounded Floating-Point Division When the Divisor Is Known in Advance" (2004).
"""

DIVISORS = (2.0**-20, 2.0**20)
"""Least and largest magnitude of a divisor for `QUOTIENT`."""

NARROW = {
    DType.F16: """\
struct Half {
  unsigned short bits;
  Half() = default;
  explicit __device__ __forceinline__ Half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  explicit __device__ __forceinline__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};
""",
    DType.BF16: """\
struct Brain {
  unsigned short bits;
  Brain() = default;
  explicit __device__ __forceinline__ Brain(float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  explicit __device__ __forceinline__ operator float() const { return __int_as_float(bits << 16); }
};
""",
}
"""Types of memory, defined where they are used. They are only cast. CUDA's own take its headers to compile."""


def prelude(functions: Sequence[str]) -> str:
    """The begin of a text of these functions: `PRELUDE`, and what they call beside that."""
    optional = {"integer_power(": INTEGER_POWER, "quotient(": QUOTIENT}
    return PRELUDE + "".join(text for call, text in optional.items() if any(call in one for one in functions))
