"""The demo: tune SqueezeNet on this machine, then measure it beside ONNX Runtime.

Model, database and built kernels are in build/demo of the checkout. A second run continues the first one.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tunewright.bench.files import ROOT, write_whole
from tunewright.bench.light import light_model
from tunewright.tuner import cli
from tunewright.tuner.cli.answers import CommandAnswer, CommandInterrupt
from tunewright.tuner.cli.bench_report import render as render_comparison
from tunewright.tuner.cli.comparison import compare
from tunewright.tuner.cli.tune import STOPPED_NOTE, tune_model
from tunewright.tuner.cli.tune_report import render as render_report
from tunewright.tuner.lookup.source import ScheduleSource

FOLDER = ROOT / "build" / "demo"

MODEL = "squeezenet"

PEER = "onnxruntime"

MINUTES = 1.25
"""Time of the search; the whole demo takes two minutes."""

TRIALS = 2000
"""More trials than fit into that time."""


def main() -> int:
    """Tune, compare, and say what to do next. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="./dev demo",
        description=f"Tunes {MODEL} on this machine for {MINUTES:g} minutes, measures it beside {PEER}, and says what "
        f"to do next. All that it makes lies in {os.path.relpath(FOLDER)}; a second run goes on from there.",
        allow_abbrev=False,
    )
    parser.parse_args()
    os.environ.setdefault("TUNEWRIGHT_HOME", str(FOLDER))  # built kernels too
    console = cli.messages()
    folder = Path(os.path.relpath(FOLDER))
    model, db = folder / f"{MODEL}.onnx", f"sqlite:///{folder / 'tuning.db'}"
    if not model.exists():
        write_whole(model, light_model(MODEL).SerializeToString())
    console.print(f"tuning {MODEL} for {MINUTES:g} minutes; Ctrl-C stops, and the next run goes on")
    try:
        report = tune_model(console, model, db=db, trials=TRIALS, minutes=MINUTES)
    except KeyboardInterrupt:
        raise CommandInterrupt(STOPPED_NOTE) from None
    CommandAnswer(report, render_report).give(as_json=False)
    console.print(f"\nnow beside {PEER}, in one run")
    times = compare(model, [PEER], ScheduleSource(db), default=True, watch=console.print)
    CommandAnswer(times, render_comparison).give(as_json=False)
    console.print(_next_steps(model, db), soft_wrap=True)
    return 0


def _next_steps(model: Path, db: str) -> str:
    return "\n".join(
        (
            "\nwhat to do next:",
            "  ./dev run tunewright tune YOUR_MODEL.onnx",
            f"  ./dev run tunewright lookup {model} --db {db}",
            f"  ./dev run tunewright bench {model} --db {db}",
            "  ./dev demo    # again: it goes on from here",
        )
    )


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))
