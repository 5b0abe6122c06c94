"""What code that was compiled for a processor needs of the one that it runs on."""

from __future__ import annotations

from collections.abc import Mapping

from .static_program import Requirement, Requirements

_EAX, _EBX, _ECX, _EDX = range(4)
_EXTENDED = 0x80000001

_BITS: Mapping[str, tuple[int, int, int, int]] = {
    "sse3": (1, 0, _ECX, 0), "ssse3": (1, 0, _ECX, 9), "sse4.1": (1, 0, _ECX, 19),
    "sse4.2": (1, 0, _ECX, 20), "popcnt": (1, 0, _ECX, 23), "movbe": (1, 0, _ECX, 22), "fma": (1, 0, _ECX, 12),
    "avx": (1, 0, _ECX, 28), "f16c": (1, 0, _ECX, 29),
    "lzcnt": (_EXTENDED, 0, _ECX, 5), "xop": (_EXTENDED, 0, _ECX, 11), "fma4": (_EXTENDED, 0, _ECX, 16),
    "tbm": (_EXTENDED, 0, _ECX, 21),
    "bmi": (7, 0, _EBX, 3), "avx2": (7, 0, _EBX, 5), "bmi2": (7, 0, _EBX, 8), "avx512f": (7, 0, _EBX, 16),
    "avx512dq": (7, 0, _EBX, 17), "avx512ifma": (7, 0, _EBX, 21), "avx512cd": (7, 0, _EBX, 28),
    "avx512bw": (7, 0, _EBX, 30), "avx512vl": (7, 0, _EBX, 31),
    "avx512vbmi": (7, 0, _ECX, 1), "avx512vbmi2": (7, 0, _ECX, 6), "gfni": (7, 0, _ECX, 8),
    "vaes": (7, 0, _ECX, 9), "vpclmulqdq": (7, 0, _ECX, 10), "avx512vnni": (7, 0, _ECX, 11),
    "avx512bitalg": (7, 0, _ECX, 12), "avx512vpopcntdq": (7, 0, _ECX, 14),
    "amx-bf16": (7, 0, _EDX, 22), "avx512fp16": (7, 0, _EDX, 23), "amx-tile": (7, 0, _EDX, 24),
    "amx-int8": (7, 0, _EDX, 25),
    "avxvnni": (7, 1, _EAX, 4), "avx512bf16": (7, 1, _EAX, 5), "amx-fp16": (7, 1, _EAX, 21),
    "avxifma": (7, 1, _EAX, 23), "avxvnniint8": (7, 1, _EDX, 4), "avxneconvert": (7, 1, _EDX, 5),
    "avxvnniint16": (7, 1, _EDX, 10), "avx10.1": (7, 1, _EDX, 19),
    **dict.fromkeys(("egpr", "push2pop2", "ppx", "ndd", "ccmp", "cf", "nf", "zu"), (7, 1, _EDX, 21)),
}  # fmt: skip
"""LLVM's name of a feature that compilers make use of -> leaf, subleaf, register, bit: Intel SDM, volume 2, CPUID; for
what AMD alone has, AMD64 APM, volume 3, appendix E.
"""

UNUSED = frozenset({
    "64bit", "adx", "aes", "amx-avx512", "amx-complex", "amx-fp8", "amx-movrs", "amx-tf32", "amx-transpose",
    "avx512vp2intersect", "cldemote", "clflushopt", "clwb", "clzero", "cmov", "cmpccxadd", "crc32", "cx16", "cx8",
    "enqcmd", "fsgsbase", "fxsr", "hreset", "invpcid", "kl", "lwp", "mmx", "movdir64b", "movdiri", "movrs",
    "mwaitx", "pclmul", "pconfig", "pku", "prefetchi", "prfchw", "ptwrite", "raoint", "rdpid", "rdpru", "rdrnd",
    "rdseed", "rtm", "sahf", "serialize", "sgx", "sha", "sha512", "shstk", "sm3", "sm4", "sse", "sse2", "sse4a",
    "tsxldtrk", "uintr", "usermsr", "waitpkg", "wbnoinvd", "widekl", "xsave", "xsavec", "xsaveopt", "xsaves"
})  # fmt: skip
"""Features that all processors of 64 bits have, or that code has only where it asks for their instructions by name."""

_EXTENDED_KEYS = ("egpr", 1 << 19)
"""A feature with registers of its own, and their bit of XCR0."""

_XSAVE = (1, 0, _ECX, 27)
"""OSXSAVE: the system keeps registers beyond those of SSE, and XGETBV tells which."""

_YMM, _ZMM, _TILES = 0x6, 0xE0, 0x60000
"""Bits of XCR0: Intel SDM, volume 1, 13.3."""


def requirements_of(features: str) -> Requirements:
    """What code needs that was compiled for LLVM's features, such as "+avx2,-avx512f"."""
    present = {feature[1:] for feature in features.split(",") if feature.startswith("+")}
    bits = [Requirement(name, *position) for name, position in _BITS.items() if name in present]
    xcr0 = _EXTENDED_KEYS[1] * (_EXTENDED_KEYS[0] in present)
    xcr0 |= _YMM * ("avx" in present) | _ZMM * ("avx512f" in present) | _TILES * ("amx-tile" in present)
    if xcr0:
        bits.insert(0, Requirement("osxsave", *_XSAVE))
    return Requirements(bits, xcr0, "amx-tile" in present)
