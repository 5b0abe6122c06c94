"""What this machine can do at most: `./dev bench limits`. One JSON object.

The rate of multiply-adds on registers, and how fast each level of memory is read, copied and written, on one thread and
on all, measured with our own code generator.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tunewright.bench.bandwidth import Traffic, sizes_bytes, streaming_s
from tunewright.codegen.host import detect, machine
from tunewright.codegen.runtime.pool import ThreadPool
from tunewright.codegen.target import Target
from tunewright.tuner import cli
from tunewright.tuner.settings import settings
from tunewright.workers.lock import HostLock
from tunewright.workers.measure.rates import measure


def main() -> int:
    """Print the limits on one thread and on all."""
    argparse.ArgumentParser(prog="./dev bench limits", description=__doc__, allow_abbrev=False).parse_args()
    rates = {str(threads): limits(detect(threads)) for threads in sorted({1, detect().threads})}
    print(json.dumps({"threads": rates, "target": str(detect()), "machine": machine()}, indent=2))
    return 0


def limits(target: Target) -> dict[str, Any]:
    """GFLOP/s of multiply-adds, and for each level of memory GB/s of reading, copying and writing."""
    peak = measure(target, settings().objects).peak_flops_s / 1e9
    with HostLock(settings().objects).exclusive(), ThreadPool(target.threads) as pool:
        levels = {name: _gb_s(size_bytes, target, pool) for name, size_bytes in sizes_bytes(target).items()}
    return {"peak_gflops": peak, "bandwidth_gb_s": levels}


def _gb_s(size_bytes: int, target: Target, pool: ThreadPool) -> dict[str, float]:
    """GB/s of reading, copying and writing. Bytes read and bytes written count alike."""
    half = size_bytes // 2
    kinds = {"read": Traffic(size_bytes, 0), "copy": Traffic(half, half), "write": Traffic(0, size_bytes)}
    return {kind: t.total_bytes / streaming_s(t, target, pool) / 1e9 for kind, t in kinds.items()}


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))
