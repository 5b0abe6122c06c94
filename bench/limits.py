"""What this machine can do at most: `./dev bench limits`. One JSON object."""

from __future__ import annotations

import json

from tunewright.codegen.host import detect, machine
from tunewright.tuner.limits import measure


def main() -> None:
    """Measure multiply-adds on registers and reading beyond the second-level caches, on 1 to all threads."""
    most = detect().threads
    rates = {}
    for threads in sorted({1, most}):
        found = measure(detect(threads))
        rates[str(threads)] = {
            "peak_gflops": found.peak_flops_s / 1e9,
            "bandwidth_gb_s": found.bandwidth_bytes_s / 1e9,
        }
    print(json.dumps({"threads": rates, "target": str(detect()), "machine": machine()}, indent=2))


if __name__ == "__main__":
    main()
