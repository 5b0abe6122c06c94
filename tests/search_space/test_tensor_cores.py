"""Tiles for tensor cores: how they lie in shared memory, what their code is made of, and attention by them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import onnx.parser
import pytest

from tunewright.codegen.cuda import interp, nvrtc
from tunewright.codegen.cuda.build import source
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.semantics import LIMITS
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.instructions.table import INSTRUCTIONS
from tunewright.codegen.ir.access import BoundsError, RaceError, UndefinedRead
from tunewright.codegen.ir.ir import Alloc, Barrier, Block, Do, For, If, Kernel, Roles, Stmt, Swizzle
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.search_space.cuda.tiles import shared_tile
from tunewright.search_space.cuda.tiles.block_tile import BlockTile
from tunewright.search_space.measurement import Candidate
from tunewright.search_space.schedule import Schedule
from tunewright.search_space.sketches import default_schedule, lower, sketch

from .oracle import GPU, SMALL_GPU, operands
from .test_sketches import MODELS, fuse_model, tasks_of


@pytest.mark.parametrize(("dtype", "together"), [(DType.F16, 8), (DType.F32, 4), (DType.F32, 8)])
@pytest.mark.parametrize("columns", [16, 32, 64, 128, 256])
def test_rows_that_are_read_together_lie_in_different_banks(columns, dtype, together):
    swizzle = shared_tile._swizzle(columns, dtype, together)
    row, part = np.meshgrid(np.arange(64), np.arange(columns // together), indexing="ij")
    place = swizzle.position(row * columns + part * together)
    assert sorted(place.reshape(-1)) == list(range(0, 64 * columns, together))  # each its own
    part_bytes = together * dtype.size_bytes
    rows = shared_tile.BANKS_BYTES // part_bytes
    groups = place.reshape(64 // rows, rows, -1) * dtype.size_bytes // part_bytes % rows
    assert all(len(set(groups[n, :, c])) == rows for n in range(64 // rows) for c in range(columns // together))


def lower_default(name, task, numbers, target=GPU):
    """The default schedule of a sketch, but for some numbers."""
    space = sketch(name).space(task, target)
    values = dict(space.default.values) | numbers
    return lower(Candidate(task, target, Schedule(name, space.version, tuple(values.items()))))


@pytest.fixture(scope="module")
def task():
    return tasks_of(MODELS["half_even"], {"a": 4, "b": 1, "c": 1, "d": 8})[0]


def test_the_code_copies_while_it_multiplies(task):
    try:
        text = nvrtc.ptx(source(lower_default("warp_tiles", task, {}), GPU).text, GPU.cpu)
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))
    for words in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync.aligned.m8n8.x4", "cp.async.cg.shared.global"):
        assert words in text
    assert "ld.local" not in text and "st.local" not in text


def without(stmt: Stmt, gone: type | str, tensor: str = "") -> Stmt:
    """A statement without barriers, or without the instructions of a name (whose first operand is of a tensor)."""
    match stmt:
        case Barrier() if gone is Barrier:
            return Block(())
        case Do(name, outs, ins) if name == gone:
            return Block(()) if not tensor or (*ins, *outs)[0].tensor == tensor else stmt
        case Block(body):
            return Block(tuple(without(part, gone, tensor) for part in body))
        case For(body=body) | Alloc(body=body):
            return replace(stmt, body=without(body, gone, tensor))
        case If(then=then):
            return replace(stmt, then=without(then, gone, tensor))
        case Roles(roles):
            return Roles(tuple(replace(role, body=without(role.body, gone, tensor)) for role in roles))
    return stmt


@pytest.fixture(scope="module")
def attention_task():
    sizes = {"a": 20, "b": 16, "c": 70, "d": 1}
    return next(t for t in tasks_of(MODELS["half_attended"], sizes) if sketch("attention_tiles").applies(t, GPU))


THREE_STAGES = {
    "warp_tiles": {"stages": 3, "block_depth": 16},
    "warpgroup_tiles": {"stages": 4},
    "attention_tiles": {"warps": 2, "block_places": 16, "stages": 3},
}


@pytest.mark.parametrize(
    ("gone", "error"), [(Barrier, "reads|writes"), ("cp.async.wait.1", "before what comes to it was waited for")]
)
@pytest.mark.parametrize("name", THREE_STAGES)
def test_what_is_left_out_is_found(task, attention_task, long_task, name, gone, error):
    task = {"warp_tiles": task, "warpgroup_tiles": long_task, "attention_tiles": attention_task}[name]
    spoilt_is_found(task, name, THREE_STAGES[name], gone, error)


def spoilt_is_found(task, name, numbers, gone, error, tensor=""):
    """A schedule is right, and no more so without some of it, which is noticed."""
    kernel = lower_default(name, task, numbers)
    inputs = example_inputs(task, 0)
    [right] = reference(task, inputs)
    output = np.zeros_like(right)
    interp.run(kernel, [*inputs, output])
    np.testing.assert_allclose(output.astype(float), right.astype(float), atol=2e-3 * np.abs(right).max())
    body = without(kernel.body, gone, tensor)
    assert isinstance(body, Block) and body != kernel.body
    spoilt = Kernel(kernel.params, kernel.scratch, body)
    with pytest.raises((RaceError, UndefinedRead), match=error):
        interp.run(spoilt, [*inputs, output])


@pytest.fixture(scope="module")
def long_task():
    """A product of four rounds, with rows for two warpgroups."""
    return tasks_of(MODELS["half_wide"], {"a": 1, "b": 1, "c": 64, "d": 1})[0]


GROUPS = {"block_rows": 128, "block_columns": 64, "warpgroups": 2, "stages": 3}
"""Two groups of warps, and few stages."""


@pytest.mark.parametrize(
    ("gone", "error"),
    [
        ("fence.proxy.async", "was not shown to it"),
        ("wgmma.fence", "was not shown to it"),
        ("wgmma.commit", "before the product that reads it was waited for"),
        ("wgmma.wait.1", "before the product that reads it was waited for"),
        ("wgmma.wait.0", "before what comes to it was waited for"),
    ],
)
def test_what_products_that_go_on_need_is_missed(long_task, gone, error):
    spoilt_is_found(long_task, "warpgroup_tiles", GROUPS, gone, error)


def test_a_stage_that_is_filled_too_early_is_found(long_task, monkeypatch):
    """While the products of the round before still read it."""
    plain = BlockTile.sum_rounds

    def early(self, copies, part, ahead, multiplied, between=()):
        return plain(self, copies, part, ahead + 1, multiplied, between)

    monkeypatch.setattr(BlockTile, "sum_rounds", early)
    kernel = lower_default("warpgroup_tiles", long_task, GROUPS)
    inputs = example_inputs(long_task, 0)
    with pytest.raises(RaceError, match="before the product that reads it was waited for"):
        interp.run(kernel, [*inputs, np.zeros_like(reference(long_task, inputs)[0])])


PRODUCTS = {
    "k.mn": "float16: x[{a}, {b}] w[{b}, {c}] | y = MatMul(x, w) | y",
    "k.k": "float16: x[{a}, {b}] w[{c}, {b}] | y = Gemm<transB=1>(x, w) | y",
    "mn.mn": "float16: x[{b}, {a}] w[{b}, {c}] | y = Gemm<transA=1>(x, w) | y",
    "mn.k": "float16: x[{b}, {a}] w[{c}, {b}] | y = Gemm<transA=1, transB=1>(x, w) | y",
    "bf16.k.mn": "x[2, {a}, {b}] w[2, {b}, {c}] | u = Cast<to=16>(x) v = Cast<to=16>(w) t = MatMul(u, v)"
    " y = Cast<to=1>(t) | y",
}
"""By the end of the name of the instruction that they come to."""

BYTE_PRODUCTS = {
    "k.mn": "x[{a}, {b}] w[{b}, {c}] | y = MatMulInteger(x, w)",
    "k.k": "x[{a}, {b}] w[{c}, {b}] | p = Transpose<perm=[1, 0]>(w) y = MatMulInteger(x, p)",
    "mn.k": "x[{b}, {a}] w[{c}, {b}] | p = Transpose<perm=[1, 0]>(w) q = Transpose<perm=[1, 0]>(x)"
    " y = MatMulInteger(q, p)",
}
"""By how their operands lie. What is a constant besides is packed along the reduction."""

SHAPES = (
    ({"a": 130, "b": 264, "c": 72}, {"block_rows": 128, "block_columns": 64, "warpgroups": 2}),
    ({"a": 200, "b": 40, "c": 136}, {"block_rows": 192, "block_columns": 128, "warpgroups": 3}),
    ({"a": 256, "b": 512, "c": 256}, {"block_rows": 128, "block_columns": 256, "warpgroups": 2, "splits": 2}),
    ({"a": 256, "b": 72, "c": 67}, {"block_rows": 128, "block_columns": 64, "warpgroups": 1, "group": 2}),
)
"""Sizes, even and odd, and numbers for them."""


@pytest.mark.parametrize(("sizes", "numbers"), SHAPES)
@pytest.mark.parametrize("lies", PRODUCTS)
def test_products_of_matrices_that_lie_in_each_way(lies, sizes, numbers):
    task = next(one for one in tasks_of(PRODUCTS[lies], sizes) if sketch("warpgroup_tiles").applies(one, GPU))
    kernel = lower_default("warpgroup_tiles", task, {"stages": 3} | numbers)
    verify(kernel)
    assert f"{lies}(" in str(kernel)
    inputs = example_inputs(task, 0)
    [right] = reference(task, inputs)
    output = np.zeros_like(right)
    interp.run(kernel, [*inputs, output])
    limit = (2e-2 if "bf16" in lies else 2e-3) * np.abs(right.astype(float)).max()
    np.testing.assert_allclose(output.astype(float), right.astype(float), atol=limit)


def bytes_task(lies, left, right, sizes, constant=False):
    """A product of bytes of two types, whose second operand may be a constant."""
    inputs, nodes = BYTE_PRODUCTS[lies].format(**sizes).split("|")
    shapes = re.findall(r"\[.*?\]", inputs)
    result = f"int32[{sizes['a']}, {sizes['c']}] y"
    text = f"m ({left}{shapes[0]} x, {right}{shapes[1]} w) => ({result}) {{ {nodes} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    [task, *_] = fuse_model(model, {"w"} if constant else set())
    return task


SMALL_WARPS = {"warp_rows": 16, "warp_columns": 16, "block_depth": 32, "stages": 2}

BYTE_SHAPES = (
    ({"a": 40, "b": 160, "c": 48}, SMALL_WARPS | {"block_rows": 32, "block_columns": 32}),
    ({"a": 37, "b": 61, "c": 19}, SMALL_WARPS | {"block_rows": 16, "block_columns": 16}),
    ({"a": 64, "b": 256, "c": 72}, SMALL_WARPS | {"block_rows": 32, "block_columns": 64, "splits": 2}),
)
"""Sizes, even and odd, and numbers for them."""


def exact(name, task, numbers):
    """A schedule of a product of bytes gives the very numbers; how its kernel reads."""
    kernel = lower_default(name, task, numbers)
    verify(kernel)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(*LIMITS[t.dtype], t.shape, endpoint=True).astype(t.dtype.numpy) for t in task.inputs]
    [right] = reference(task, inputs)
    output = np.zeros_like(right)
    interp.run(kernel, [*operands(task, kernel, inputs), output])
    np.testing.assert_array_equal(output, right)
    return str(kernel)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("sizes", "numbers"), BYTE_SHAPES)
@pytest.mark.parametrize(("left", "right"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("lies", BYTE_PRODUCTS)
def test_products_of_bytes_are_exact(lies, left, right, sizes, numbers, constant):
    text = exact("warp_tiles", bytes_task(lies, left, right, sizes, constant), numbers)
    letter = {"int8": "s8", "uint8": "u8"}
    assert f"mma.m16n8k32.s32.{letter[left]}.{letter[right]}(" in text
    assert text.count("ldmatrix") == {"k.mn": 1 + constant, "k.k": 2, "mn.k": 1}[lies]


@pytest.mark.parametrize(("sizes", "numbers"), SHAPES)
def test_products_of_bytes_by_four_warps_are_exact(sizes, numbers):
    task = bytes_task("k.mn", "uint8", "int8", sizes | {"b": 2 * sizes["b"]}, constant=True)
    assert sketch("warpgroup_tiles").applies(task, GPU)
    assert "k32.s32.u8.s8.k.k(" in exact("warpgroup_tiles", task, {"stages": 3} | numbers)


def test_bytes_that_lie_across_the_reduction_are_not_for_four_warps():
    task = bytes_task("k.mn", "uint8", "int8", SHAPES[0][0])
    assert not sketch("warpgroup_tiles").applies(task, GPU) and sketch("warp_tiles").applies(task, GPU)


BULK = {
    "even": ("float16: x[{a}, {b}] w[{b}, {c}] | y = MatMul(x, w) | y ; w", {"a": 128, "b": 256, "c": 128}, {}),
    "odd": ("float16: x[{a}, {b}] w[{b}, {c}] | y = MatMul(x, w) | y ; w", {"a": 67, "b": 200, "c": 72}, {}),
    "turned": (
        "float16: x[{a}, {b}] w[{c}, {b}] | y = Gemm<transB=1>(x, w) | y ; w",
        {"a": 130, "b": 512, "c": 200},
        {"block_columns": 128, "splits": 2},
    ),
    "windows": (
        "float16: x[1, 64, 9, 9] w[72, 64, 3, 3] | y = Conv<pads=[1, 1, 1, 1]>(x, w) | y ; w",
        {"a": 0, "b": 0, "c": 0},
        {},
    ),
    "bytes": (
        "int8: x[{a}, {b}] w[{b}, {c}] | t = MatMulInteger(x, w) {steps} | y ; w",
        {"a": 66, "b": 384, "c": 80},
        {},
    ),
}
"""Products whose right operand may be packed, and numbers."""

ONE_GROUP = {"block_rows": 64, "block_columns": 64, "warpgroups": 1, "stages": 3, "bulk": 1}


@pytest.mark.parametrize("name", BULK)
def test_a_right_operand_in_whole_pieces(name):
    text, sizes, numbers = BULK[name]
    task = next(one for one in tasks_of(text, sizes) if sketch("warpgroup_tiles").applies(one, GPU))
    kernel = lower_default("warpgroup_tiles", task, ONE_GROUP | numbers)
    verify(kernel)
    assert "cp.async.bulk." in str(kernel) and ".packed(" in str(kernel)
    inputs = example_inputs(task, 0)
    [right] = reference(task, inputs)
    output = np.zeros_like(right)
    interp.run(kernel, [*operands(task, kernel, inputs), output])
    limit = 0 if right.dtype.kind == "i" else 2e-3 * np.abs(right.astype(float)).max()
    np.testing.assert_allclose(output.astype(float), right.astype(float), atol=limit)


@pytest.mark.parametrize(
    ("gone", "error"),
    [
        ("mbarrier.init.1", "read before anything wrote it"),
        ("mbarrier.expect.8192", "wait for what nobody brings"),
        ("cp.async.bulk.8192", "wait for what nobody brings"),
        ("mbarrier.wait", "before what comes to it was waited for"),
    ],
)
def test_what_copies_of_whole_pieces_need_is_missed(gone, error):
    [task] = tasks_of(BULK["even"][0], BULK["even"][1])
    kernel = lower_default("warpgroup_tiles", task, ONE_GROUP)
    inputs = example_inputs(task, 0)
    output = np.zeros_like(reference(task, inputs)[0])
    body = without(kernel.body, gone)
    assert isinstance(body, Block)
    spoilt = Kernel(kernel.params, kernel.scratch, body, kernel.packings)
    with pytest.raises((RaceError, UndefinedRead), match=error):
        interp.run(spoilt, [*operands(task, kernel, inputs), output])


SILU = "s = Sigmoid(t) y = Mul(t, s) | y"

WARPS = {"block_rows": 16, "block_columns": 32, "warp_rows": 16, "warp_columns": 16, "block_depth": 16, "stages": 2}
THREADS = {"block_rows": 16, "block_columns": 16, "rows": 1, "columns": 4, "block_depth": 8, "stages": 2}

TAILS = {
    "warps": ("warp_tiles", PRODUCTS["k.mn"], {"a": 60, "b": 64, "c": 52}, WARPS | {"splits": 4}, 1),
    "odd": ("warp_tiles", PRODUCTS["mn.k"], {"a": 61, "b": 64, "c": 53}, WARPS | {"splits": 2, "group": 2}, 1),
    "batch": (
        "warp_tiles",
        f"float16: x[9, 12, 64] w[9, 64, 30] | t = MatMul(x, w) {SILU}",
        {},
        WARPS | {"splits": 2},
        2,
    ),
    "windows": (
        "warp_tiles",
        "float16: x[1, 32, 11, 11] w[32, 32, 3, 3] | y = Conv<pads=[1, 1, 1, 1]>(x, w) | y",
        {},
        WARPS | {"splits": 2},
        1,
    ),
    "groups": (
        "warpgroup_tiles",
        PRODUCTS["k.k"],
        {"a": 250, "b": 256, "c": 120},
        {"block_rows": 64, "block_columns": 64, "warpgroups": 1, "stages": 3, "splits": 2},
        1,
    ),
    "roles": (
        "specialized_tiles",
        PRODUCTS["k.k"],
        {"a": 250, "b": 256, "c": 120},
        {"block_rows": 64, "block_columns": 64, "warpgroups": 1, "stages": 3, "splits": 2},
        1,
    ),
    "threads": ("product_tiles", f"x[30, 64] w[64, 72] | t = MatMul(x, w) {SILU}", {}, THREADS | {"splits": 2}, 3),
}
"""A sketch, a product of a few tiles more than `SMALL_GPU` computes at once, numbers, and how many tiles more."""


@pytest.mark.parametrize("case", TAILS)
def test_what_is_left_after_whole_waves_is_shared(case):
    name, text, sizes, numbers, left = TAILS[case]
    task = next(one for one in tasks_of(text, sizes) if sketch(name).applies(one, SMALL_GPU))
    kernel = lower_default(name, task, numbers | {"tail": 1}, SMALL_GPU)
    verify(kernel)
    launches, splits = kernel.body.body, numbers["splits"]
    main = [launch.extent for launch in launches].index(SMALL_GPU.threads)
    assert launches[main + 1].extent == splits * left
    assert [buffer.shape[:2] for buffer in kernel.scratch if buffer.name == "parts"] == [(splits, left)]
    inputs = example_inputs(task, 0)
    [right] = reference(task, inputs)
    output = np.zeros_like(right)
    interp.run(kernel, [*inputs, output])
    np.testing.assert_allclose(output.astype(float), right.astype(float), atol=2e-3 * np.abs(right).max())
    without_rest = Block((*launches[: main + 1], *launches[main + 2 :]))
    with pytest.raises(UndefinedRead, match="parts"):
        interp.run(Kernel(kernel.params, kernel.scratch, without_rest), [*inputs, output])


@pytest.mark.parametrize(("sms", "is_legal"), [(7, True), (6, True), (8, False), (9, False), (5, False)])
def test_only_a_rest_that_is_a_wave_at_most_after_others_is_shared(sms, is_legal):
    """A kernel of eight tiles, by two blocks each."""
    name, text, sizes, numbers, _ = TAILS["odd"]
    [task] = tasks_of(text, sizes)
    space = sketch(name).space(task, Target.of_gpu(replace(KNOWN["sm_90a"], sms=sms)))
    values = dict(space.default.values) | numbers | {"tail": 1}
    assert bool(space.legal({knob: np.array([value]) for knob, value in values.items()})[0]) == is_legal


SPLIT_SHAPES = (
    ({"a": 40, "b": 72, "c": 48}, {"warp_rows": 16, "warp_columns": 32, "splits": 1}),
    ({"a": 37, "b": 67, "c": 53}, {"warp_rows": 32, "warp_columns": 16, "block_depth": 32}),
    ({"a": 64, "b": 128, "c": 32}, {"block_depth": 16, "stages": 3, "splits": 2, "group": 2}),
)
SPLIT_TILE = {
    "block_rows": 32,
    "block_columns": 32,
    "warp_rows": 16,
    "warp_columns": 16,
    "block_depth": 16,
    "stages": 2,
}


def split_kernel(lies, sizes, numbers):
    """The error of a float32 product on tensor cores, and its task."""
    [task] = tasks_of(PRODUCTS[lies].removeprefix("float16: "), sizes)
    return task, lower_default("warp_tiles", task, SPLIT_TILE | numbers)


def relative_error(task, kernel):
    inputs = example_inputs(task, 0)
    [right] = reference(task, inputs)
    output = np.zeros(right.shape, np.float32)
    interp.run(kernel, [*inputs, output])
    return float(np.max(np.abs(np.subtract(output, right))) / np.max(np.abs(right)))


@pytest.mark.parametrize(("sizes", "numbers"), SPLIT_SHAPES)
@pytest.mark.parametrize("lies", ["k.mn", "k.k", "mn.mn", "mn.k"])
def test_products_in_parts_are_as_precise_as_float32(lies, sizes, numbers):
    task, kernel = split_kernel(lies, sizes, numbers)
    verify(kernel)
    assert relative_error(task, kernel) < 2e-6


def test_without_what_tensor_cores_do_not_see_sums_are_less_precise(monkeypatch):
    task, kernel = split_kernel("k.mn", *SPLIT_SHAPES[0])
    nothing = replace(INSTRUCTIONS["split.tf32"], meaning=lambda values: (values, np.zeros_like(values)))
    monkeypatch.setitem(INSTRUCTIONS, "split.tf32", nothing)
    assert 1e-4 < relative_error(task, kernel) < 1e-2


@pytest.mark.parametrize(
    ("arch", "is_faster"), [("sm_80", True), ("sm_86", False), ("sm_90a", True), ("sm_120a", False)]
)
def test_tensor_cores_multiply_float32_where_three_products_are_faster_than_one(arch, is_faster):
    [task] = tasks_of(PRODUCTS["k.mn"].removeprefix("float16: "), SPLIT_SHAPES[0][0])
    target = Target.of_gpu(KNOWN[arch])
    assert sketch("warp_tiles").applies(task, target) == is_faster
    assert default_schedule(task, target).sketch == "product_tiles"


def test_short_sums_of_float32_are_for_no_tensor_core():
    [task] = tasks_of(PRODUCTS["k.mn"].removeprefix("float16: "), {"a": 40, "b": 4, "c": 48})
    assert not sketch("warp_tiles").applies(task, GPU)


def test_a_matrix_that_lies_otherwise_is_found(long_task, monkeypatch):
    monkeypatch.setattr(shared_tile, "_swizzle", lambda columns, dtype, together: Swizzle(2, 3, 3))
    kernel = lower(Candidate(long_task, GPU, sketch("warpgroup_tiles").space(long_task, GPU).default))
    inputs = example_inputs(long_task, 0)
    with pytest.raises(BoundsError, match="is not where the matrix has it"):
        interp.run(kernel, [*inputs, np.zeros_like(reference(long_task, inputs)[0])])


def compiler_report(text):
    try:
        return nvrtc._Compilation(text, GPU.cpu).log
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("lies", PRODUCTS)
def test_products_go_on_while_warps_do(lies):
    """The compiler says where it has them done one after the other, as where sums are touched between."""
    space_of, sizes = sketch("warpgroup_tiles"), {"a": 256, "b": 512, "c": 256}
    task = next(one for one in tasks_of(PRODUCTS[lies], sizes) if space_of.applies(one, GPU))
    space = space_of.space(task, GPU)
    for schedule in (space.default, *map(space.schedule, space.sample(3, np.random.default_rng(3)))):
        text = source(lower(Candidate(task, GPU, schedule)), GPU).text
        assert "serialized" not in compiler_report(text), schedule
    [sums] = set(re.findall(r"hold_f32_\d+\(reinterpret_cast<float\*>\((r\d+) ", text))
    assert "serialized" in compiler_report(text.replace("wgmma_commit();", f"{sums}[0] += 1.0f; wgmma_commit();"))


def test_places_that_a_mask_leaves_out_weigh_nothing(attention_task):
    """Also where all places of the first rounds are left out, and nothing else is known of a row yet."""
    queries, keys, mask, values = example_inputs(attention_task, 0)
    mask[:7, :40] = -np.inf
    mask[7:, 50:] = -np.inf
    inputs = [queries, keys, mask, values]
    [right] = reference(attention_task, inputs)
    assert np.isfinite(right).all()
    numbers = ("warps", 2), ("block_places", 16), ("stages", 2)
    kernel = lower(Candidate(attention_task, GPU, Schedule("attention_tiles", 1, numbers)))
    output = np.zeros_like(right)
    interp.run(kernel, [*inputs, output])
    np.testing.assert_allclose(output.astype(float), right.astype(float), atol=2e-3 * np.abs(right).max())


@pytest.mark.parametrize(
    "other",
    [
        "p = Softmax<axis = 1>(s)",  # of columns
        "p = LogSoftmax(s)",
        "e = Softmax(s) p = Mul(e, s)",  # the scores are needed again
    ],
)
def test_what_is_no_attention(other):
    sizes = {"a": 20, "b": 16, "c": 20, "d": 1}
    tasks = tasks_of(MODELS["half_attended"].replace("p = Softmax(s)", other), sizes)
    assert not any(sketch("attention_tiles").applies(task, GPU) for task in tasks)
