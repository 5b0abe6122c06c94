"""Prints how many of ONNX's conformance cases passed, and how.

"native": all nodes in kernels. "native if told": so once shape parameters that the model takes as inputs are known.
"nothing to run": reshapes and constants alone. "by fallback": at least one node by ONNX's reference evaluator.
"""

from __future__ import annotations

from collections import Counter

import pytest

COLUMNS = ("native", "native if told", "nothing to run", "by fallback", "skipped", "failed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A row for the cases that must pass, one for the others; the ops that fell back most; why cases were skipped."""
    counts: dict[str, Counter[str]] = {}
    ops: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            told = dict(report.user_properties)
            if "onnx_group" in told and report.when == "call":
                result, _, reason = str(told.get("onnx_result", "failed")).partition(": ")
                counts.setdefault(str(told["onnx_group"]), Counter())[result] += 1
                reasons.update([reason] if reason else [])
                ops.update(str(told.get("onnx_fallback", "")).split())
    if not counts:
        return
    terminalreporter.section("ONNX conformance cases")
    terminalreporter.write_line(f"{'':16}{'cases':>8}" + "".join(f"{name:>16}" for name in COLUMNS))
    for group, found in sorted(counts.items(), reverse=True):
        cells = "".join(f"{found[name]:>16,}" for name in COLUMNS)
        terminalreporter.write_line(f"{group:16}{found.total():>8,}{cells}")
    terminalreporter.write_line("by fallback: " + ", ".join(f"{op} {count}" for op, count in ops.most_common(15)))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
