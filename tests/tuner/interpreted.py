"""Small models of many kinds, and a GPU that the interpreter stands in for, which runs whatever was built for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from onnx import parser

from tunewright.codegen.cuda import interp
from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.driver import DeviceMemory as DeviceMemory
from tunewright.codegen.cuda.emit import emit
from tunewright.codegen.gpu import KNOWN, WIDEST_BYTES
from tunewright.codegen.ir.ir import Kernel
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify

from ..workers.simulated import Simulated, content_of

GPU = Target.of_gpu(KNOWN["sm_90a"])

MODELS = {
    "chain": """(float[9, 24] x, float[7] s) => (float[9, 7] y, float[9, 40] t)
        <float[24, 40] w = {W}, float[40, 7] v = {V}>
        { a = MatMul(x, w) t = Relu(a) b = MatMul(t, v) c = Mul(b, s) y = Softmax(c) }""",
    "half": """(float16[16, 32] x, float16[32, 16] w) => (float16[16, 16] y)
        { a = MatMul(x, w) b = Sigmoid(a) y = Add(a, b) }""",
    "two of one operand": """(float[9, 24] x) => (float[9, 9] y) <float[24, 40] w = {W}, float[24, 40] v = {W}>
        { a = MatMul(x, w) n = Neg(v) b = MatMul(x, n) t = Transpose(b) p = MatMul(a, t) y = Sigmoid(p) }""",
    "windows": """(float[1, 3, 9, 11] x) => (float[1, 8, 5, 6] y) <float[8, 3, 3, 3] w = {K}>
        { a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w) y = Relu(a) }""",
    "parts of odd sizes": """(float[10, 3] x) => (float[10, 3] y)
        { a, b = Split<axis = 0, num_outputs = 2>(x) c = Softmax(a) d = Softmax<axis = 0>(b)
          y = Concat<axis = 0>(c, d) }""",
    "rounds of odd sizes": """(float[5, 1, 4] x) => (float[5, 1, 1, 3] y, float[1, 1, 3] h)
        <float[1, 12, 4] w = {R}, float[1, 12, 3] r = {S}> { y, h, c = LSTM<hidden_size = 3>(x, w, r) }""",
    "weights of four bits": """(float16[3, 64] x) => (float16[3, 64] y)
        <uint8[128, 32] a = {Q}, uint8[128, 32] b = {Q}, uint8[256, 16] c = {Q}, uint8[128] z = {Z}, uint8[256] o = {O},
         float f = {0.03125}, int64[1] n = {128}, int64[1] m = {256}, int64[2] g = {64, 64}>
        { s = Cast<to = 10>(f) i = Expand(s, n) j = Expand(s, m)
          p = DequantizeLinear<axis = 0>(a, i, z) q = DequantizeLinear<axis = 0>(b, i, z)
          r = DequantizeLinear<axis = 0>(c, j, o) d = Reshape(p, g) e = Reshape(q, g) h = Reshape(r, g)
          k = Transpose<perm = [1, 0]>(d) l = Transpose<perm = [1, 0]>(e) t = Transpose<perm = [1, 0]>(h)
          u = MatMul(x, k) v = MatMul(x, l) w = Tanh(u) aa = Mul(w, v) ab = MatMul(aa, t) y = Add(ab, x) }""",
    "without a kernel": """(float[1, 1, 6, 6] x) => (float[1, 1, 6, 6] y, float[1, 1] b)
        { a = Relu(x) b = Det(a) c = Mul(a, b) y = Softmax(c) }""",
    "a long cache": """(float16[2, 3, 16] x, float16[2, 600, 16] k, float16[2, 600, 16] v, float16[2, 1, 16] new)
        => (float16[2, 3, 16] y) <float scale = {0.25}>
        { keys = Concat<axis = 1>(k, new) values = Concat<axis = 1>(new, v) t = Transpose<perm = [0, 2, 1]>(keys)
          factor = CastLike(scale, x) q = Mul(x, factor) s = MatMul(q, t) p = Softmax(s) y = MatMul(p, values) }""",
    "handed through": """(float[4, 5] x) => (float[4, 5] x2, float[20] r, float[4, 5] y) <int64[1] flat = {20}>
        { x2 = Identity(x) r = Reshape(x, flat) y = Exp(x) }""",
}  # fmt: skip


def model_of(name: str) -> bytes:
    rng = np.random.default_rng(0)
    text = MODELS[name]
    for key, count in {"{W}": 24 * 40, "{V}": 40 * 7, "{K}": 8 * 27, "{R}": 12 * 4, "{S}": 12 * 3}.items():
        if key in text:
            text = text.replace(key, "{" + ", ".join(f"{one:.4f}" for one in rng.uniform(-0.5, 0.5, count)) + "}")
    for key, count in {"{Q}": 128 * 32, "{Z}": 128, "{O}": 256}.items():
        while key in text:
            text = text.replace(key, "{" + ", ".join(map(str, rng.integers(0, 16, count))) + "}", 1)
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> m {text}')
    return bytes(model.SerializeToString())


class Interpreted(Simulated):
    """A device that runs whatever was built here. `recordings` are how often graphs were made."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[bytes, Kernel] = {}
        self.recordings = 0

    def built(self, kernel: Kernel, target: Target, cache: object = None) -> GpuArtifact:
        verify(kernel)
        code = str(kernel).encode()
        self.kernels[code] = kernel
        launches, packings = emit(kernel, "kernel").launches, dict(kernel.packings)
        sha256 = hashlib.sha256(code).hexdigest()
        return GpuArtifact(code, sha256, launches, {}, kernel.params, kernel.scratch, packings)

    def program(self, artifact: GpuArtifact, operands: Sequence[DeviceMemory]) -> Callable[[], None]:
        kernel, given = self.kernels[artifact.code], [content_of(memory) for memory in operands]
        assert all(one.ctypes.data % WIDEST_BYTES == 0 for one in given)
        buffers = zip((*artifact.params, *artifact.scratch), given, strict=True)
        arrays = [one.view(buffer.dtype.numpy).reshape(buffer.shape) for buffer, one in buffers]

        def run() -> None:
            for scratch in given[len(kernel.params) :]:
                scratch[...] = 0xFF  # where nothing else may live now
            interp.run(kernel, arrays[: len(kernel.params)])

        return run

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self.recordings += 1
        return super().capture(run)
