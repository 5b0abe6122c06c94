"""Whole models as they are first opened, beside their peers: `./dev bench untuned [NAME ...]`.

Every model of `suite` runs on what the base cost model picks, without a database, in turn with all peers, on one thread
and on all. Results: bench/results/untuned.json, and a plot of it.
"""

from __future__ import annotations

import sys

from tunewright.bench.campaign import parse
from tunewright.bench.models import report
from tunewright.bench.suite import MODELS
from tunewright.tuner import cli

WITHIN_MINUTES = 40.0
"""About twice what all models take on two cores."""


def main() -> int:
    """Measure the selected models. 1 if a case failed."""
    subject = "the models of bench/suite"
    return report(parse("untuned", MODELS, subject, trials=0, minutes=0.0, within_minutes=WITHIN_MINUTES))


if __name__ == "__main__":
    sys.exit(cli.exit_code(main))
