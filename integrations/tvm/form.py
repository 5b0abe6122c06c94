"""How the log tells what MetaSchedule knows: keys, environments, values and costs. Nothing here needs TVM.

    workloads-HASH   the JSON of a Workload, in an environment without a device
    records-HASH     the JSON of a TuningRecord without its times, for each candidate that was tried, in the environment
                     of its target; the cost says what it took, and is unknown where it failed

HASH is TVM's structural hash of the workload: the same in all processes, and in versions that build it alike.
"""

from __future__ import annotations

import json
import math
import statistics
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from tunewright.db.logs.entry import LONGEST_TEXT, UNKNOWN, VALUE_BYTES, Cost, CostEvidence, LogEnvironment, digest

NAMESPACE = "tvm"

TOOLCHAIN = "tvm"

RECORDS, WORKLOADS = "records", "workloads"

UNTIMED_S = 1e10
"""What MetaSchedule has for the time of a candidate that failed."""

PLAIN_BYTES = 4096
"""Values up to this length stay text that people can read."""

UNPACKED_BYTES = 64 << 20
"""The most that a value may unpack to."""

NOT_DECIDING = {"kind", "tag", "keys", "host"}
"""Of a target: its kind stands first, and the others change no kernel, or follow from it."""


class TooLong(ValueError):
    """What is to be kept is larger than a value may be."""


def key_of(kind: str, structural_hash: int) -> str:
    """The key of a workload (`WORKLOADS`), or of the records of one (`RECORDS`)."""
    return f"{kind}-{structural_hash % (1 << 64):016x}"


def hash_of(key: str) -> int | None:
    """The structural hash of a key; None where it is no such key."""
    try:
        return int(key.partition("-")[2], 16)
    except ValueError:
        return None


def device_of(target: Mapping[str, Any]) -> str:
    """A target in one line, all of it that decides what its kernels are and take; a digest where it is a long one."""
    words = [str(target.get("kind", ""))]
    words += [f"-{name}={_word(target[name])}" for name in sorted(target.keys() - NOT_DECIDING)]
    text = json.dumps(" ".join(words))[1:-1]  # ASCII, without ends of lines
    if len(text) <= LONGEST_TEXT:
        return text
    mark = f"... {digest(text.encode()).hex()}"
    return text[: LONGEST_TEXT - len(mark)] + mark


def environment_of(device: str, version: str, toolchain: str = TOOLCHAIN) -> LogEnvironment:
    """Where a record holds; a workload, without a device, holds on all of them."""
    return LogEnvironment(device, toolchain, {"tvm": version})


def cost_of(run_secs: Sequence[float] | None) -> Cost:
    """What a candidate took: the median of its runs; where there are several, these bound it. Unknown if it failed."""
    times_s = sorted(run_secs or ())
    if not times_s or not all(math.isfinite(time_s) and 0 < time_s < UNTIMED_S for time_s in times_s):
        return UNKNOWN
    low_s, high_s = (times_s[0], times_s[-1]) if len(times_s) > 1 else (None, None)
    return Cost(statistics.median(times_s), low_s, high_s, len(times_s), CostEvidence.TIMED)


def without_times(record: Any) -> list[Any]:
    """The JSON of a record without its times, so that a candidate that is timed again is the same value.

    Truth is told by numbers, as in MetaSchedule's files. Raises ValueError for what is no record.
    """
    if not isinstance(record, list) or len(record) != 4:
        raise ValueError("a tuning record is a list of four: its trace, times, target and arguments")
    trace, _, target, arguments = record
    return [_without_truth(trace), None, target, arguments]


def with_time(record: Any, cost: Cost) -> list[Any]:
    """The JSON of a record with the time that is known of it. Raises ValueError."""
    trace, _, target, arguments = without_times(record)
    return [trace, [UNTIMED_S if cost.time_s is None else cost.time_s], target, arguments]


def text_of(data: Any) -> bytes:
    """JSON data as text, the same for equal data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def pack(text: bytes) -> bytes:
    """A value: the text, compressed where it is long. Raises TooLong."""
    if len(text) <= PLAIN_BYTES:
        return text
    value = zlib.compress(text, 9)
    if len(value) > VALUE_BYTES:
        raise TooLong(f"it has {len(value):,} bytes, compressed; a value may have {VALUE_BYTES:,}")
    return value


def unpack(value: bytes) -> Any:
    """The JSON data of a value of any origin. Raises ValueError."""
    try:
        if value[:1] == b"x":  # as zlib begins, and no JSON does
            unpacking = zlib.decompressobj()
            value = unpacking.decompress(value, UNPACKED_BYTES)
            if unpacking.unconsumed_tail or not unpacking.eof:
                raise ValueError("it is cut off, or unpacks to too much")
        return json.loads(value)
    except (zlib.error, RecursionError) as error:
        raise ValueError("it is no JSON, compressed or not") from error


def _without_truth(data: Any) -> Any:
    if isinstance(data, list):
        return [_without_truth(one) for one in data]
    return int(data) if isinstance(data, bool) else data


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
