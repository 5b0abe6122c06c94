"""Models drawn at random, in the words of `test_sketches.MODELS`: shapes and attributes beyond what networks have.

Extents are small, odd, prime or 1; windows of up to 31 places, with any stride, dilation and padding, over one to three
dimensions; products, rows, chains, bytes; long bodies and many inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import TypeVar

import numpy as np

Rng = np.random.Generator
T = TypeVar("T")

SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 31, 32, 37, 53, 64)
KERNELS = (1, 2, 3, 3, 3, 4, 5, 5, 7, 8, 9, 11, 13, 17, 23, 31)
IMAGES = (1, 1, 1, 2, 3)
LONG = (1000, 1032, 2048, 4099, 20000, 65536)
"""Extents of rows and folds that are worth sharing."""

MOST_ELEMENTS = 200_000
"""Elements of an input."""

HALF = ("", "", "", "float16: ")
"""Prefixes of models: float32 for most, narrow types for some."""

MAPS = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Erf", "Sqrt", "Floor", "Gelu")
JOINS = ("Add", "Mul", "Sub", "Max", "Div")


def one_of(rng: Rng, *choices: T) -> T:
    return choices[int(rng.integers(len(choices)))]


def size(rng: Rng) -> int:
    return one_of(rng, *SIZES)


def shape(rng: Rng, fewest: int, most: int) -> list[int]:
    """As many dimensions as that, of no more elements than are quickly made."""
    extents = [size(rng) for _ in range(int(rng.integers(fewest, most + 1)))]
    while prod(extents) > MOST_ELEMENTS:
        largest = extents.index(max(extents))
        extents[largest] //= 2
    return extents


def listed(numbers: Sequence[int]) -> str:
    return f"[{', '.join(map(str, numbers))}]"


def attributes(**values: int | Sequence[int]) -> str:
    words = (f"{name}={value if isinstance(value, int) else listed(value)}" for name, value in values.items())
    return f"<{', '.join(words)}>"


class Slide:
    """Windows that slide over images: kernel, strides, pads and dilations, and images that are large enough."""

    def __init__(self, rng: Rng, dims: int, kernels: Sequence[int] = KERNELS) -> None:
        square = rng.random() < 0.5
        first = one_of(rng, *kernels)
        self.kernel = [first if square else one_of(rng, *kernels) for _ in range(dims)]
        self.strides = [one_of(rng, 1, 1, 1, 2, 3, 4) for _ in range(dims)]
        self.dilations = [one_of(rng, 1, 1, 1, 1, 2, 3) for _ in range(dims)]
        even = rng.random() < 0.5
        self.pads = [(k - 1) // 2 if even else int(rng.integers(k)) for _ in range(2) for k in self.kernel]
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        least = [max(1, r - self.pads[n] - self.pads[n + dims]) for n, r in enumerate(reach)]
        more = (3, 40) if dims < 3 else (3, 8)
        self.image = [low + int(rng.integers(one_of(rng, *more))) for low in least]

    def attributes(self, **others: int | Sequence[int]) -> str:
        return attributes(strides=self.strides, pads=self.pads, dilations=self.dilations, **others)


def over_images(
    rng: Rng,
    nodes: str,
    channels: int,
    image: Sequence[int],
    others: str = "",
    constants: str = "",
    first: bool | None = None,
) -> str:
    """A model of nodes from x to u, channels first or last."""
    images, dims = one_of(rng, *IMAGES), len(image)
    if rng.random() < 0.4 if first is None else first:
        return f"x{listed([images, channels, *image])}{others} | {nodes} y = Identity(u) | y ; {constants}"
    last, before = [0, *range(2, dims + 2), 1], [0, dims + 1, *range(1, dims + 1)]
    nodes = f"turned = Transpose<perm={listed(before)}>(x) {nodes.replace('(x', '(turned')}"
    inputs = f"x{listed([images, *image, channels])}{others}"
    return f"{inputs} | {nodes} y = Transpose<perm={listed(last)}>(u) | y ; {constants}"


def ending(rng: Rng, x: str, result: str = "u") -> str:
    """Nodes that end a model: nothing, a rectifier, a gate."""
    return one_of(
        rng,
        f"{result} = Identity({x})",
        f"{result} = Relu({x})",
        f"gate = Sigmoid({x}) {result} = Mul({x}, gate)",
    )


def pool(rng: Rng) -> str:
    slide = Slide(rng, one_of(rng, 1, 2, 2, 2, 3))
    op = one_of(rng, "MaxPool", "AveragePool", "LpPool")
    others = {"count_include_pad": int(rng.integers(2))} if op == "AveragePool" else {}
    nodes = f"t = {op}{slide.attributes(kernel_shape=slide.kernel, **others)}(x) {ending(rng, 't')}"
    return one_of(rng, *HALF) + over_images(rng, nodes, size(rng), slide.image)


def plane_pool(rng: Rng) -> str:
    slide = Slide(rng, one_of(rng, 1, 2, 2, 2))
    op = one_of(rng, "MaxPool", "AveragePool")
    nodes = f"t = {op}{slide.attributes(kernel_shape=slide.kernel)}(x) {ending(rng, 't')}"
    return over_images(rng, nodes, size(rng), slide.image, first=True)


def plane_depthwise(rng: Rng) -> str:
    slide, channels = Slide(rng, one_of(rng, 1, 2, 2, 2)), size(rng)
    nodes = f"t = Conv{slide.attributes(group=channels)}(x, w, z) {ending(rng, 't')}"
    others = f" w{listed([channels, 1, *slide.kernel])} z[{channels}]"
    return over_images(rng, nodes, channels, slide.image, others, "w z", first=True)


def global_pool(rng: Rng) -> str:
    image = [size(rng) for _ in range(one_of(rng, 1, 2, 3))]
    nodes = f"t = {one_of(rng, 'GlobalMaxPool', 'GlobalAveragePool')}(x) {ending(rng, 't')}"
    return over_images(rng, nodes, size(rng), image)


def pyramid(rng: Rng) -> str:
    """A pool between convolutions, as large as the images."""
    channels, side = size(rng), one_of(rng, 3, 5, 7, 9, 13, 17, 21)
    pads = [side // 2] * 4
    nodes = f"r = Conv(x, v) t = MaxPool{attributes(kernel_shape=[side] * 2, pads=pads)}(r) u = Conv(t, q)"
    weights = listed([channels, channels, 1, 1])
    return over_images(rng, nodes, channels, [size(rng), size(rng)], f" v{weights} q{weights}", "v q")


def depthwise(rng: Rng) -> str:
    slide, channels = Slide(rng, one_of(rng, 1, 2, 2, 2, 3)), size(rng)
    nodes = f"t = Conv{slide.attributes(group=channels)}(x, w, z) {ending(rng, 't')}"
    others = f" w{listed([channels, 1, *slide.kernel])} z[{channels}]"
    return one_of(rng, *HALF) + over_images(rng, nodes, channels, slide.image, others, "w z")


def convolution(rng: Rng) -> str:
    few = rng.random() < 0.7
    slide = Slide(rng, one_of(rng, 1, 2, 2, 2, 3), (1, 3, 3) if few else KERNELS)
    groups = one_of(rng, 1, 1, 1, 2, 3)
    inputs, outputs = size(rng), size(rng) * groups
    nodes = f"t = Conv{slide.attributes(group=groups)}(x, w, z) {ending(rng, 't')}"
    others = f" w{listed([outputs, inputs, *slide.kernel])} z[{outputs}]"
    constants = one_of(rng, "w z", "w z", "w z", "z")
    return one_of(rng, *HALF) + over_images(rng, nodes, inputs * groups, slide.image, others, constants)


def few_channels(rng: Rng) -> str:
    """Convolutions of narrow floats whose weights lie in even rows."""
    slide = Slide(rng, one_of(rng, 1, 2, 2), (2, 3, 3, 5, 7))
    inputs, outputs = int(rng.integers(1, 12)), 8 * int(rng.integers(1, 12))
    nodes = f"t = Conv{slide.attributes()}(x, w, z) {ending(rng, 't')}"
    others = f" w{listed([outputs, inputs, *slide.kernel])} z[{outputs}]"
    return "float16: " + over_images(rng, nodes, inputs, slide.image, others, "w z")


def plain_convolution(rng: Rng) -> str:
    """Windows of 3 by 3 in small steps, with constant weights."""
    inputs, outputs, stride = size(rng), size(rng), one_of(rng, 1, 1, 2)
    pads = [int(rng.integers(3)) for _ in range(4)]
    nodes = f"t = Conv{attributes(strides=[stride] * 2, pads=pads)}(x, w, z) {ending(rng, 't')}"
    others = f" w{listed([outputs, inputs, 3, 3])} z[{outputs}]"
    return over_images(rng, nodes, inputs, [size(rng) + 2, size(rng) + 2], others, "w z")


def plane_convolution(rng: Rng) -> str:
    """Channels first, with no padding, as a product whose pixels may lie along the lanes."""
    inputs, outputs, dims, side = size(rng), size(rng), one_of(rng, 1, 2), one_of(rng, 1, 1, 2, 3)
    image = [side + size(rng) for _ in range(dims)]
    others = f" w{listed([outputs, inputs, *[side] * dims])} z[{outputs}]"
    return over_images(rng, f"t = Conv(x, w, z) {ending(rng, 't')}", inputs, image, others, "w z", first=True)


def transposed(rng: Rng) -> str:
    dims, groups = one_of(rng, 1, 2, 2), one_of(rng, 1, 1, 2)
    kernel = [one_of(rng, 1, 2, 3, 4, 5, 7) for _ in range(dims)]
    strides = [one_of(rng, 1, 2, 2, 3) for _ in range(dims)]
    inputs = size(rng) * groups
    nodes = f"t = ConvTranspose{attributes(strides=strides, group=groups)}(x, w) {ending(rng, 't')}"
    image = [min(size(rng), 17) for _ in range(dims)]
    return over_images(rng, nodes, inputs, image, f" w{listed([inputs, size(rng), *kernel])}", "w")


def separable(rng: Rng) -> str:
    slide, channels, outputs = Slide(rng, 2, (1, 2, 3, 3, 5, 7, 8)), size(rng), size(rng)
    nodes = f"t = Conv{slide.attributes(group=channels)}(x, w, z) v = Relu(t) u = Conv(v, q)"
    others = f" w{listed([channels, 1, *slide.kernel])} z[{channels}] q{listed([outputs, channels, 1, 1])}"
    return over_images(rng, nodes, channels, slide.image, others, "w z q")


def inverted(rng: Rng) -> str:
    slide, inputs, inner, outputs = Slide(rng, 2, (1, 2, 3, 3, 5, 9)), size(rng), size(rng), size(rng)
    nodes = f"r = Conv(x, p) s = Relu(r) t = Conv{slide.attributes(group=inner)}(s, w, z) v = Relu(t) u = Conv(v, q)"
    others = f" p{listed([inner, inputs, 1, 1])} w{listed([inner, 1, *slide.kernel])} z[{inner}]"
    others += f" q{listed([outputs, inner, 1, 1])}"
    return over_images(rng, nodes, inputs, slide.image, others, "p w z q")


def product(rng: Rng) -> str:
    rows, depth, columns = size(rng), size(rng), size(rng)
    nodes = f"t = MatMul(x, w) v = Add(t, z) {ending(rng, 'v', 'y')}"
    constants = one_of(rng, "w z", "z", "")
    return one_of(rng, *HALF) + f"x[{rows}, {depth}] w[{depth}, {columns}] z[{columns}] | {nodes} | y ; {constants}"


def gemm(rng: Rng) -> str:
    rows, depth, columns, across, down = size(rng), size(rng), size(rng), int(rng.integers(2)), int(rng.integers(2))
    x, w = [rows, depth][:: -1 if across else 1], [depth, columns][:: -1 if down else 1]
    nodes = f"y = Gemm<transA={across}, transB={down}>(x, w)"
    return one_of(rng, *HALF) + f"x{listed(x)} w{listed(w)} | {nodes} | y ; {one_of(rng, 'w', '')}"


def batched(rng: Rng) -> str:
    batch, heads, rows, depth, columns = size(rng) % 5 + 1, size(rng) % 7 + 1, size(rng), size(rng), size(rng)
    x, w = [batch, heads, rows, depth], [one_of(rng, 1, batch), heads, depth, columns]
    return one_of(rng, *HALF) + f"x{listed(x)} w{listed(w)} | y = MatMul(x, w) | y ; {one_of(rng, 'w', '')}"


def wide(rng: Rng) -> str:
    """A product of narrow floats, large enough for tiles of warpgroups."""
    rows, depth, columns = (8 * size(rng) for _ in range(3))
    return f"float16: x[{rows}, {depth}] w[{depth}, {columns}] | y = MatMul(x, w) | y ; {one_of(rng, 'w', '')}"


def wide_windows(rng: Rng) -> str:
    """A convolution of narrow floats whose channels, which lie last, come in whole panels."""
    batch, height, width, channels = 1 + int(rng.integers(3)), size(rng) + 4, size(rng) + 4, 8 * size(rng)
    high, wide = (one_of(rng, 1, 3, 5) for _ in range(2))
    pads = [int(rng.integers(high)), int(rng.integers(wide)), int(rng.integers(high)), int(rng.integers(wide))]
    turned = "t = Transpose<perm=[0, 3, 1, 2]>(x)"
    nodes = f"{turned} u = Conv<pads={listed(pads)}>(t, w) y = Transpose<perm=[0, 2, 3, 1]>(u)"
    return f"float16: x[{batch}, {height}, {width}, 64] w[{channels}, 64, {high}, {wide}] | {nodes} | y ; w"


def attention(rng: Rng, kinds: Sequence[str] = HALF) -> str:
    heads, queries, depth, keys, values = size(rng) % 8 + 1, size(rng), size(rng), size(rng), size(rng)
    mask = one_of(rng, "s = Add(r, m)", "s = Identity(r)")
    inputs = f"q[{heads}, {queries}, {depth}] k[{heads}, {keys}, {depth}] m[{queries}, {keys}]"
    nodes = f"t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) {mask} p = Softmax(s) y = MatMul(p, v)"
    return one_of(rng, *kinds) + f"{inputs} v[{heads}, {keys}, {values}] | {nodes} | y ; m"


def wide_attention(rng: Rng) -> str:
    """Attention over narrow floats, whose rows fill whole panels and whose operands a tensor map can describe."""
    heads, queries, keys = size(rng) % 4 + 1, size(rng) + 64, 8 * size(rng)
    depth, values = (one_of(rng, 8, 40, 64, 72, 104, 128) for _ in range(2))
    mask = one_of(rng, "s = Add(r, m)", "s = Identity(r)")
    inputs = f"q[{heads}, {queries}, {depth}] k[{heads}, {keys}, {depth}] v[{heads}, {keys}, {values}]"
    nodes = f"t = Transpose<perm=[0, 2, 1]>(k) r = MatMul(q, t) {mask} p = Softmax(s) y = MatMul(p, v)"
    return f"float16: {inputs} m[{queries}, {keys}] | {nodes} | y ; m"


def recurrent(rng: Rng) -> str:
    steps, batch, inputs, state = 3, size(rng) % 8 + 1, min(size(rng), 32), size(rng)
    op, gates, shape_of = one_of(rng, ("LSTM", 4, "h, k"), ("GRU", 3, "k"), ("RNN", 1, "k"))
    operands = f"x[{steps}, {batch}, {inputs}] w[1, {gates * state}, {inputs}] r[1, {gates * state}, {state}]"
    return f"{operands} | y, {shape_of} = {op}<hidden_size={state}>(x, w, r) | k[1, {batch}, {state}] ; w r"


def rows(rng: Rng) -> str:
    extents = shape(rng, 1, 3)
    if rng.random() < 0.2:
        extents = [*extents[:-1][:1], one_of(rng, *LONG)]
    nodes = one_of(
        rng,
        f"y = Softmax<axis={int(rng.integers(len(extents)))}>(x)",
        "y = LogSoftmax(x)",
        "y = LayerNormalization(x, s, s)",
        "t = Mul(x, x) v = Softmax(t) y = Mul(v, x)",
        "t = Add(x, x) y = LayerNormalization(t, s)",
    )
    return one_of(rng, *HALF) + f"x{listed(extents)} s[{extents[-1]}] | {nodes} | y ; s"


def fold(rng: Rng) -> str:
    extents = [size(rng) % 3 + 1, one_of(rng, *LONG), size(rng)] if rng.random() < 0.4 else shape(rng, 2, 4)
    op = one_of(rng, "ReduceMean", "ReduceMax", "ReduceL2", "ReduceSum", "ReduceLogSumExp", "ReduceProd")
    after = "t = {op}<keepdims=1>(x, axes) y = Sub(x, t)" if rng.random() < 0.3 else "y = {op}<keepdims=0>(x, axes)"
    return f"x{listed(extents)} | {after.replace('{op}', op)} | y ; axes"


def byte_product(rng: Rng) -> str:
    kind, rows, depth, columns = one_of(rng, "int8", "uint8"), size(rng), size(rng) * one_of(rng, 1, 4, 16), size(rng)
    constants = one_of(rng, "w", "w", "")
    return f"{kind}: x[{rows}, {depth}] w[{depth}, {columns}] | t = MatMulInteger(x, w) {{steps}} | y ; {constants}"


def block_matmul(rng: Rng) -> str:
    """Few rows by weights of four or eight bits in blocks, as MatMulNBits is imported."""
    rows, columns, blocks = one_of(rng, 1, 1, 2, 3, 5, 16), one_of(rng, 16, 17, 31, 64, 65), int(rng.integers(2, 6))
    extent, bits = one_of(rng, 2, 6, 16, 32, 64), one_of(rng, 4, 8)
    return "widened: " + few_bits_text(rows, columns, blocks, extent, bits=bits)


def few_bits_text(
    rows: int,
    columns: int,
    blocks: int,
    extent: int,
    *,
    bits: int = 4,
    has_zeros: bool = False,
    then: str = "",
    order: Sequence[int] = (0, 1, 2),
) -> str:
    """Rows by weights of few bits, [columns, blocks, extent], with zero points of each block or one for all.

    `then` comes from t to y, and may read z, a number for each column. Rows are [rows, blocks, extent] once what is
    given has been transposed to that by `order`.
    """
    count, depth, is_moved = columns * blocks, blocks * extent, list(order) != [0, 1, 2]
    shape = rows, blocks, extent
    given = [shape[list(order).index(axis)] for axis in range(3)] if is_moved else [rows, depth]
    constants = (
        "f = Constant<value_float=0.125>() e = Constant<value=uint8 {8}>() m = Constant<value=uint8 {15}>()"
        f" n = Constant<value_ints=[{count}]>() g = Constant<value_ints=[{columns}, {depth}]>()"
    )
    least = "Min(v, m)" if bits == 4 else "Identity(v)"
    numbers = f"c = Cast<to=1>(w) v = QuantizeLinear(c, f, e) u = {least} s = CastLike(f, x) i = Expand(s, n)"
    zeros = "a = Abs(o) b = Add(a, a) j = Cast<to=2>(b)" if has_zeros else "j = Expand(e, n)"
    weights = "d = DequantizeLinear<axis=0>(u, i, j) h = Reshape(d, g) k = Transpose<perm=[1, 0]>(h)"
    lines = (
        f"q = Transpose<perm={list(order)}>(x) l = Constant<value_ints=[{rows}, {depth}]>() r = Reshape(q, l)"
        if is_moved
        else "r = Identity(x)"
    )
    nodes = f"{constants} {numbers} {zeros} {weights} {lines} t = MatMul(r, k) {then or 'y = Relu(t)'}"
    return f"x{given} w[{count}, {extent}] o[{count}] z[{columns}] | {nodes} | y ; w o z"


def few_bits(rng: Rng) -> str:
    """Rows that a GPU multiplies by such weights as they are."""
    rows, columns, blocks = int(rng.integers(1, 9)), one_of(rng, 16, 17, 30, 64, 100), int(rng.integers(2, 7))
    extent, bits, has_zeros = one_of(rng, 8, 16, 32, 48, 64, 128), one_of(rng, 4, 4, 8), one_of(rng, False, True)
    text = few_bits_text(rows, columns, blocks, extent, bits=bits, has_zeros=has_zeros, then=ending(rng, "t", "y"))
    return one_of(rng, "", "float16: ", "bfloat16: ") + text


def trees(rng: Rng) -> str:
    """Boosted trees of one target each, or forests whose leaves have all."""
    rows, columns, count, targets = size(rng), size(rng), int(rng.integers(2, 9)), one_of(rng, 1, 1, 3, 17)
    depth, is_forest = int(rng.integers(1, 5)), rng.random() < 0.5
    inner, nodes = 2**depth - 1, 2 ** (depth + 1) - 1
    is_deep = rng.random() < 0.3
    if is_deep:  # one long way down each
        inner = depth = int(rng.integers(11, 18))
        nodes = 2 * depth + 1
    number, tree = np.tile(np.arange(nodes), count), np.repeat(np.arange(count), nodes)
    children = 2 * number + 1, 2 * number + 2
    if is_deep:
        children = number + depth, np.where(number == depth - 1, 2 * depth, number + 1)
    is_leaf = number >= inner
    ends = np.flatnonzero(is_leaf)
    ends, ids = (
        (np.repeat(ends, targets), np.tile(np.arange(targets), len(ends)))
        if is_forest
        else (ends, tree[ends] % targets)
    )
    modes = np.where(is_leaf, "LEAF", one_of(rng, "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT"))
    given = {
        "nodes_treeids": tree, "nodes_nodeids": number, "nodes_featureids": rng.integers(0, columns, len(tree)),
        "nodes_truenodeids": np.where(is_leaf, 0, children[0]),
        "nodes_falsenodeids": np.where(is_leaf, 0, children[1]),
        "target_treeids": tree[ends], "target_nodeids": number[ends], "target_ids": ids,
    }  # fmt: skip
    floats = {"nodes_values": rng.uniform(-1, 1, len(tree)), "target_weights": rng.uniform(-1, 1, len(ends))}
    attrs = [f"{name}={listed(values.tolist())}" for name, values in given.items()]
    attrs += [f"{name}=[{', '.join(f'{value:.4f}' for value in values)}]" for name, values in floats.items()]
    attrs.append("nodes_modes=[" + ", ".join(f'"{mode}"' for mode in modes) + f"], n_targets={targets}")
    after = one_of(rng, "y = Identity(t)", "y = Sigmoid(t)", "y = Softmax(t)")
    return f"x[{rows}, {columns}] | t = ai.onnx.ml.TreeEnsembleRegressor<{', '.join(attrs)}>(x) {after} | y ; "


def dot_product(rng: Rng) -> str:
    """Unsigned bytes by signed ones that are known, whole words of them along the reduction."""
    rows, depth, columns = size(rng), 4 * size(rng), size(rng)
    nodes = "k = Cast<to=3>(w) t = MatMulInteger(x, k) {steps}"
    return f"uint8: x[{rows}, {depth}] w[{depth}, {columns}] | {nodes} | y ; w"


def wide_dot_product(rng: Rng) -> str:
    """Such as fill a matrix register."""
    rows, depth, columns = size(rng) + 3, one_of(rng, 32, 36, 64, 96, 128), size(rng) + 15
    nodes = "k = Cast<to=3>(w) t = MatMulInteger(x, k) {steps}"
    return f"uint8: x[{rows}, {depth}] w[{depth}, {columns}] | {nodes} | y ; w"


def dot_convolution(rng: Rng) -> str:
    """Channels last, as in the middle of models."""
    slide, inputs, outputs = Slide(rng, 2, (5, 13, 31)), 32 * int(rng.integers(1, 4)), size(rng) + 15
    operands = f"x{listed([1, inputs, *slide.image])} w{listed([outputs, inputs, *slide.kernel])}"
    nodes = f"k = Cast<to=3>(w) c = ConvInteger{slide.attributes()}(x, k) t = Transpose<perm=[0, 2, 3, 1]>(c)"
    return f"uint8: {operands} | {nodes} {{steps}} | y ; w"


def byte_convolution(rng: Rng) -> str:
    slide, inputs, outputs = Slide(rng, 2, (1, 3, 5, 13)), size(rng), size(rng)
    operands = f"x{listed([1, inputs, *slide.image])} w{listed([outputs, inputs, *slide.kernel])}"
    return f"int8: {operands} | t = ConvInteger{slide.attributes()}(x, w) {{steps}} | y ; w"


def quantised(rng: Rng) -> str:
    rows, depth, columns = size(rng), size(rng), size(rng)
    constants = "s = Constant<value_float=0.0625>() a = Constant<value=uint8 {7}>() b = Constant<value=int8 {0}>()"
    nodes = "p = QuantizeLinear(x, s, a) q = DequantizeLinear(p, s, a) v = QuantizeLinear(w, s, b)"
    nodes += " k = DequantizeLinear(v, s, b) t = MatMul(q, k) y = Relu(t)"
    return f"x[{rows}, {depth}] w[{depth}, {columns}] | {constants} {nodes} | y ; w"


def quantised_image(rng: Rng) -> str:
    """Up to four channels, quantised, in a border, turned so that the channels lie together."""
    images, height, width = one_of(rng, *IMAGES), size(rng), size(rng)
    channels = one_of(rng, 3, 4, 4)
    pads = [0, 4 - channels, 0, 0] if channels < 4 else one_of(rng, [0] * 4, [0, 0, 0, size(rng)], [0, 0, size(rng), 0])
    constants = f"s = Constant<value_float=0.0625>() z = Constant<value=uint8 {{{int(rng.integers(256))}}}>()"
    nodes = f"p = QuantizeLinear(x, s, z) k = Constant<value_ints={listed([0] * 4 + pads)}>() q = Pad(p, k, z)"
    nodes += " t = Transpose<perm=[0, 2, 3, 1]>(q) v = Cast<to=3>(w) c = MatMulInteger(t, v, z)"
    operands = f"x{listed([images, channels, height, width])} w[4, {size(rng)}]"
    return f"{operands} | {constants} {nodes} y = Cast<to=1>(c) | y ; w"


def wide_rounded(rng: Rng) -> str:
    """Products of bfloat16 that fill a matrix register."""
    rows, depth, columns = size(rng) + 3, one_of(rng, 16, 32, 36, 64), size(rng) + 15
    return f"rounded: x[{rows}, {depth}] w[{depth}, {columns}] | t = MatMul(x, w) {ending(rng, 't', 'y')} | y ; w"


def rounded(rng: Rng) -> str:
    """Products of bfloat16 by known such, of whole pairs."""
    if rng.random() < 0.5:
        rows, depth, columns = size(rng), 2 * size(rng), size(rng) + 15
        nodes = f"t = MatMul(x, w) {ending(rng, 't', 'y')}"
        return f"rounded: x[{rows}, {depth}] w[{depth}, {columns}] | {nodes} | y ; w"
    slide, inputs, outputs = Slide(rng, 2, (1, 3, 5, 13)), 2 * size(rng), size(rng) + 15
    operands = f"x{listed([1, inputs, *slide.image])} w{listed([outputs, inputs, *slide.kernel])}"
    return f"rounded: {operands} | t = Conv{slide.attributes()}(x, w) {ending(rng, 't', 'y')} | y ; w"


def long_body(rng: Rng) -> str:
    """Some tens of maps of tensors of rank 0 to 5, some of which are broadcast."""
    extents = shape(rng, 0, 5)
    nodes, last = [], "x"
    for number in range(int(rng.integers(1, 60))):
        joins = f"{one_of(rng, *JOINS)}({last}, {one_of(rng, 'x', 'b')})"
        nodes.append(f"n{number} = {one_of(rng, joins, f'{one_of(rng, *MAPS)}({last})')}")
        last = f"n{number}"
    other = [one_of(rng, extent, extent, 1) for extent in extents]
    x, b = (listed(shape_) if extents else "" for shape_ in (extents, other))
    return f"x{x} b{b} | {' '.join(nodes)} y = Identity({last}) | y ; "


def many_inputs(rng: Rng) -> str:
    columns, names = size(rng), [f"x{number}" for number in range(int(rng.integers(2, 40)))]
    same = size(rng)
    sums = rng.random() < 0.5
    inputs = " ".join(f"{name}[{same if sums else size(rng)}, {columns}]" for name in names)
    joined = f"{'Sum' if sums else 'Concat<axis=0>'}({', '.join(names)})"
    return f"{inputs} | t = {joined} y = Relu(t) | y ; "


def transpose(rng: Rng) -> str:
    extents = shape(rng, 1, 6)
    order = [int(n) for n in rng.permutation(len(extents))]
    nodes = f"t = Transpose<perm={listed(order)}>(x) y = Add(t, b)"
    return f"x{listed(extents)} b{listed([extents[n] for n in order])} | {nodes} | y ; "


def few_rows(rng: Rng) -> str:
    """Products of a row or some, by matrices that lie either way."""
    rows, depth, columns = int(rng.integers(1, 9)), size(rng) + 31, size(rng)
    turned = rng.random() < 0.3
    w = listed([columns, depth] if turned else [depth, columns])
    nodes = f"t = Gemm{attributes(transB=int(turned))}(x, w, z) {ending(rng, 't', 'y')}"
    return (
        f"{one_of(rng, '', 'float16: ')}x[{rows}, {depth}] w{w} z[{columns}] | {nodes} | y ; {one_of(rng, 'w z', 'z')}"
    )


WINDOWS = (pool, global_pool, pyramid, depthwise)
PRODUCTS = (product, gemm, batched, convolution, plain_convolution, transposed, quantised)
CHAINS = (separable, inverted, attention, recurrent)
BYTES = (byte_product, byte_convolution)
OTHERS = (rows, fold, long_body, many_inputs, transpose)

DRAWN: Mapping[str, Sequence[Callable[[Rng], str]]] = {
    "chain": (separable, inverted, attention),
    "joint": (recurrent,),
    "specialized_attention": (wide_attention,),
    "attention_tiles": (partial(attention, kinds=HALF[-1:]),),
    "plane": (plane_pool, plane_depthwise),
    "winograd4": (plain_convolution,),
    "flipped": (plane_convolution,),
    "block_matmul": (block_matmul,),
    "tree_ensemble": (trees,),
    "byte_matrices": (wide_dot_product, dot_convolution),
    "byte_product": (dot_product,),
    "bf16_matrices": (rounded, wide_rounded, wide_rounded),
    "bf16_product": (rounded,),
    "pixel_words": (quantised_image,),
    "contraction": PRODUCTS,
    "winograd2": (plain_convolution,),
    "window": WINDOWS,
    "rows": (rows, attention),
    "split": (fold, global_pool),
    "shared_folds": (few_rows, few_rows, global_pool, fold, few_bits),
    "specialized_tiles": (wide, wide, wide, byte_product),
    "specialized_windows": (wide_windows,),
    "unfolded_tiles": (few_channels,),
    "warpgroup_tiles": (wide, wide, wide, byte_product),
    "warp_tiles": (*PRODUCTS, *BYTES),
    "product_tiles": PRODUCTS,
    "thread_windows": WINDOWS,
    "row_blocks": (rows,),
    "turned_tiles": (transpose, depthwise),
    "generic": (*WINDOWS, *PRODUCTS, *CHAINS, *BYTES, *OTHERS),
    "elements": (*WINDOWS, *PRODUCTS, *CHAINS, *BYTES, *OTHERS),
}
"""By sketch: what draws models that it may apply to."""
