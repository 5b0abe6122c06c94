"""`tune --sizes`: jobs at several sizes of open dimensions."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.db.store import open_store
from tunewright.tuner.errors import Refused
from tunewright.tuner.search.sizes import MOST_OF_RANGE, SizeRange, combinations, tune_sizes
from tunewright.tuner.session.session import InferenceSession
from tunewright.tuner.settings import store_url

from ..commands import Command
from .conftest import small_model


@pytest.fixture
def model(home: Path) -> Path:
    path = home / "dynamic.onnx"
    onnx.save(small_model("batch"), path)
    return path


@pytest.mark.parametrize(
    ("least", "most", "picks"),
    [(1, 64, (1, 4, 16, 64)), (1, 1, (1,)), (3, 4, (3, 4)), (1, 3, (1, 2, 3)), (64, 2048, (64, 256, 512, 2048))],
)
def test_a_few_of_a_range(least: int, most: int, picks: tuple[int, ...]) -> None:
    assert SizeRange(least, most).picks() == picks


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_picks_are_of_the_range_and_both_ends_among_them(least: int, more: int) -> None:
    picks = SizeRange(least, least + more).picks()
    assert picks == tuple(sorted(set(picks))) and len(picks) <= MOST_OF_RANGE
    assert (picks[0], picks[-1]) == (least, least + more)


def test_combinations() -> None:
    assert combinations({"a": SizeRange(1, 2), "b": (8, 3)}) == [
        {"a": 1, "b": 8}, {"a": 1, "b": 3}, {"a": 2, "b": 8}, {"a": 2, "b": 3}
    ]  # fmt: skip
    with pytest.raises(Refused, match="4 x 5 sizes are 20, each a job of its own; give 16 at most"):
        combinations({"a": SizeRange(1, 64), "b": (1, 2, 3, 4, 5)})
    with pytest.raises(Refused, match="17 sizes are too many, each a job of its own; give 16 at most"):
        combinations({"a": range(1, 18)})


@pytest.mark.slow
def test_each_size_has_a_job_and_its_part_of_the_trials(model: Path, command: Command) -> None:
    done = command("tune", model, "--sizes", "batch=4,6,4", "--trials", 5, "--threads", 1, "--json")
    assert [(one["dims"], one["trials"]) for one in done.data["sizes"]] == [({"batch": 4}, 3), ({"batch": 6}, 2)]
    assert "size 2 of 2: batch=6" in done.err
    with open_store(store_url(None)) as store:
        jobs = store.jobs.list()
        assert sorted(job.result["trials"] for job in jobs if job.result) == [2, 3]
        assert [job.spec.settings["dims"] for job in jobs] == [{"batch": 6}, {"batch": 4}]
    shown = command("tune", model, "--sizes", "batch=4,6", "--trials", 2, "--threads", 1).out
    assert "batch=4" in shown and "sizes in between take over what is best nearby" in shown
    with InferenceSession(model, threads=1, dims={"batch": 8}) as session:  # in tiles of 4 rows or fewer, too
        assert session.coverage().untuned == 0, "it takes over what is best nearby"


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (["batch"], "--sizes 'batch' is not NAME=SIZES, such as batch=1..64 or batch=1,8,64"),
        (["batch="], "'' is no size; give a whole number from 1"),
        (["batch=1..0"], "'0' is no size"),
        (["batch=4..2"], "--sizes batch: 4..2 ends before it begins"),
        (["batch=1,x"], "'x' is no size"),
        (["batch=1", "batch=2"], "--sizes gives sizes of 'batch' twice"),
        (["other=2"], "no dimension 'other' is open"),
        (["batch=1,2"], "1 trial is fewer than the 2 sizes to tune for"),
    ],
)
def test_sizes_that_mean_nothing(sizes: list[str], said: str, model: Path, command: Command) -> None:
    arguments = [part for text in sizes for part in ("--sizes", text)]
    done = command("tune", model, *arguments, "--trials", 1)
    assert done.code and said in done.err and "Traceback" not in done.err


def test_a_dimension_that_is_none_is_refused_before_the_first_job(model: Path, command: Command) -> None:
    done = command("tune", model, "--sizes", "other=1..64", "--dim", "batch=2")
    said = "no dimension 'other' is open in the model; open ones: 'batch'"
    assert (done.code, done.err) == (2, f"error: {str(model)!r}: {said}\n")


def test_a_dimension_with_a_size_has_no_others(model: Path) -> None:
    with pytest.raises(Refused, match="'batch' is given a size, and sizes to tune for"):
        list(tune_sizes(model, {"batch": (1, 2)}, dims={"batch": 3}))
