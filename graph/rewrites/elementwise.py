"""Which ops compute each element of the result from elements at the same place."""

from __future__ import annotations

_BROADCASTING = """
Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul
Or Pow Sub Sum Where Xor
"""
BROADCASTING_OPS = frozenset(_BROADCASTING.split())
"""Of several operands, which broadcast against each other in any way."""

_ELEMENTWISE = """
Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid
HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not PRelu Reciprocal Relu Round Selu Shrink Sigmoid Sign Silu Sin
Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu
"""

QUANTISING_OPS = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Between floats and bytes. A scale of several elements lies along one axis, whichever that is."""

ELEMENTWISE_OPS = BROADCASTING_OPS | QUANTISING_OPS | frozenset(_ELEMENTWISE.split())
"""All of them. What has further operands (Clip's limits, PRelu's slope) broadcasts them to the first."""
