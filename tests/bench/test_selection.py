"""Which cases a command line asks for."""

from __future__ import annotations

import argparse

import pytest

from tunewright.bench import search
from tunewright.bench.selection import ALL, select_in_part, select_names

NAMES = ["gemm 384", "conv 3x3", "gemm 1024", "conv 3x3"]


def test_texts_ask_for_names_in_their_order_and_each_once() -> None:
    parser = argparse.ArgumentParser()
    assert select_names(parser, NAMES, []) == ["gemm 384", "conv 3x3", "gemm 1024"]
    assert select_names(parser, NAMES, ["conv", "4"]) == ["gemm 384", "conv 3x3", "gemm 1024"]
    assert select_names(parser, NAMES, ["3x3"]) == ["conv 3x3"]


def test_a_text_that_is_in_no_name_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["search", "ours", "gemm 384", "metaschedule"])
    with pytest.raises(SystemExit) as ended:
        search._parse_arguments()
    assert ended.value.code == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "no name has 'metaschedule' in it; there are gemm 384x512x512, " in line


def test_names_are_those_of_the_part_asked_for() -> None:
    parser, parts = argparse.ArgumentParser(), {"ours": ["gemm", "conv"], "transfer": ["resnet"]}
    assert select_in_part(parser, parts, "transfer", []) == ["resnet"]
    assert select_in_part(parser, parts, "ours", ["conv"]) == ["conv"]
    assert select_in_part(parser, parts, ALL, ["m", "net"]) == ["gemm", "resnet"]
