"""`tunewright log`, on a real server."""

import json

import pytest

from tunewright.api.client.log_files import FILE_KINDS


@pytest.fixture
def filled(one):
    """A namespace with two values of one key, and another key."""
    client = one.client()
    environment = {"device": "H100", "toolchain": "triton", "versions": {"cuda": "13.0"}}
    for value, time_s in (("fast", 1e-3), ("slow", 2e-3)):
        body = {"value": value, "time_s": time_s, "environment": environment}
        client.put("/v1/logs/triton/a%20key", json=body)
    client.put("/v1/logs/triton/other", json={"value_base64": "gAA="})
    return client


def test_lists(run, filled):
    assert "triton" in run("log", "list").out
    assert [space["entries"] for space in run("log", "list", "--json").data["namespaces"]] == [3]
    text = run("log", "list", "triton").out
    assert "H100, triton, cuda 13.0" in text and "base64 gAA=" in text and "* is what lookups get" in text
    data = run("log", "list", "triton", "--key", "a key", "--json").data
    assert [(entry["value"], entry["served"]) for entry in data["entries"]] == [("slow", False), ("fast", True)]
    assert run("log", "list", "triton", "--key", "none").out == "no such entry\n"


def test_an_empty_log(run):
    assert run("log", "list").out == "nothing was written to the log yet\n"


def test_people_decide(run, filled):
    entries = run("log", "list", "triton", "--key", "a key", "--json").data["entries"]
    fast = next(entry["choice"] for entry in entries if entry["value"] == "fast")
    assert run("log", "retire", "triton", "a key", fast[:8]).out == "retired: 1 entry of a key\n"
    [served] = [e for e in run("log", "list", "triton", "--key", "a key", "--json").data["entries"] if e["served"]]
    assert served["value"] == "slow"
    data = run("log", "approve", "triton", "a key", fast, "--json").data
    assert (data["state"], data["choice"], data["entries"]) == ("approved", fast, 1)
    assert "which value?" in run("log", "retire", "triton", "a key", "").err
    for choice in ("ff" * 16,):
        refused = run("log", "retire", "triton", "a key", choice)
        assert refused.code != 0 and "of that key have a choice that begins with" in refused.err


def test_what_is_exported_is_imported(run, filled, tmp_path):
    file = tmp_path / "log.jsonl"
    assert run("log", "export", "triton", "-o", str(file)).out.startswith("3 entries of triton in ")
    assert len(file.read_text().splitlines()) == 3
    assert run("log", "import", "copy", str(file)).out == "3 added, 0 improved, 0 known already\n"
    data = run("log", "import", "copy", str(file), "--json").data
    assert data == {"namespace": "copy", "added": 0, "improved": 0, "known": 3}
    assert run("log", "delete", "copy", "--yes").out == "copy: 3 entries deleted\n"
    assert run("log", "delete", "triton", "--yes", "--json").data == {"namespace": "triton", "entries": 3}


def test_an_export_overwrites_an_older_file_once_it_is_whole(run, filled, tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text("older")
    assert "no such namespace" in run("log", "export", "nobody", "-o", str(file)).err
    assert file.read_text() == "older"
    assert run("log", "export", "triton", "-o", str(file)).code == 0
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("list", "A"), "is no namespace"),
        (("list", "--key", "k"), "--key needs a NAMESPACE"),
        (("list", "nobody"), "There is no such namespace"),
        (("delete", "nobody"), "There is nobody to ask"),
        (("delete", "nobody", "--yes"), "There is no such namespace"),
        (("import", "n", "/none/such"), "No such file"),
        (("export", "nobody", "-o", "/none/such"), "There is no such namespace"),
    ],
)
def test_what_can_not_be_is_one_line(run, arguments, word):
    refused = run("log", *arguments)
    assert refused.code != 0
    assert word in refused.err
    assert len(refused.err.strip().splitlines()) == 1


def test_lines_that_are_none(run, tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text(json.dumps({"key": "k", "value": "v"}) + "\n{")
    refused = run("log", "import", "n", str(file))
    assert "line 2: " in refused.err


def test_files_of_other_tuners_are_added(run, one, tmp_path):
    file = tmp_path / "results.json"
    works = {"invalidity": "correct", "correctness": 1, "objectives": ["time"], "times": {}}
    measured = [{"name": "time", "value": 0.5, "unit": "ms"}]
    results = [works | {"configuration": {"block": n}, "measurements": measured} for n in (32, 64)]
    file.write_text(json.dumps({"results": results}))
    options = "--from", "t4", "--key", "vector_add", "--device", "A100", "--version", "cuda=13.0"
    assert run("log", "add", "kernels", str(file), *options).out == "2 added, 0 improved, 0 known already\n"
    data = run("log", "add", "kernels", str(file), *options, "--json").data
    assert (data["added"], data["known"]) == (0, 2)
    [entry, _] = run("log", "list", "kernels", "--json").data["entries"]
    assert (entry["key"], entry["time_s"]) == ("vector_add", 5e-4)
    assert entry["environment"] == {"device": "A100", "toolchain": "kernel_tuner", "versions": {"cuda": "13.0"}}


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_the_command_takes_every_kind_of_files(run, tmp_path, kind):
    answer = run("log", "add", "kernels", str(tmp_path / "none.json"), "--from", kind, "--key", "k")
    assert answer.code == 2 and f"files of {kind} tell" in answer.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--from", "t4"), "give --key KERNEL and --device DEVICE"),
        (("--from", "t4", "--key", "k", "--device", "d", "--version", "13.0"), "NAME=TEXT"),
        (("--from", "tvm", "--key", "k"), "leave out --key"),
        (("--from", "t4", "--key", "k", "--device", "d"), "this is no T4"),
        (("--from", "tvm"), "neither a log of AutoTVM nor a file of MetaSchedule"),
    ],
)
def test_files_that_say_too_little_are_refused(run, options, says, tmp_path):
    file = tmp_path / "file.json"
    file.write_text("[]")
    answer = run("log", "add", "kernels", str(file), *options)
    assert answer.code == 2 and says in answer.err
