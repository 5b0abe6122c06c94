"""The pictures of the cost model: how its versions compare, what it learned from, and what it goes by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from tunewright.tuner.text import counted, share

from ..drawing import bars, steps
from ..drawing.scales import Axis, Unit
from ..views.cost_model import CostModelPage, Figures, SnapshotLine, TrainingSet, WeightLine

AGE = Axis("time since the first of these", Unit.CLOCK, include=(0.0,))

HISTORY = {
    "pairwise": ("Pairs in the right order", 1.0),
    "peak_1": ("Speed of the first pick, beside the best", 1.0),
    "time_error": ("How far predicted times are off", 0.0),
    "covered": ("Times within two deviations; 95% is right", 0.95),
}
"""Of each figure what it is, and what is right."""

NEVER = "No snapshot was judged yet: it takes some hundred trials of five tasks or more."


def cost_model_charts(view: CostModelPage) -> dict[str, Markup]:
    """One of each figure in `HISTORY`, `ops` and `newest_ops`, `base_weights` and `newest_weights`."""
    charts = {figure: _history(view, figure, *told) for figure, told in HISTORY.items()}
    return charts | {
        "ops": _ops("What the base model has learned from", view.base.learned_from if view.base else None),
        "newest_ops": _ops("What the newest snapshot has learned from", view.newest_learned_from),
        "base_weights": _weights("What the base model goes by", view.base_weights),
        "newest_weights": _weights("What the newest snapshot adds goes by", view.newest_weights),
    }


def _history(view: CostModelPage, figure: str, title: str, right: float) -> Markup:
    """A figure of all snapshots that have it, and of what each of them stands on."""
    first = min((one.made_at for one in view.snapshots), default=None)

    def points(of: Callable[[SnapshotLine], Figures | None]) -> list[tuple[float, float]]:
        found = []
        for one in reversed(view.snapshots):
            figures = of(one)
            value = getattr(figures, figure) if figures else None
            if value is not None and first is not None:
                found.append(((one.made_at - first).total_seconds(), value))
        return found

    return steps.steps(
        title,
        AGE,
        Axis(title, Unit.SHARE, include=(right,)),
        [
            steps.Curve("snapshots", points(lambda one: one.held_out)),
            steps.Curve("what they stand on", points(lambda one: one.below)),
        ],
        nothing=NEVER,
    )


def _ops(title: str, learned_from: TrainingSet | None) -> Markup:
    rows = [
        bars.Bar(
            line.op or "-",
            float(line.trials),
            f"{line.trials:,}",
            "" if line.held_out is None else f"{counted(line.held_out, 'trial')} to judge it by",
        )
        for line in (learned_from.ops if learned_from else ())
    ]
    return bars.bars(title, rows, heads=("op", "trials"), nothing="There is no such model.")


def _weights(title: str, weights: Sequence[WeightLine]) -> Markup:
    rows = [bars.Bar(line.words, line.share, share(line.share), line.feature) for line in weights]
    return bars.bars(
        title, rows, heads=("feature", "share of what it learned"), kind="series-0", nothing="There is no such model."
    )
