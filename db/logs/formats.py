"""What values of known caches look like: those that a compiler reads without a doubt.

PyTorch and Triton take what their remote caches answer as their own: names in it become names of files, fields become
arguments. So a value that they did not write could break a build, or do worse. Values of other keys are opaque.

Sources: torch/_inductor/runtime/autotune_cache.py, triton/runtime/autotuner.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DIGEST = "[0-9a-f]{32,64}"

BUNDLED_NAME = re.compile(r"[0-9a-z_]{1,100}\.best_config")
"""Of a choice in a bundle: PyTorch makes a path of it."""

WARPS, CTAS, STAGES, REGISTERS = 64, 16, 64, 1024
"""Most of each that a config may ask for."""

TEXT_LETTERS = 200

LONGEST_MS = 1e9

CONFIG_FIELDS = {"kwargs", "num_warps", "num_ctas", "num_stages", "maxnreg", "pre_hook", "ir_override"}
"""Fields of a config of Triton. The last two are code, or name a file of it: none is kept that has any."""


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """The values of the keys of a namespace that have a pattern."""

    namespace: str
    keys: re.Pattern[str]
    is_sound: Callable[[Any], bool]  # of the value as JSON data


def check_value(namespace: str, key: str, value: bytes) -> None:
    """Raises ValueError for a value that its compiler would not have written. Of most keys nothing is known."""
    found = format_of(namespace, key)
    if found is None:
        return
    try:
        data = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the value of {key} is no JSON") from error
    if not found.is_sound(data):
        raise ValueError(f"the value of {key} is none that its compiler writes")


def format_of(namespace: str, key: str) -> ValueFormat | None:
    """The format of the values of a key; None where they are opaque."""
    root = namespace.partition(".")[0]
    return next((one for one in FORMATS if one.namespace == root and one.keys.fullmatch(key)), None)


def _is_choice(data: Any) -> bool:
    """What Inductor's autotuner chose for a kernel."""
    if not isinstance(data, dict) or not isinstance(data.get("configs_hash"), str):
        return False
    warps, stages = data.get("num_warps"), data.get("num_stages")
    blocks = [value for name, value in data.items() if name.endswith("BLOCK")]
    return (
        _is_power(warps, WARPS)
        and _is_whole(stages, 0, STAGES)
        and all(_is_power(block, 1 << 20) for block in blocks)
        and all(map(_is_plain, data.values()))
    )


def _is_bundle(data: Any) -> bool:
    """Choices of a file of Inductor's, by name."""
    return isinstance(data, dict) and all(
        BUNDLED_NAME.fullmatch(name) is not None and _is_choice(choice) for name, choice in data.items()
    )


def _is_result(data: Any) -> bool:
    """What Triton's autotuner measured of a kernel."""
    if not isinstance(data, dict) or data.keys() - {"key", "configs_timings"}:
        return False
    pairs = data.get("configs_timings")
    return isinstance(pairs, list) and bool(pairs) and all(map(_is_timing, pairs))


def _is_timing(pair: Any) -> bool:
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    config, times_ms = pair
    return _is_config(config) and are_times(times_ms)


def are_times(data: Any) -> bool:
    """Whether these are the median and two quantiles of Triton's benchmark; infinite of what could not run."""
    return isinstance(data, list) and len(data) == 3 and all(map(_is_time, data))


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (0 < value <= LONGEST_MS or value == math.inf)


def _is_config(data: Any) -> bool:
    if not isinstance(data, dict) or data.keys() - CONFIG_FIELDS or not isinstance(data.get("kwargs"), dict):
        return False
    return (
        _is_power(data.get("num_warps", 4), WARPS)
        and _is_whole(data.get("num_ctas", 1), 1, CTAS)
        and _is_whole(data.get("num_stages", 1), 0, STAGES)
        and (data.get("maxnreg") is None or _is_whole(data["maxnreg"], 1, REGISTERS))
        and data.get("pre_hook") is None
        and data.get("ir_override") is None
        and all(map(_is_plain, data["kwargs"].values()))
    )


def _is_whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_power(value: Any, most: int) -> bool:
    """Whether a value is a power of two."""
    return _is_whole(value, 1, most) and value & (value - 1) == 0


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= TEXT_LETTERS
    return value is None or isinstance(value, bool | float) or _is_whole(value, -(1 << 62), 1 << 62)


FORMATS = (
    # torch/_inductor/remote_cache.py: pt2:{cache_id}::{key}:c1, where the id of the autotune cache is a digest
    ValueFormat("inductor", re.compile(rf"pt2:{DIGEST}::{DIGEST}:c1"), _is_choice),
    ValueFormat("inductor", re.compile(rf"pt2:bundled-autotune-v1::{DIGEST}:c1"), _is_bundle),
    # triton/runtime/cache.py, autotuner.py: triton:{key}:{filename}, of an autotuner <function>.autotune.json
    ValueFormat(
        "triton", re.compile(r"triton:[A-Za-z0-9_-]{32,64}:[\w.<>-]{1,200}\.autotune\.json", re.ASCII), _is_result
    ),
    ValueFormat("triton", re.compile("config:[0-9a-f]{64}"), are_times),
)
