"""Meanings: the features of the cost model in words, with the format of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tunewright.costmodel.features import CACHES, NAMES, sketch_code
from tunewright.costmodel.gpu_features import GPU_NAMES
from tunewright.costmodel.loops import LEVELS
from tunewright.search_space.sketches import SKETCHES
from tunewright.search_space.space import KNOB_MEANINGS

from ..text import duration, large, percent, times

NONE = "none"
"""Value of a feature that a schedule does not have."""

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Meaning:
    """One feature, for people."""

    words: str  # what it is; no sentence
    format: Format  # a value of it, with its unit


def knob_words(name: str) -> str:
    """What a knob is, for people; empty where its name says it."""
    meaning = MEANINGS.get(f"knob_{name}")
    return meaning.words if meaning else ""


def _plain(value: float) -> str:
    return f"{value:.4g}"


def _share(value: float) -> str:
    return percent(float(f"{100 * value:.3g}") / 100)


def _yes_or_no(value: float) -> str:
    return "yes" if value else "no"


def _power(unit: str = "", added: float = 0.0) -> Format:
    """The format of log2(number + added)."""
    return lambda value: large(max(2.0**value - added, 0.0), unit)


def _present(format_value: Format) -> Format:
    """The format of a value that may be missing: -1 stands for that."""
    return lambda value: NONE if value == -1.0 else format_value(value)


def _factor(value: float) -> str:
    if value and value < 0.01:
        return f"{value:.2g}x"
    return times(value) if value < 100 else f"{value:,.0f}x"


def _ratio(value: float) -> str:
    return _factor(2.0**value)


def _time(added_s: float = 0.0) -> Format:
    return lambda value: duration(1e3 * max(2.0**value - added_s, 0.0))


def _sketch(value: float) -> str:
    return next((sketch.name for sketch in SKETCHES if sketch_code(sketch.name) == value), "unknown")


_COUNT, _BYTES, _FLOP = _power(), _power("B"), _power("FLOP", added=1.0)

_TASK: Mapping[str, tuple[str, Format]] = {
    "task_log_flops": ("arithmetic of the task", _FLOP),
    "task_log_bytes": ("bytes that the task reads and writes at least", _BYTES),
    "task_log_intensity": ("operations of the task for each of its bytes", _COUNT),
    "task_log_floor_s": ("least time that the machine allows, roughly", _time()),
    "task_stages": ("stages of the task", _plain),
    "task_inputs": ("inputs of the task", _plain),
    "task_transcendental": ("exponentials and their like at each point", _plain),
    "task_divisions": ("divisions and roots at each point", _plain),
    "task_compared": ("minima, maxima and choices at each point", _plain),
    "task_log_constant_bytes": ("bytes of constants, such as weights", _power("B", added=1.0)),
    "stage_log_points": ("points of the main stage", _COUNT),
    "stage_log_spatial": ("results of the main stage", _COUNT),
    "stage_log_reduction": ("terms of each result", _COUNT),
    "stage_spatial_axes": ("axes of the results", _plain),
    "stage_reduction_axes": ("axes that are folded", _plain),
    "stage_reads": ("operands of the main stage", _plain),
    "stage_operations": ("vector operations at each point", _plain),
    "stage_share": ("share of the arithmetic that is in the main stage", _share),
    "stage_element_bytes": ("bytes of an element", _plain),
    "stage_sum": ("whether terms are added up", _yes_or_no),
    "stage_windows": ("indices along which windows slide", _plain),
    "stage_strided": ("indices that go in steps of more than one", _plain),
    "stage_irregular": ("indices that go in no regular steps", _plain),
    "stage_repeated_loads": ("loads at each point", _plain),
    "target_lanes": ("elements in a vector", _plain),
    "target_registers": ("vector registers of the machine", _plain),
    "target_threads": ("threads", _plain),
    "target_log_l1": ("size of the L1 cache", _power("B", added=1.0)),
    "target_log_l2": ("size of the L2 cache", _power("B", added=1.0)),
    "target_log_l3": ("size of the L3 cache", _power("B", added=1.0)),
}

_TILES = ("the innermost tile", "the second tile", "the third tile", "the outermost tile")

_LEVEL: Mapping[str, tuple[str, Format]] = {
    "log_volume": ("points of {tile}", _COUNT),
    "log_reduction": ("terms that {tile} adds to a result", _COUNT),
    "log_passes": ("passes over {tile}", _COUNT),
    "log_bytes": ("bytes that {tile} touches", _BYTES),
    "log_bytes_l1": ("bytes that {tile} touches, beside the L1 cache", _ratio),
    "log_bytes_l2": ("bytes that {tile} touches, beside the L2 cache", _ratio),
    "log_bytes_l3": ("bytes that {tile} touches, beside the last cache", _ratio),
    "log_intensity": ("points for each byte that {tile} touches", _COUNT),
    "waste": ("work in vain at the edges of {tile}", _share),
    "log_bytes_out": ("bytes of the result that {tile} touches", _BYTES),
    "log_bytes_a": ("bytes of the first operand that {tile} touches", _present(_BYTES)),
    "log_bytes_b": ("bytes of the second operand that {tile} touches", _present(_BYTES)),
    "log_reuse_out": ("points of {tile} for each result", _COUNT),
    "log_reuse_a": ("uses of an element of the first operand in {tile}", _present(_COUNT)),
    "log_reuse_b": ("uses of an element of the second operand in {tile}", _present(_COUNT)),
}

_INTO = ("the L1 cache", "the L2 cache", "the last cache")

_CACHE: Mapping[str, tuple[str, Format]] = {
    "log_traffic": ("bytes that pass into {cache} in one run", _power("B", added=1.0)),
    "log_intensity": ("points for each byte that passes into {cache}", _COUNT),
    "log_excess": ("how often all that is touched passes into {cache}", _ratio),
}

_LOOPS: Mapping[str, tuple[str, Format]] = {
    "vector_log_extent": ("extent of the innermost tile along the lanes", _COUNT),
    "vector_used": ("share of the lanes that the innermost tile uses", _share),
    "vector_waste": ("work in vain along the lanes", _share),
    "vector_reduced": ("whether terms of one result lie along the lanes", _yes_or_no),
    "vector_contiguous": ("operands that lie along the lanes in memory", _plain),
    "vector_broadcast": ("operands that are the same in all lanes", _plain),
    "vector_scattered": ("operands whose lanes are apart in memory", _plain),
    "vector_scattered_constants": ("constants whose lanes are apart in memory", _plain),
    "vector_scattered_share": ("share of the bytes whose lanes are apart in memory", _share),
    "vector_output_stride": ("elements from one lane of the result to the next", _present(_power(added=1.0))),
    "body_results": ("vectors of results in the innermost tile", _plain),
    "body_registers": ("registers that the innermost tile wants", _plain),
    "body_pressure": ("registers wanted, beside those that there are", _share),
    "body_spilled": ("registers wanted that there are not", _plain),
    "body_chains": ("results under way at once, eight at most", _plain),
    "body_log_instructions": ("vectors that the innermost tile loads and stores", _COUNT),
    "body_compute_cycles": ("cycles to compute a step of the innermost tile", _plain),
    "body_fetch_cycles": ("cycles to load operands for a step of it", _plain),
    "body_fetch_per_compute": ("loading beside computing in the innermost tile", _factor),
    "body_log_calls": ("how often the innermost tile is begun", _COUNT),
    "body_log_run": ("terms added while results stay in registers", _COUNT),
    "body_log_runs": ("how often a result comes into registers", _COUNT),
    "chunks_log": ("chunks that threads share", _COUNT),
    "chunks_per_thread": ("chunks for each thread, 64 at most", _plain),
    "chunks_imbalance": ("work of the busiest thread, beside an even share", _factor),
    "chunks_log_bytes": ("bytes of all that is touched, shared out to the chunks", _BYTES),
    "estimate_log_s": ("time by a rough estimate", _time()),
    "estimate_log_compute_s": ("time to compute, by a rough estimate", _time()),
    "estimate_log_l1_s": ("time to bring data into the L1 cache, by an estimate", _time(1e-9)),
    "estimate_log_l2_s": ("time to bring data into the L2 cache, by an estimate", _time(1e-9)),
    "estimate_log_l3_s": ("time to bring data into the last cache, by an estimate", _time(1e-9)),
    "estimate_log_over_floor": ("estimated time, beside the rough limit of the machine", _ratio),
    "sketch_code": ("the sketch", _sketch),
    "sketch_knobs": ("knobs of the sketch", _plain),
    "sketch_levels": ("levels of tiles", _plain),
    "sketch_moved": ("knobs that differ from the sketch's default", _plain),
    "sketch_distance": ("doublings away from the sketch's default", _plain),
}


_GPU: Mapping[str, tuple[str, Format]] = {
    "block_log_threads": ("threads of a block", _COUNT),
    "block_thread_registers": ("registers of a thread, roughly", _plain),
    "block_log_smem": ("shared memory of a block", _power("B", added=1.0)),
    "block_resident": ("blocks for which a multiprocessor has room", _plain),
    "block_occupancy": ("threads for which it has room, beside the most there can be", _share),
    "block_tensor_cores": ("whether tensor cores multiply", _yes_or_no),
    "block_log_thread_points": ("results of a thread", _COUNT),
    "block_log_bytes": ("bytes that a block touches", _BYTES),
    "block_log_intensity": ("points for each byte that blocks touch", _COUNT),
    "wave_log_blocks": ("blocks", _COUNT),
    "wave_log_waves": ("blocks for each multiprocessor", _COUNT),
    "wave_waste": ("multiprocessors that idle in the last wave, beside the work", _share),
    "wave_resident_waste": ("the same where each has all blocks for which there is room", _share),
    "wave_padding": ("work in vain beyond the edges", _share),
    "wave_log_rounds": ("rounds of a block along the fold", _COUNT),
    "wave_log_tile_rounds": ("rounds of a multiprocessor, one after the other", _COUNT),
    "gpu_operand_bytes": ("bytes of an element of the first operand", _plain),
    "gpu_lengthwise_a": ("whether the first operand lies along the fold", _present(_yes_or_no)),
    "gpu_lengthwise_b": ("whether the second operand lies along the fold", _present(_yes_or_no)),
    "gpu_log_access_bytes": ("bytes of an access", _BYTES),
    "gpu_log_compute_s": ("time to compute, in whole waves", _time(1e-9)),
    "gpu_log_l2_s": ("time to move data from the L2 cache, in whole waves", _time(1e-9)),
    "gpu_log_memory_s": ("time to move data from memory", _time(1e-9)),
    "gpu_log_parts_s": ("time to add up what blocks share", _time(1e-9)),
    "gpu_log_estimate_s": ("time by an estimate in whole waves", _time(1e-9)),
}

_GPU_KNOBS: Mapping[str, str] = {
    "stages": "rounds that fit into shared memory",
    "query_stages": "tiles of queries that fit into shared memory",
    "splits": "blocks that share the sum of a tile",
    "tail": "whether tiles that are left alone are shared",
    "group": "tiles of rows taken in turn",
    "staged": "whether results go through shared memory",
    "bulk": "whether whole tiles are copied at once",
    "alternating": "whether warpgroups take turns",
    "warpgroups": "warpgroups that multiply",
    "warps": "warps of a row or a block",
    "lines": "rows of a block that its warps share out",
    "threads": "threads of a block, where they are a choice",
    "vector": "neighbours of a thread",
    "channels": "channels of a thread",
    "columns": "columns of a thread",
    "extent": "extent of a tile that is transposed",
    "each": "elements of a thread",
    "block_depth": "terms of the sums in a round",
    "block_places": "keys of a round",
    "warp_rows": "rows of a warp",
    "warp_columns": "columns of a warp",
    "patch_height": "height of a patch of pixels",
    "patch_width": "width of a patch of pixels",
}


def _all_meanings() -> dict[str, Meaning]:
    entries = {**_TASK, **_LOOPS}
    for level, tile in zip(range(LEVELS), _TILES, strict=True):
        entries |= {f"level{level}_{name}": (words.format(tile=tile), to) for name, (words, to) in _LEVEL.items()}
    for cache, into in zip(CACHES, _INTO, strict=True):
        entries |= {f"{cache}_{name}": (words.format(cache=into), to) for name, (words, to) in _CACHE.items()}
    entries |= {f"knob_{name}": (words, _present(_power(added=1.0))) for name, words in KNOB_MEANINGS.items()}
    entries |= {**_GPU} | {
        f"gpu_knob_{name}": (words, _present(_power(added=1.0))) for name, words in _GPU_KNOBS.items()
    }
    return {name: Meaning(*entries[name]) for name in (*NAMES, *GPU_NAMES)}


MEANINGS: Mapping[str, Meaning] = _all_meanings()
"""The meaning of every feature, of those that GPUs alone have too."""
