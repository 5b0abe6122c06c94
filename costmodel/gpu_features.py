"""Features of points on a GPU beside those that all targets have: blocks, waves, shared memory, tensor cores.

Blocks come to the multiprocessors in waves. What a block takes of one decides how many are there at once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tunewright.codegen.expr.dtype import BYTES
from tunewright.codegen.gpu import SM_REGISTERS, Gpu
from tunewright.graph.task import Task
from tunewright.search_space.space import BlockShape, Columns, Space

from .loops import Loops
from .roofline import GPU_BYTES_CYCLE, GPU_LAUNCH_S, operations, product_dtype

Floats = NDArray[np.float64]  # [points], or [1] where all points agree

KNOBS = (
    "stages", "query_stages", "splits", "tail", "group", "staged", "bulk", "alternating", "warpgroups", "warps",
    "lines", "threads", "vector", "channels", "columns", "extent", "each", "block_depth", "block_places", "warp_rows",
    "warp_columns", "patch_height", "patch_width",
)  # fmt: skip
"""Knobs of sketches for GPUs with columns of their own, beside those in `KNOB_MEANINGS`."""

GPU_NAMES = (
    "block_log_threads", "block_thread_registers", "block_log_smem", "block_resident", "block_occupancy",
    "block_tensor_cores", "block_log_thread_points", "block_log_bytes", "block_log_intensity",
    "wave_log_blocks", "wave_log_waves", "wave_waste", "wave_resident_waste", "wave_padding", "wave_log_rounds",
    "wave_log_tile_rounds", "gpu_operand_bytes", "gpu_lengthwise_a", "gpu_lengthwise_b", "gpu_log_access_bytes",
    "gpu_log_compute_s", "gpu_log_l2_s", "gpu_log_memory_s", "gpu_log_parts_s", "gpu_log_estimate_s",
    *(f"gpu_knob_{name}" for name in KNOBS),
)  # fmt: skip
"""The columns, in order."""


def gpu_columns(task: Task, loops: Loops, space: Space, knobs: Columns) -> Mapping[str, Floats]:
    """The columns of points by name; -1 where their sketch does not say what blocks take."""
    assert loops.target.gpu is not None
    if space.block is None:
        return dict.fromkeys(GPU_NAMES, np.array([-1.0]))
    block = space.block(knobs)
    blocks = _Blocks(task, loops, block, knobs)
    waves = blocks.count / loops.target.gpu.sms
    sizes = {name: _log(1 + knobs[name]) for name in KNOBS if name in knobs}
    operand = loops.accesses[min(1, len(loops.accesses) - 1)]
    vector = np.asarray(knobs.get("vector", knobs.get("channels", np.ones(1))), np.float64)
    return {
        "block_log_threads": _log(block.threads),
        "block_thread_registers": np.asarray(block.registers, np.float64),
        "block_log_smem": _log(1 + block.smem_bytes),
        "block_resident": blocks.resident,
        "block_occupancy": blocks.resident * block.threads / loops.target.gpu.sm_threads,
        "block_tensor_cores": np.array([float(block.on_tensor_cores)]),
        "block_log_thread_points": _log(blocks.tile_points / np.maximum(block.threads, 1)),
        "block_log_bytes": _log(blocks.l2_bytes / blocks.count),
        "block_log_intensity": _log(blocks.points / blocks.l2_bytes),
        "wave_log_blocks": _log(blocks.count),
        "wave_log_waves": _log(waves),
        "wave_waste": np.ceil(waves) / waves - 1.0,
        "wave_resident_waste": np.ceil(waves / blocks.resident) * blocks.resident / waves - 1.0,
        "wave_padding": blocks.padding - 1.0,
        "wave_log_rounds": _log(blocks.rounds),
        "wave_log_tile_rounds": _log(blocks.rounds * np.ceil(waves)),
        "gpu_operand_bytes": np.array([float(operand.element_bytes)]),
        "gpu_lengthwise_a": np.array([_is_lengthwise(loops, 1)]),
        "gpu_lengthwise_b": np.array([_is_lengthwise(loops, 2)]),
        "gpu_log_access_bytes": _log(vector * operand.element_bytes),
        **{f"gpu_log_{part}_s": _log(1e-9 + time_s) for part, time_s in blocks.times_s().items()},
        **dict.fromkeys((f"gpu_knob_{name}" for name in KNOBS), np.array([-1.0])),
        **{f"gpu_knob_{name}": size for name, size in sizes.items()},
    }


def _log(x: Floats | NDArray[np.int64]) -> Floats:
    return np.asarray(np.log2(np.maximum(x, 1e-12)))


def _is_lengthwise(loops: Loops, position: int) -> float:
    """Whether neighbours in an operand's memory lie along the reduction; -1 without such an operand."""
    if position >= len(loops.accesses) or not loops.reduced:
        return -1.0
    return float(loops.accesses[position].stride(loops.reduced[-1]) == 1)


class _Blocks:
    """The blocks of points: how many, how much work, and how long it takes at least. All are [points] or [1]."""

    def __init__(self, task: Task, loops: Loops, shape: BlockShape, knobs: Columns) -> None:
        assert loops.target.gpu is not None
        self._task, self._loops, self._shape = task, loops, shape
        self._gpu: Gpu = loops.target.gpu
        self._knobs = knobs
        self.splits = np.asarray(knobs.get("splits", np.ones(1, np.int64)), np.float64)
        self.count = loops.chunks
        self.points = float(loops.volume(loops.whole, loops.spatial + loops.reduced)[0])
        self.results = float(loops.volume(loops.whole, loops.spatial)[0])

    @property
    def resident(self) -> Floats:
        """Blocks that a multiprocessor has room for, by an estimate of their registers."""
        gpu, shape = self._gpu, self._shape
        threads = np.maximum(shape.threads, 1)
        room = np.minimum(gpu.sm_threads // threads, SM_REGISTERS // np.maximum(threads * shape.registers, 1))
        room = np.minimum(room, gpu.sm_smem_bytes // np.maximum(shape.smem_bytes, 1))
        return np.asarray(np.clip(room, 1, gpu.sm_blocks), np.float64)

    @property
    def tile_points(self) -> Floats:
        """Results of a block, those beyond the edges too."""
        if "block_rows" in self._knobs and "block_columns" in self._knobs:
            return np.asarray(self._knobs["block_rows"] * self._knobs["block_columns"], np.float64)
        return np.asarray(self._loops.volume(self._loops.levels, self._loops.spatial)[self._loops.last_level])

    @property
    def padding(self) -> Floats:
        """Results that all blocks compute, beside those that there are."""
        return np.maximum(self.count / self.splits * self.tile_points / self.results, 1.0)

    @property
    def rounds(self) -> Floats:
        """Rounds of a block along the reduction; 1 where it has none."""
        loops = self._loops
        depth = loops.volume(loops.whole, loops.reduced)
        step = self._knobs.get("block_depth", self._knobs.get("block_places", depth))
        return np.asarray(np.maximum(np.ceil(depth / step / self.splits), 1.0))

    @property
    def l2_bytes(self) -> Floats:
        """Bytes that all blocks bring from the second-level cache, and write."""
        return np.asarray(
            self._loops.footprints_bytes[self._loops.last_level] * self._loops.passes_at[self._loops.last_level]
        )

    def times_s(self) -> dict[str, Floats]:
        """Seconds to compute, to move data from the second-level cache and from memory, and to add parts up; of all."""
        gpu, sms = self._gpu, float(self._gpu.sms)
        waste = np.ceil(self.count / sms) * sms / self.count
        active = np.minimum(self.count, sms)
        compute_s = self.points * self.padding * waste / self._rate / sms / gpu.clock_hz
        l2_s = self.l2_bytes * waste / (GPU_BYTES_CYCLE * sms * gpu.clock_hz)
        memory_s = self._task.traffic_bytes / gpu.memory_bytes_s * np.maximum(0.25 * sms / active, 1.0)
        parts_bytes = np.where(self.splits > 1, 8.0 * self.results * self.padding * self.splits, 0.0)
        parts_s = parts_bytes / (GPU_BYTES_CYCLE * sms * gpu.clock_hz) + np.where(self.splits > 1, GPU_LAUNCH_S, 0.0)
        longest = np.maximum(np.maximum(compute_s, l2_s), memory_s)
        total_s = longest + 0.25 * (compute_s + l2_s + memory_s - longest) + parts_s + GPU_LAUNCH_S
        return {"compute": compute_s, "l2": l2_s, "memory": memory_s, "parts": parts_s, "estimate": total_s}

    @property
    def _rate(self) -> float:
        """Points of the stage that a multiprocessor computes a cycle, by the units that the sketch uses."""
        stage, gpu = self._loops.stage, self._gpu
        if self._shape.on_tensor_cores:
            dtype = product_dtype(stage)
            if dtype in BYTES:
                return float(gpu.byte_multiply_adds)
            is_narrow = dtype is None or dtype.is_narrow  # attention's weights are none of its inputs
            return float(gpu.narrow_multiply_adds if is_narrow else gpu.split_multiply_adds)
        return gpu.multiply_adds / max(operations(stage.body, stage.combiner), 0.25)
