"""CUDA C out of kernels: as kept, and taken by the compiler for every architecture without registers written out."""

from __future__ import annotations

import numpy as np
import pytest

from tunewright.codegen.cuda import nvrtc
from tunewright.codegen.cuda.emit import Launch, emit
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import OF_WORDS, ZIPS, Load, Ramp, Var, const, op
from tunewright.codegen.expr.semantics import OPS
from tunewright.codegen.gpu import KNOWN, SM_REGISTERS
from tunewright.codegen.instructions.table import INSTRUCTIONS, device_functions
from tunewright.codegen.ir.ir import Buffer, For, Kernel, LoopKind, Store, Swizzle
from tunewright.codegen.llvm.build import BuildError
from tunewright.codegen.verify import verify

from .kernels import F32, added, block, fetched, lowest_halves, multiplied, turned

KERNELS = {
    "added": added(1000),
    "turned": turned(100, 64, swizzle=Swizzle(5, 0, 5)),
    "multiplied": multiplied(64, 64, 64),
    "fetched": fetched(300, 44),
    "words": lowest_halves(64),
}

BUILDS = [(name, arch) for name in KERNELS for arch in KNOWN if name != "fetched" or arch == "sm_90a"]
"""Kernels, and what they are for."""


@pytest.fixture(scope="session")
def compiler() -> None:
    """There is one."""
    try:
        nvrtc.version()
    except nvrtc.NoCompiler as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", KERNELS)
def test_the_text_is_as_kept(name, golden):
    golden(f"cuda_{name}.cu", emit(KERNELS[name], "kernel").text)


def test_how_it_is_launched():
    assert emit(KERNELS["added"], "k").launches == (Launch("k_p0", (16, 1, 1), 64, 0),)
    assert emit(KERNELS["turned"], "k").launches == (Launch("k_p0", (2, 4, 1), 256, 4096),)
    assert emit(KERNELS["multiplied"], "k").launches == (Launch("k_p0", (2, 2, 1), 128, 4096),)


@pytest.mark.parametrize(("name", "arch"), BUILDS)
def test_it_compiles_without_spills(name, arch, compiler):
    cubin = nvrtc.compile_text(emit(KERNELS[name], "kernel").text, arch)
    assert cubin.code.startswith(b"\x7fELF")
    usage = cubin.usage["kernel_p0"]
    shared_out = SM_REGISTERS // 384 // 8 * 8  # where roles change theirs, a block begins with all that there are
    assert usage.registers == shared_out if name == "fetched" else 8 <= usage.registers <= 64
    assert usage[1:4] == (0, 0, 0)


def test_the_instructions_are_there(compiler):
    text = nvrtc.ptx(emit(KERNELS["multiplied"], "kernel").text, "sm_80")
    for words in ("mma.sync.aligned.m16n8k8", "cp.async.cg.shared.global", "cp.async.wait_group 0", "bar.sync"):
        assert words in text


def test_wide_loads_and_stores(compiler):
    """Four neighbours at a multiple of four are moved at once, others are not."""
    x, y = Buffer("x", (4096,), F32), Buffer("y", (4096,), F32)

    def copied(shift: int) -> Kernel:
        place = Ramp(Var("b") * 256 + Var("t") * 4 + shift, 4)
        body = Store("y", (place,), Load("x", (place,), F32))
        kernel = Kernel((x, y), (), block(For("b", 15, For("t", 64, body, LoopKind.THREAD), LoopKind.BLOCK)))
        verify(kernel)
        return kernel

    for shift, words in ((0, "v4"), (2, "v2"), (1, "")):
        text = nvrtc.ptx(emit(copied(shift), "kernel").text, "sm_80")
        lines = [line for line in text.splitlines() if "ld.global" in line]
        assert all(f".{words}." in line if words else ".v" not in line for line in lines) and lines


@pytest.mark.slow
@pytest.mark.parametrize("arch", KNOWN)
def test_every_instruction_compiles(arch, compiler):
    """Each in a kernel of its own, all in one text: most of the time is not spent on the kernels."""
    capability = KNOWN[arch].capability
    instructions = [one for one in INSTRUCTIONS.values() if capability >= one.capability and one.arch in ("", arch)]
    names = {one.name for one in instructions}
    text = device_functions(names, ()) + "extern __shared__ __align__(128) unsigned char smem[];"
    places = {"register": "own", "shared": "smem", "global": "memory"}
    for number, one in enumerate(instructions):
        call = one.call([places[operand.scope] for operand in (*one.outs, *one.ins)])
        text += f"""
            extern "C" __global__ void kernel{number}(unsigned char* memory) {{ // {one.name}
                alignas(16) unsigned char own[512] = {{}};
                {call} memory[threadIdx.x] = own[threadIdx.x % 512] + smem[0];
            }}"""
    usage = nvrtc.compile_text(text, arch).usage
    assert [one.name for number, one in enumerate(instructions) if not usage[f"kernel{number}"].registers] == []


def test_every_instruction_has_an_architecture():
    unknown = [
        one.name
        for one in INSTRUCTIONS.values()
        if not any(gpu.capability >= one.capability and one.arch in ("", arch) for arch, gpu in KNOWN.items())
    ]
    assert unknown == []


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_compiles_or_is_refused(name, compiler):
    """On float32 and on whole numbers."""
    count = 0
    for dtype in (DType.F32, DType.F64, DType.I64, DType.I32, DType.U8, DType.BOOL):
        kernel = of_op(name, dtype)
        try:
            text = emit(kernel, "kernel").text
        except ValueError as error:
            assert "is no op of a GPU" in str(error)
            continue
        nvrtc.ptx(text, "sm_80")
        count += 1
    assert count or name in OF_WORDS | ZIPS | {"widen_bytes"}


def of_op(name: str, dtype: DType) -> Kernel:
    """An op on what memory holds."""
    from tunewright.codegen.expr.expr import COMPARISONS, HORIZONTAL, arity

    lanes = 4 if name in HORIZONTAL or name.startswith("zip") else 1
    place = Var("t") * 4
    index = (Ramp(place, lanes),) if lanes > 1 else (place,)
    args = [Load("x", index, dtype)] * arity(name)
    if name == "select":
        args[0] = Load("flags", (place,), DType.BOOL)
    result = DType.BOOL if name in COMPARISONS else DType.I32 if name == "cast" else dtype
    value = op(name, *args, dtype={"bitcast": dtype}.get(name, result))
    place_of = (Ramp(place, value.lanes),) if value.lanes > 1 else (place,)
    x, flags = Buffer("x", (256,), dtype), Buffer("flags", (256,), DType.BOOL)
    body = Store("y", place_of, value)
    grid = For("b", 1, For("t", 64, body, LoopKind.THREAD), LoopKind.BLOCK)
    return Kernel((x, flags, Buffer("y", (256,), value.dtype)), (), block(grid))


def test_narrow_floats_are_types_of_memory(compiler):
    place = Ramp(Var("t") * 8, 8)
    wide = op("cast", Load("x", (place,), DType.F16), dtype=DType.F32) * 2.0
    body = Store("y", (place,), op("cast", wide, dtype=DType.BF16))
    grid = For("b", 1, For("t", 32, body, LoopKind.THREAD), LoopKind.BLOCK)
    kernel = Kernel((Buffer("x", (256,), DType.F16), Buffer("y", (256,), DType.BF16)), (), block(grid))
    verify(kernel)
    text = emit(kernel, "kernel").text
    ptx = nvrtc.ptx(text, "sm_80")
    for words in ("ld.global.v4.u32", "cvt.f32.f16", "cvt.rn.bf16.f32", "st.global.v4.u32"):
        assert words in ptx
    assert "struct Half" in text and "struct Brain" in text
    assert not {"Half", "Brain"} & set(emit(added(64), "kernel").text.split())


def test_whole_numbers_have_64_bits_but_where_they_count_elements(compiler):
    """What a cast, sums and a place that data tell are computed in; the places that loops tell have 32."""
    place = Var("b") * 32 + Var("t")
    number = op("cast", Load("x", (place,), F32), dtype=DType.I64)
    doubled = op("min", number * number + place, 5) * op("select", op("lt", place, 40), number, -1)
    inside = op("max", op("min", Load("at", (place,), DType.I64), 63), 0)
    body = block(Store("y", (place,), doubled), Store("z", (place,), Load("x", (inside,), F32)))
    grid = For("b", 2, For("t", 32, body, LoopKind.THREAD), LoopKind.BLOCK)
    types = {"x": F32, "at": DType.I64, "y": DType.I64, "z": F32}
    kernel = Kernel(tuple(Buffer(name, (64,), dtype) for name, dtype in types.items()), (), block(grid))
    verify(kernel)
    text = emit(kernel, "kernel").text
    lines = [line.strip() for line in text.splitlines()]
    assert "const int t3 = ((v1 * 32) + v2);" in lines
    assert "const long long t5 = ((long long)l4);" in lines
    assert "const long long t6 = ((((long long)v1) * 32ll) + ((long long)v2));" in lines
    assert "p2[t3] = (least(((t5 * t5) + t6), 5ll) * ((t3 < 40) ? t5 : (-1ll)));" in lines
    assert "const float l8 = p0[largest(least(l7, 63ll), 0ll)];" in lines


def divided(by):
    x = Load("x", (Var("thread"),), DType.F32)
    body = Store("y", (Var("thread"),), op("div", x, const(by)))
    grid = For("b", 1, For("thread", 32, body, LoopKind.THREAD), LoopKind.BLOCK)
    buffers = Buffer("x", (32,), DType.F32), Buffer("y", (32,), DType.F32)
    return emit(Kernel(buffers, (), block(grid)), "kernel").text


def test_a_division_by_a_known_number_has_no_branch():
    assert "quotient(" in divided(3.0) and "float quotient(float x, float by, float inverse)" in divided(3.0)
    assert "quotient(" not in divided(1e-9) and "quotient(" not in divided(0.0), (
        "the inverse, or a remainder, may be lost"
    )


@pytest.mark.parametrize("by", [3.0, 1.4140625, 0.1, 7.0, 255.0, 1e-3])
def test_quotients_are_right_to_the_last_bit(by):
    """By the formula of the text; products and remainders of floats are exact in double precision."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(100_000) * 10.0 ** rng.integers(-25, 25, 100_000)).astype(np.float32)
    divisor = np.float32(by)
    inverse = np.float32(1) / divisor

    def fused(a, b, c):
        return (a.astype(np.float64) * np.float64(b) + c).astype(np.float32)

    first = x * inverse
    assert np.array_equal(fused(fused(-first, divisor, x), inverse, first), x / divisor)


def test_what_touches_memory_waits_for_the_launch_before():
    """Barriers are set up before that."""
    text = emit(KERNELS["fetched"], "kernel").text.partition('extern "C"')[2]
    begin, waited, rest = text.partition("await_previous();")
    assert waited and "mbarrier_init" in begin and "mbarrier_init" not in rest
    assert "fetch_2d(" in rest and "fetch_2d(" not in begin


def test_an_error_is_one_line(compiler):
    with pytest.raises(BuildError, match="error") as caught:
        nvrtc.compile_text('extern "C" __global__ void k() { nothing; }', "sm_80")
    assert "\n" not in str(caught.value)
    with pytest.raises(BuildError, match="sm_1"):
        nvrtc.compile_text("", "sm_1")


def test_what_no_grid_has():
    y = Buffer("y", (1 << 17, 1), F32)
    body = For("t", 1, Store("y", (Var("b"), Var("t")), const(0.0)), LoopKind.THREAD)
    inner = For("c", 1, body, LoopKind.BLOCK)
    with pytest.raises(ValueError, match="65535"):
        emit(Kernel((y,), (), block(For("b", 1 << 17, inner, LoopKind.BLOCK))), "k")
    with pytest.raises(ValueError, match="0 block loops"):
        emit(Kernel((y,), (), block(Store("y", (const(0), const(0)), const(0.0)))), "k")
