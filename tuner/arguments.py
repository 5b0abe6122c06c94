"""Checks of the arguments of Python programs: each fault is one line. Light to import."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import isnan
from numbers import Real
from operator import index
from os import PathLike
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any, Literal

from tunewright.codegen.target import MAX_THREADS
from tunewright.graph.binding import BOUND_MARK
from tunewright.graph.numerics import Precision

from .errors import Refused

StrategyName = Literal["evolutionary", "random"]
"""How candidates are chosen; each name stands in `STRATEGIES` of `search.strategies.strategy`."""

MOST_TRIALS = 1_000_000
"""The most trials of a search."""

LEAST_MINUTES, MOST_MINUTES = 0.01, 525_600
"""The least and the most minutes of a search: less would be over before the first trial, and a year has no more."""

MOST_SEED = 2**32 - 1
"""The largest seed that numpy's and XGBoost's generators both take."""

RETIMED, MOST_RETIMED = 5, 24
"""Schedules of a task that are re-timed where nobody says how many, and at most: what is compared after a search."""

LEAST_PRIORITY, MOST_PRIORITY = -100, 100

MOST_SIZE = 2**31 - 1
"""The largest size of a dimension: as many elements as a tensor may have, see `graph.evaluation.onnx_form`."""


def whole_number(value: Any) -> int | None:
    """The value, where it is a whole number of any type, numpy's too; None for all else, booleans too."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def real_number(value: Any) -> float | None:
    """The value, where it is a number of any real type, numpy's too; None for all else, booleans too."""
    return float(value) if not isinstance(value, bool) and isinstance(value, Real) else None


def check_model(model: Any) -> Path | str | bytes:
    """A path of a model, or its bytes. Raises Refused for all else, such as a model that is read already."""
    if isinstance(model, PathLike):
        return Path(model)
    if isinstance(model, str | bytes):
        return model
    raise Refused(f"model is a {type(model).__name__}; give its path, or its bytes: model.SerializeToString()")


def check_text(name: str, value: Any, example: str) -> None:
    """Raises Refused for a setting that is no text, where it is given; `example` is one that is."""
    if value is not None and not isinstance(value, str):
        raise Refused(f"{name} is a {type(value).__name__}; it must be a text, such as {example}")


def check_words(name: str, words: Any) -> list[str]:
    """Several words. Raises Refused for all else, such as one text, which would count as its letters."""
    if isinstance(words, Iterable) and not isinstance(words, str | bytes):
        values: list[Any] = list(words)
        if all(isinstance(word, str) for word in values):
            return values
    raise Refused(f"{name} is {words!r}; it must be a list of texts, such as ['nightly']")


def check_ray_address(pool: str, ray_address: Any) -> None:
    """Raises Refused for an address of a cluster that is none, or that nothing would join."""
    check_text("ray_address", ray_address, "ray://HOST:10001")
    if ray_address is not None and pool != "ray":
        raise Refused(f"pool={pool!r} takes no ray_address; pool='ray' does")


def check_flag(name: str, value: Any) -> bool:
    """A setting that is on or off. Raises Refused for all else, such as "no", which would count as on."""
    if isinstance(value, bool):
        return value
    raise Refused(f"{name} is {value!r}; it must be True or False")


def check_choice(noun: str, value: Any, names: Collection[str]) -> str:
    """The name given. Raises Refused where it is none of `names`; `noun` is what they name."""
    if isinstance(value, str) and value in names:
        return value
    raise Refused(f"no {noun} is called {value!r}; there are {', '.join(names)}")


def check_precision(precision: Any) -> Precision:
    """What products may be computed in. Raises Refused for what is none of `Precision`."""
    return Precision(check_choice("precision", precision, tuple(Precision)))


def check_source(db: Any, server: Any) -> None:
    """Raises Refused for addresses of a database or a server that are no texts."""
    check_text("db", db, "sqlite:///tuning.db")
    check_text("server", server, "http://HOST:PORT")


def check_path(name: str, value: Any) -> Path | None:
    """The path of a file, None where there is none. Raises Refused for all else."""
    if value is None or isinstance(value, str | PathLike):
        return None if value is None else Path(value)
    raise Refused(f"{name} is a {type(value).__name__}; it must be the path of a file")


def check_threads(threads: int | None) -> int | None:
    """The number of threads, None for all processors. Raises Refused where it is no number of threads."""
    if threads is None:
        return None
    number = whole_number(threads)
    if number is None or not 1 <= number <= MAX_THREADS:
        raise Refused(f"threads is {threads!r}; it must be a whole number from 1 to {MAX_THREADS}, or None for all")
    return number


def check_timeout(timeout_s: Any) -> float | None:
    """Seconds to wait, as many as locks can at most; None for no limit. Raises Refused."""
    if timeout_s is None:
        return None
    number = real_number(timeout_s)
    if number is None or isnan(number):
        raise Refused(f"timeout_s is {timeout_s!r}; it must be a number of seconds, or None for no limit")
    return min(number, TIMEOUT_MAX)


def check_retimed(schedules: Any) -> int:
    """How many schedules of a task are re-timed. Raises Refused."""
    return _check_whole("retime", schedules, 1, MOST_RETIMED)


def check_trials(trials: Any) -> int | None:
    """The most trials, None for no limit. Raises Refused."""
    return None if trials is None else _check_whole("trials", trials, 1, MOST_TRIALS)


def check_minutes(minutes: Any) -> float | None:
    """The most minutes, None for no limit. Raises Refused."""
    if minutes is None:
        return None
    number = real_number(minutes)
    if number is None or not LEAST_MINUTES <= number <= MOST_MINUTES:
        raise Refused(f"minutes is {minutes!r}; it must be a number from {LEAST_MINUTES} to {MOST_MINUTES:,}")
    return number


def check_until(until: Any) -> float | None:
    """The share below which a search ends, None for no limit. Raises Refused."""
    if until is None:
        return None
    share = real_number(until)
    if share is None or not 0 < share < 1:
        raise Refused(f"until is {until!r}; it must be a share between 0 and 1, such as 0.02 for 2%")
    return share


def check_seed(seed: Any) -> int:
    """The seed. Raises Refused."""
    return _check_whole("seed", seed, 0, MOST_SEED)


def check_priority(priority: Any) -> int:
    """The priority of a job. Raises Refused."""
    return _check_whole("priority", priority, LEAST_PRIORITY, MOST_PRIORITY)


def _check_whole(name: str, value: Any, least: int, most: int) -> int:
    number = whole_number(value)
    if number is None or not least <= number <= most:
        raise Refused(f"{name} is {value!r}; it must be a whole number from {least:,} to {most:,}")
    return number


def check_dims(dims: Mapping[str, int] | None, bind: Mapping[str, int] | None = None) -> dict[str, int]:
    """Numbers by the names of dimensions, and by those of inputs with BOUND_MARK behind.

    Raises Refused for anything else; whether the model has them, it says.
    """
    bound = _check_bind(bind)
    if dims is None:
        return bound
    if not isinstance(dims, Mapping):
        raise Refused(f"dims is a {type(dims).__name__}; it maps names to whole numbers: dims={{'batch': 1}}")
    checked = {}
    for name, value in dims.items():
        number = whole_number(value)
        if not isinstance(name, str) or number is None:
            raise Refused(f"dims maps {name!r} to {value!r}; it maps names to whole numbers: dims={{'batch': 1}}")
        if name.endswith(BOUND_MARK) and abs(number) <= MOST_SIZE:  # was checked before, and is passed on
            checked[name] = number
            continue
        if not 1 <= number <= MOST_SIZE:
            raise Refused(f"dims maps {name!r} to {number}; a size is a whole number from 1 to {MOST_SIZE:,}")
        checked[name] = number
    return checked | bound


def _check_bind(bind: Mapping[str, int] | None) -> dict[str, int]:
    example = "it maps names of inputs to whole numbers: bind={'sr': 16000}"
    if bind is None:
        return {}
    if not isinstance(bind, Mapping):
        raise Refused(f"bind is a {type(bind).__name__}; {example}")
    checked = {}
    for name, value in bind.items():
        number = int(value) if isinstance(value, bool) else whole_number(value)
        if not isinstance(name, str) or number is None:
            raise Refused(f"bind maps {name!r} to {value!r}; {example}")
        if not -MOST_SIZE <= number <= MOST_SIZE:
            raise Refused(f"bind maps {name!r} to {number}; a value is from {-MOST_SIZE:,} to {MOST_SIZE:,}")
        checked[f"{name}{BOUND_MARK}"] = number
    return checked


def sizes_of(dims: Mapping[str, int]) -> dict[str, int]:
    """The bindings of dimensions among those that `check_dims` gives."""
    return {name: size for name, size in dims.items() if not name.endswith(BOUND_MARK)}
