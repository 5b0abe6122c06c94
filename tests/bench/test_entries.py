"""Which cases a command line names, and what is kept of each."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tunewright.bench import search
from tunewright.bench.entries import Entries, chosen

NAMES = ["gemm 384", "conv 3x3", "gemm 1024", "conv 3x3"]


def test_parts_of_names_choose_in_their_order_and_each_once() -> None:
    parser = argparse.ArgumentParser()
    assert chosen(parser, NAMES, []) == ["gemm 384", "conv 3x3", "gemm 1024"]
    assert chosen(parser, NAMES, ["conv", "4"]) == ["gemm 384", "conv 3x3", "gemm 1024"]
    assert chosen(parser, NAMES, ["3x3"]) == ["conv 3x3"]


def test_a_part_that_is_in_no_name_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["search", "ours", "gemm 384", "metaschedule"])
    with pytest.raises(SystemExit) as ended:
        search._parsed()
    assert ended.value.code == 2
    *_, said = capsys.readouterr().err.splitlines()
    assert "no name has 'metaschedule' in it; there are gemm 384x512x512, " in said


def test_names_are_those_of_the_part_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["search", "transfer", "resnet"])
    assert search._parsed().names == ["resnet18 after resnet50"]
    monkeypatch.setattr("sys.argv", ["search", "ours"])
    assert search._parsed().names == list(search.PARTS["ours"].names)


def test_a_failure_takes_the_place_of_no_measurement(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for entry, kept in (({"error": "it died"}, True), ({"time_s": 1.0}, True), ({"error": "it died"}, False)):
        entries = Entries(path, ["a"])
        entries.put("a", 1, entry)
        assert (Entries(path, ["a"]).get("a", 1) == entry) == kept
    assert not Entries(path, ["a"]).has("a", 1, {"code": "new"})
