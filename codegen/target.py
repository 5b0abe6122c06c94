"""The machine that code is compiled for."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

from .fields import check_names, check_ranges, quote
from .gpu import THREAD_REGISTERS, Gpu

KIND = re.compile("[a-z][a-z0-9]{0,15}")

MARKS = {"triple": "-_.", "cpu": "-_.", "features": "-_.+,"}
"""What else than letters and digits texts of a target have: all are shown, some to compilers."""

PLAIN = {name: re.compile(f"[A-Za-z0-9{re.escape(marks)}]*") for name, marks in MARKS.items()}
"""Their forms."""

CPU, CUDA = "cpu", "cuda"
"""The kind of NVIDIA's GPUs."""

MAX_THREADS = 4096
"""Most threads of a pool."""

RANGES = {
    "vector_bits": (64, 2048),
    "vector_registers": (8, 256),
    "threads": (1, MAX_THREADS),
    "l1_bytes": (0, 1 << 50),
    "l2_bytes": (0, 1 << 50),
    "l3_bytes": (0, 1 << 50),
}


MOST_FEATURES = 10_000
"""Most letters of a target's features."""


@dataclass(frozen=True, slots=True)
class Target:
    """A processor or GPU, and the hardware numbers that schedules and features depend on. Machines alike share a key.

    Of a GPU, `gpu` has what processors have not; a core is a multiprocessor, a vector what a thread moves at once.
    """

    kind: str  # "cpu" or "cuda"
    triple: str  # LLVM's name of architecture and system, e.g. "x86_64-unknown-linux-gnu"
    cpu: str  # LLVM's name of the processor, e.g. "znver5"; of a GPU its architecture, e.g. "sm_90a"
    features: str  # LLVM's feature string, e.g. "+avx512f,+fma"; empty: what `cpu` implies
    vector_bits: int
    vector_registers: int
    threads: int  # threads that timed kernels run on
    l1_bytes: int  # data cache of one core
    l2_bytes: int  # of one core
    l3_bytes: int  # shared; 0 where there is none
    gpu: Gpu | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what no processor is: targets also come from files and databases."""
        if not (isinstance(self.kind, str) and KIND.fullmatch(self.kind)):
            raise ValueError(f"target: kind must be a short word in lower case, not {quote(self.kind)}")
        for name, limit in (("triple", 100), ("cpu", 100), ("features", MOST_FEATURES)):
            value = getattr(self, name)
            plain = isinstance(value, str) and PLAIN[name].fullmatch(value) and len(value) <= limit
            if not plain or (name != "features" and not value):
                raise ValueError(
                    f"target: {name} must have at most {limit} letters, digits and any of {MARKS[name]}, "
                    f"not {quote(value)}"
                )
        check_ranges("target", self, RANGES)
        if self.vector_bits & (self.vector_bits - 1):
            raise ValueError(f"target: vector_bits must be a power of two, not {self.vector_bits}")
        if (self.kind == CUDA) is not isinstance(self.gpu, Gpu):
            raise ValueError(f"target: one of kind {self.kind} {'needs' if self.gpu is None else 'has no'} field gpu")

    @property
    def key(self) -> str:
        """SHA-256 over the canonical JSON: the identity of the target in the database."""
        return _key(self)

    def lanes(self, element_bytes: int) -> int:
        """Elements of this size in one vector register."""
        return self.vector_bits // 8 // element_bytes

    @property
    def dot_bits(self) -> int:
        """The widest vectors of bytes, unsigned and signed ones, whose products an instruction sums in 32 bits.

        512 with AVX512-VNNI, 256 with AVX-VNNI, 128 with ARM's I8MM, 0 without.
        """
        if "+i8mm" in self._arm_features:
            return 128
        features = self._x86_features
        return 512 if "+avx512vnni" in features else 256 if "+avxvnni" in features else 0

    @property
    def bf16_bits(self) -> int:
        """The widest vectors of bfloat16 whose products an instruction sums in float32; 0 where there is none."""
        return 512 if "+avx512bf16" in self._x86_features else 128 if "+bf16" in self._arm_features else 0

    @property
    def pair_bits(self) -> int:
        """The widest vectors of 16-bit words, products of which an instruction sums in pairs; 0 where there is none."""
        features = self._x86_features
        return 512 if "+avx512bw" in features else 256 if "+avx2" in features else 0

    @property
    def has_dots(self) -> bool:
        """Whether whole vectors of bytes are multiplied so, if need be as words: faster than as float32."""
        return 0 < self.vector_bits <= max(self.dot_bits, self.pair_bits)

    @property
    def has_quick_dots(self) -> bool:
        """Whether one instruction does it."""
        return 0 < self.vector_bits <= self.dot_bits

    @property
    def has_bf16(self) -> bool:
        """Whether bfloat16 is multiplied as such, faster than as float32."""
        is_vector = 0 < self.vector_bits <= self.bf16_bits
        return self.kind == CUDA or is_vector or self.has_matrices_of("bfloat16")

    @property
    def has_fma(self) -> bool:
        """Whether `fma` of floats rounds once: where an instruction multiplies and adds."""
        return self._is_arm or "+fma" in self._x86_features

    @property
    def _x86_features(self) -> list[str]:
        return self.features.split(",") if self.triple.startswith("x86_64") else []

    @property
    def _is_arm(self) -> bool:
        return self.triple.startswith(("aarch64", "arm64"))

    @property
    def _arm_features(self) -> list[str]:
        return self.features.split(",") if self._is_arm else []

    @property
    def has_matrices(self) -> bool:
        """Whether it has matrix registers: Intel's AMX."""
        return "+amx-tile" in self._x86_features

    def has_matrices_of(self, dtype: str) -> bool:
        """Whether it has matrix registers, and an instruction that multiplies numbers of a `DType` in them."""
        feature = {"uint8": "+amx-int8", "bfloat16": "+amx-bf16"}.get(dtype)
        return self.has_matrices and feature in self._x86_features

    def __str__(self) -> str:
        return f"{self.kind}:{self.cpu}:{self.threads}x{self.vector_bits}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; `gpu` is there for GPUs alone."""
        return {name: value for name, value in asdict(self).items() if name != "gpu" or value is not None}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Target:
        """The inverse of `to_json`. Raises ValueError, in words for people, on any other data."""
        names = [field.name for field in fields(Target)]
        check_names(data, [name for name in names if name != "gpu"], names)
        gpu = data.get("gpu")
        if gpu is None:
            return Target(**data)
        if not isinstance(gpu, dict):
            raise ValueError(f"target: gpu must be an object, not {quote(gpu)}")
        return Target(**{**data, "gpu": Gpu.from_json(gpu)})

    @staticmethod
    def of_gpu(gpu: Gpu) -> Target:
        """The target that a GPU is."""
        return Target(
            CUDA,
            "nvptx64-nvidia-cuda",
            gpu.arch,
            "",
            vector_bits=128,
            vector_registers=THREAD_REGISTERS,
            threads=gpu.sms,
            l1_bytes=gpu.sm_smem_bytes,
            l2_bytes=gpu.l2_bytes,
            l3_bytes=0,
            gpu=gpu,
        )


@lru_cache(maxsize=64)
def _key(target: Target) -> str:
    text = json.dumps(target.to_json(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
