import dataclasses
import gzip
import io
import json
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewright.db import exchange
from tunewright.db.exchange import EntryKind
from tunewright.search_space.measurement import Measurement, Status

NOW = datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC)


@pytest.fixture
def line(samples):
    return exchange.to_json(samples.task().to_json(), samples.target().to_json(), samples.record(3), NOW)


def test_parse_inverts_to_json(line, samples):
    entry = exchange.parse(json.dumps(line))
    assert entry == exchange.RecordEntry(EntryKind.TRIAL, samples.task(), samples.target(), samples.record(3), NOW)


def test_a_confirmation_says_so(samples):
    task, target = samples.task(), samples.target()
    line = exchange.to_json(task.to_json(), target.to_json(), samples.record(3), NOW, EntryKind.CONFIRMATION)
    assert line["kind"] == "confirmation"
    assert exchange.parse(json.dumps(line)) == exchange.RecordEntry(
        EntryKind.CONFIRMATION, task, target, samples.record(3), NOW
    )


def test_a_line_of_version_1_is_a_trial(line):
    old = {name: value for name, value in line.items() if name != "kind"} | {"schema": 1}
    assert exchange.parse(json.dumps(old)) == exchange.parse(json.dumps(line))
    assert exchange.parse(json.dumps(old | {"kind": "anything"})).kind is EntryKind.TRIAL


def test_a_line_from_before_warm_and_incumbent_times_has_none(line, samples):
    old = {name: value for name, value in line.items() if name not in ("incumbent_s", "warm_s")}
    measurement = dataclasses.replace(samples.record(3).measurement, incumbent_s=None, warm_s=None)
    assert exchange.parse(json.dumps(old)).record.measurement == measurement


def test_moments_of_any_zone_become_utc(line):
    entry = exchange.parse(json.dumps({**line, "created_at": "2026-05-04T05:02:01.000007+02:00"}))
    assert entry.created_at == NOW
    assert entry.created_at.tzinfo is UTC


def test_an_infinite_error_is_json(samples):
    record = samples.record(3, Measurement(Status.WRONG_RESULT, max_rel_err=math.inf))
    line = exchange.to_json(samples.task().to_json(), samples.target().to_json(), record, NOW)
    assert exchange.parse(json.dumps(line, allow_nan=False)).record == record


def test_fields_of_later_versions_are_ignored(line, samples):
    assert exchange.parse(json.dumps({**line, "weather": "fine"})).record == samples.record(3)


@pytest.mark.parametrize(("length", "is_kept"), [(10, True), (exchange.MAX_CACHED, False)])
def test_short_tasks_are_understood_once(line, length, is_kept):
    text = json.dumps({**line, "task": {**line["task"], "op": "x" * length}})
    assert (exchange.parse(text).task is exchange.parse(text).task) == is_kept


def change(line, path, value):
    """The line with the value at a dotted path changed; `...` removes it."""
    first, _, rest = path.partition(".")
    if rest:
        return {**line, first: change(line[first], rest, value)}
    return {name: value if name == first else old for name, old in line.items() if name != first or value is not ...}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", 4, "schema is 4; this version reads 1, 2 and 3"),
        ("schema", True, "schema is true; this version reads 1, 2 and 3"),
        ("schema", [2], "schema is [2]; this version reads 1, 2 and 3"),
        ("kind", ..., "'kind' is missing"),
        ("kind", "guess", "kind is 'guess', not one of trial, confirmation"),
        ("kind", ["trial"], 'kind is ["trial"], not one of trial'),
        ("created_at", "0001-01-01T00:00:00+23:59", "not a moment"),
        ("schema", ..., "'schema' is missing"),
        ("task", [], "task is [], not an object"),
        ("task.stages", ..., "'stages' is missing"),
        ("task.stages", [{}], "'output', 'axes', 'reduce', 'combiner', 'index', 'body' are missing"),
        ("task_key", "00", "task_key is '00', but that task has the key "),
        ("target_key", "00", "target_key is '00', but that target has the key "),
        ("target.threads", 4, "target_key is "),
        ("target.extra", 4, ""),
        ("schedule", None, "schedule is null, not an object"),
        ("schedule.values", [1], "schedule.values is [1], not an object"),
        ("schedule.values.tile_m", 1.5, "schedule.values.tile_m is 1.5, not a whole number"),
        ("schedule.values.tile_m", True, "not a whole number"),
        ("schedule.sketch", 1, "schedule.sketch is 1, not a text"),
        ("schedule.version", -1, "schedule.version is -1"),
        ("schedule.version", 2**31, "schedule.version is 2147483648, not in 0 .. 2147483647"),
        ("schedule.sketch", "\ud800", r"schedule.sketch is '\ud800', not a name of 1 to 64 letters, digits,"),
        ("schedule.sketch", "", "schedule.sketch is '', not a name"),
        ("schedule.sketch", "s" * 100_000, "not a name of 1 to 64 letters"),
        ("schedule.sketch", "tiled\n", r"schedule.sketch is 'tiled\n', not a name"),
        ("schedule.values", {"\ud800": 1}, r"a name in schedule.values is '\ud800', not a name"),
        ("schedule.values", {"a\u202e": 1}, r"a name in schedule.values is 'a\u202e', not a name"),
        ("schedule.values", {"a\x1b[2J": 1}, r"a name in schedule.values is 'a\x1b[2J', not a name"),
        ("schedule.values", {"1a": 1}, "a name in schedule.values is '1a', not a name"),
        ("schedule.values.tile_m", 2**63, "schedule.values.tile_m is 9223372036854775808, not in -9223372036854775808"),
        ("schedule.values", {f"k{n}": n for n in range(101)}, "schedule.values has 101 entries; it may have 100"),
        ("status", ["ok"], ""),
        ("median_s", None, "the status is ok, but there is no median_s above zero"),
        ("median_s", "1", "median_s is '1', not a number"),
        ("median_s", -1, "median_s is -1.0, no time in seconds"),
        ("samples_s", [1, -1], "samples_s is -1.0, no time in seconds"),
        ("max_rel_err", -0.5, "max_rel_err is -0.5; an error is never below zero"),
        ("median_s", 10**400, "too large for a number"),
        ("samples_s", {}, "samples_s is {}, not an array"),
        ("samples_s", [None], "samples_s is null, not a number"),
        ("build_s", None, "build_s is null, not a number"),
        ("incumbent_s", "1", "incumbent_s is '1', not a number"),
        ("incumbent_s", 0, "incumbent_s is 0.0, no time above zero"),
        ("warm_s", -1e-3, "warm_s is -0.001, no time above zero"),
        ("warm_s", 10**400, "too large for a number"),
        ("max_rel_err", "lots", "max_rel_err is 'lots', not a number"),
        ("error", None, "error is null, not a text"),
        ("error", "\ud800", r"error is '\ud800', not one line of printable characters"),
        ("error", "a\nb", r"error is 'a\nb', not one line of printable characters"),
        ("error", "x" * 2001, "error has 2001 characters; it may have 2000"),
        ("provenance", {"a": 1}, "provenance.a is 1, not a text"),
        ("provenance", {"\ud800": 1}, r"a name in provenance is '\ud800', not one line of printable characters"),
        ("provenance", {"a": "\ud800"}, r"provenance.a is '\ud800', not one line of printable characters"),
        ("provenance", {"\x1b": "a"}, r"a name in provenance is '\x1b', not one line of printable characters"),
        ("provenance", {"a": "x" * 2001}, "provenance.a has 2001 characters; it may have 2000"),
        ("provenance", {"x" * 101: "a"}, "a name in provenance has 101 characters; it may have 100"),
        ("provenance", {str(n): "a" for n in range(101)}, "provenance has 101 entries; it may have 100"),
        ("created_at", "yesterday", "created_at is 'yesterday', not a moment"),
        ("created_at", "2026-05-04T03:02:01", "created_at names no time zone"),
        ("created_at", 0, "created_at is 0, not a text"),
    ],
)
def test_a_fault_is_named(line, path, value, message):
    wrong = change(line, path, value) if path != "target.extra" else {**line, "target": {**line["target"], "extra": 1}}
    with pytest.raises(ValueError) as error:
        exchange.parse(json.dumps(wrong))
    assert message in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("status", ["okay", "voided"])
def test_a_status_is_a_way_for_a_measurement_to_end(line, status):
    with pytest.raises(ValueError) as error:
        exchange.parse(json.dumps({**line, "status": status}))
    ends = "ok, build_error, wrong_result, crash, timeout, out_of_memory"
    assert str(error.value) == f"status is '{status}', not one of {ends}"


@pytest.mark.parametrize("reason", ["\ud800", "a\nb", "\u202e", "x" * 501])
def test_a_reason_is_a_short_line(line, reason):
    voided = line | {"schema": 3, "voided_at": NOW.isoformat(), "void_reason": reason}
    with pytest.raises(ValueError, match="void_reason "):
        exchange.parse(json.dumps(voided))


def test_what_is_exported_is_taken_whatever_its_texts_are(samples):
    """A compiler may say several lines, a person anything, and a machine may have any name."""
    odd = "a\n  b\0\ud800\x1b" + "x" * 3000
    provenance = {f"{n} {odd}": odd for n in range(200)}
    record = samples.record(3, Measurement(Status.BUILD_ERROR, error=odd, provenance=provenance))
    void = exchange.Void(NOW, odd)
    line = exchange.to_json(samples.task().to_json(), samples.target().to_json(), record, NOW, void=void)
    entry = exchange.parse(json.dumps(line))
    assert entry.void is not None
    assert entry.void.reason == "a b\ufffd\ufffd\ufffd" + "x" * 491 + "..."
    assert entry.record.measurement.error.startswith("a b\ufffd\ufffd\ufffdxx")
    assert len(entry.record.measurement.provenance) == 100
    told = exchange.to_json(line["task"], line["target"], entry.record, NOW, void=entry.void)
    assert told == line


@pytest.mark.parametrize("threads", ["2", 2.0, True, None, 0, -1, 10**9, [2]])
def test_a_target_that_cannot_be_is_refused(line, threads):
    with pytest.raises(ValueError, match=r"threads"):
        exchange.parse(json.dumps({**line, "target": {**line["target"], "threads": threads}}))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"schema": NaN}', "[" * 100_000, '"\\ud800"'])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ValueError):
        exchange.parse(text)


def test_a_line_that_is_cut_short_is_called_that(line):
    text = json.dumps({**line, "provenance": {"é": "\n"}, "build_s": -1.5e-7, "a": None, "b": True, "c": False})
    for length in range(1, len(text)):
        with pytest.raises(ValueError, match=exchange.TRUNCATED):
            exchange.parse(text[:length] + "\n")


@pytest.mark.parametrize("text", ["nonsense", "u", "", "{nonsense}", '{"a": tru}', "{} {}", "{'a': 1}"])
def test_what_is_no_json_is_not_called_cut_short(text):
    with pytest.raises(ValueError, match=r"this is no JSON: .*, column"):
        exchange.parse(text)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([None], "not an expression: [null]"),
        ("", "body is '', not an array"),
        ([""], 'not an expression: [""]'),
        (["var", True], 'not an expression: ["var", true]'),
        (["op", None, "add"], 'not an expression: ["op", null, "add"]'),
        (["const", "float32", "x"], "'x' is no float32"),
        (["const", "int32", True], "true is no int32"),
        (["op", "float32", "neg", None], "not an expression: null"),
        (["op", "float32", "neg", ""], "not an expression: ''"),
    ],
)
def test_values_are_told_as_json_has_them(line, body, said):
    line["task"]["stages"][0]["body"] = body
    with pytest.raises(ValueError) as told:
        exchange.parse(json.dumps(line))
    assert str(told.value) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [("9" * 5000, "a number has 5,000 digits"), ("1e400", "1e400 is too large"), ("NaN", "NaN is not JSON")],
)
def test_numbers_beyond_all_bounds_are_refused(line, number, said):
    text = json.dumps({**line, "build_s": "N"}).replace('"N"', number)
    with pytest.raises(ValueError, match=said):
        exchange.parse(text)


def test_bytes_that_are_no_text(line):
    text = json.dumps(line).encode()

    def fault(content: bytes) -> str:
        lines = exchange.Lines(io.BytesIO(content), 1 << 20)
        assert all(exchange.parse(line) for line in lines)
        with pytest.raises(exchange.BadLine) as told:
            lines.check()
        return str(told.value)

    assert fault(b"\xff\xfe" + text) == "line 1: this is no text: byte 1 is 0xff, which is no UTF-8"
    assert fault(text + b"\n" + text[:9] + b"\xff") == "line 2: this is no text: byte 10 is 0xff, which is no UTF-8"
    assert fault(gzip.compress(text)) == "line 1: this is no text: it is packed by gzip, so unpack it first"


@pytest.mark.parametrize(
    ("count", "preceding"), [(0, "0 records precede"), (1, "1 record precedes"), (2, "2 records precede")]
)
def test_a_summary_that_counts_wrongly(line, count, preceding):
    text = json.dumps(line) + "\n"
    lines = exchange.Lines(io.BytesIO((text * count + '{"exported": 3}\n').encode()), 1 << 20)
    assert len(list(lines)) == count
    with pytest.raises(exchange.BadLine) as told:
        lines.check()
    assert told.value.reason == f'it says {{"exported": 3}}, but {preceding} it'


def test_a_byte_order_mark_at_the_begin_is_passed_over(line):
    """As editors on Windows write it; elsewhere it is told of."""
    text = json.dumps(line)
    [read] = exchange.Lines(io.BytesIO(b"\xef\xbb\xbf" + text.encode()), 1 << 20)
    assert read == text
    with pytest.raises(ValueError, match="a byte order mark precedes it, column 1"):
        exchange.parse("\ufeff" + text)


def test_an_expression_nested_too_deeply_is_refused(line):
    body = ["const", "float32", 1.0]
    for _ in range(400):
        body = ["op", "float32", "neg", body]
    line["task"]["stages"][0]["body"] = body
    with pytest.raises(ValueError):
        exchange.parse(json.dumps(line))


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))


@given(st.data())
def test_any_other_value_anywhere_is_a_value_error_or_a_valid_trial(samples, data):
    line = exchange.to_json(samples.task().to_json(), samples.target().to_json(), samples.record(3), NOW)
    node = line
    while True:
        name = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        if isinstance(node[name], dict | list) and node[name] and data.draw(st.booleans()):
            node = node[name]
            continue
        node[name] = data.draw(values)
        break
    try:
        entry = exchange.parse(json.dumps(line))
    except ValueError:
        return
    assert entry.record.task_key == entry.task.key
