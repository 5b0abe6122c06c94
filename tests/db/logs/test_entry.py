"""Entries of the log: what may be one."""

import math

import pytest

from tunewright.db.logs.entry import (
    LONGEST_KEY,
    VALUE_BYTES,
    Cost,
    CostEvidence,
    LogEntry,
    LogEnvironment,
    check_namespace,
)


@pytest.mark.parametrize("name", ["helion", "tvm.team-a", "vllm_moe", "0", "a" * 64])
def test_namespaces(name):
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", ["", "A", ".a", "a.", "a/b", "../a", "a" * 65, "a\n", "ä", "a b"])
def test_no_namespaces(name):
    with pytest.raises(ValueError, match="is no namespace"):
        check_namespace(name)


@pytest.mark.parametrize("key", ["k", "pt2:abc::def:c1", "../../etc/passwd", "<b>", "a b", "E=256,N=128.json"])
def test_a_key_is_any_line_of_ascii(key):
    """No key is ever part of a path, of SQL or of HTML."""
    assert LogEntry(key, b"").key == key


@pytest.mark.parametrize("key", ["", "a\nb", "a\n", "a\0b", "\x1b[2J", "k" * (LONGEST_KEY + 1), "\ud800", "ü"])
def test_no_key(key):
    with pytest.raises(ValueError, match="key"):
        LogEntry(key, b"")


def test_a_value_has_a_limit():
    assert LogEntry("k", bytes(VALUE_BYTES))
    with pytest.raises(ValueError, match=r"the value has 65,537 bytes; it may have 65,536"):
        LogEntry("k", bytes(VALUE_BYTES + 1))


def test_the_name_of_a_value_follows_from_it():
    assert LogEntry("k", b"v").choice == LogEntry("other", b"v").choice != LogEntry("k", b"w").choice


def test_an_environment_is_told_by_all_that_it_says():
    one = LogEnvironment("gpu", "triton", {"driver": "1", "cuda": "13"})
    assert one.fingerprint == LogEnvironment("gpu", "triton", {"cuda": "13", "driver": "1"}).fingerprint
    others = [
        LogEnvironment("gpu", "triton", {"driver": "2", "cuda": "13"}),
        LogEnvironment("gpu", "triton", {"driver": "1"}),
        LogEnvironment("triton", "gpu", {"driver": "1", "cuda": "13"}),
        LogEnvironment(),
    ]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert LogEnvironment.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"the environment is \[\], not an object"),
        ({"gpu": "x"}, "the environment has no field 'gpu'"),
        ({"device": 1}, "device is 1, not a text"),
        ({"versions": {"cuda": 13}}, "cuda is 13, not a text"),
        ({"device": "a\nb"}, "not one line"),
        ({"versions": {"v" * 201: "1"}}, "has 201 characters; it may have 200"),
        ({"versions": {str(n): "1" for n in range(41)}}, "has 41 versions; it may have 40"),
    ],
)
def test_no_environment(data, message):
    with pytest.raises(ValueError, match=message):
        LogEnvironment.from_json(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"time_s": 0.0, "evidence": CostEvidence.TIMED},
        {"time_s": math.inf, "evidence": CostEvidence.TIMED},
        {"time_s": math.nan, "evidence": CostEvidence.TIMED},
        {"time_s": 1.0},
        {"evidence": CostEvidence.CONFIRMED},
        {"low_s": 1.0, "high_s": 2.0},
        {"time_s": 1.0, "low_s": 0.5, "evidence": CostEvidence.TIMED},
        {"time_s": 3.0, "low_s": 1.0, "high_s": 2.0, "evidence": CostEvidence.TIMED},
        {"time_s": 1.0, "samples": -1, "evidence": CostEvidence.TIMED},
    ],
)
def test_no_cost(fields):
    with pytest.raises(ValueError, match=r"time|interval|samples"):
        Cost(**fields)
