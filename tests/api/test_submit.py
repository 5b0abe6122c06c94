"""`tunewright submit` and `jobs` against a real service, with a tuner process that the test plays."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.main import get_command

from tunewright.api import program
from tunewright.api.client import Client, Job, JobEvent
from tunewright.api.client.commands import _ahead, note_existing
from tunewright.api.client.watch import JobMonitor
from tunewright.codegen.codec import from_json
from tunewright.db.job import EventKind, JobState, NewEvent
from tunewright.graph.numerics import Precision
from tunewright.graph.onnx_import.structure import strip
from tunewright.tuner.cli.app import PANELS, ProgramGroup
from tunewright.tuner.errors import Refused
from tunewright.tuner.models.model import open_for, open_model
from tunewright.tuner.search import view as views

from ..commands import Command, commands
from ..tuner.wide_model import wide_model
from ..waiting import wait_for
from .test_client import JOB

MODEL_ROWS = 4


def model() -> onnx.ModelProto:
    """relu(x w + b), where w is worth hiding."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (8, 24)), ("b", (24,)))
    ]
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["xw"]), helper.make_node("Softmax", ["xw"], ["y"], axis=-1)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 24])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's file."""
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    onnx.save(model(), path)
    return path


@pytest.fixture
def real(serve: Any, kit: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A service that reads models, with one target at work, which the environment names."""
    with serve(make_reader=None) as started:
        kit.enlist(started.store, kit.target())
        monkeypatch.setenv("TUNEWRIGHT_SERVER", started.url)
        monkeypatch.setenv("TUNEWRIGHT_API_KEY", started.token)
        yield started


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    return commands(program.execute, capfd)


def result(job: Any) -> dict[str, Any]:
    """A report as a tuner process writes it."""
    tasks = [
        {
            "key": task.task_key, "op": "Gemm", "occurrences": task.occurrences, "chosen": task.occurrences,
            "trials": 3, "flops": 1000, "default_ms": 2.0, "best_ms": 1.0, "gflops": 1.0,
            "fraction_of_peak": 0.5, "schedule": {},
        }
        for task in job.spec.tasks
    ]  # fmt: skip
    return {
        "job": job.id, "model": "small.onnx", "target": "cpu:\x1b[2J", "trials": 6, "seconds": 1.0, "tasks": tasks,
        "default_ms": 4.0, "tuned_ms": 2.0, "peak_gflops": 100.0, "failed": {}, "fallback": {}, "whole_model": "",
    }  # fmt: skip


def tune(one: Any, kit: Any, state: JobState = JobState.SUCCEEDED) -> threading.Thread:
    """Play a tuner process: take the next job, tell of progress, and end it."""

    def work() -> None:
        jobs = one.store.jobs
        lease = wait_for(lambda: jobs.lease([kit.target().key], "tester", devices=[kit.target()]))
        job = jobs.get(lease.job_id)
        key = job.spec.tasks[0].task_key
        jobs.renew(lease, events=[NewEvent(EventKind.STAGE, {"stage": "searching"})])
        standing = {"stage": "searching", "trials": 3, "most_trials": 6, "spent_s": 1.0, "left_s": 2.0, "speedup": 1.5}
        improved = {"task_key": key, "op": "Gemm\x1b[31m", "best_ms": 1.0, "default_ms": 2.0, "trial": 3}
        told = [NewEvent(EventKind.IMPROVED, improved), NewEvent(EventKind.PROGRESS, standing)]
        jobs.renew(lease, progress=standing, events=told)
        jobs.finish(lease, state, result=result(job) if state is JobState.SUCCEEDED else None, error="it broke")

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_the_structure_is_sent_and_the_job_waits(real: Any, path: Path, command: Command) -> None:
    said = command("submit", path, "--dim", f"rows={MODEL_ROWS}", "--trials", "7", "--seed", "3", "--json")
    assert said.code == 0, said.err
    job = said.data
    assert (job["state"], job["trials"], job["label"], job["settings"]["seed"]) == ("queued", 7, "small.onnx", 3)
    structure = strip(path)
    assert job["model"] == structure.sha256
    assert b"".join(real.store.uploads.read(structure.sha256)) == structure.data
    assert not real.store.uploads.get(structure.sha256).with_weights
    wanted = open_model(path, {"rows": MODEL_ROWS}).tasks
    assert [(task["key"], task["occurrences"]) for task in job["tasks"]] == [(k, n) for k, (_, n) in wanted.items()]
    again = command("submit", path, "--dim", f"rows={MODEL_ROWS}", "--seed", "3")
    assert again.code == 0
    assert f"job {job['id']} is queued: small.onnx, rows=4" in again.out  # the same one
    assert f"job {job['id']} was there already: 7 trials, priority 0; not taken: --trials 200" in again.err
    assert f"tunewright jobs watch {job['id']}" in again.out


def test_the_whole_model_is_sent_if_wanted(real: Any, path: Path, command: Command) -> None:
    said = command("submit", path, "--dim", "rows=4", "--with-weights", "--json")
    assert said.data["model"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert real.store.uploads.get(said.data["model"]).with_weights
    structure = command("submit", path, "--dim", "rows=4", "--json")
    assert structure.data["tasks"] == said.data["tasks"]


@pytest.mark.parametrize("options", [[], ["--with-weights"]])
def test_what_is_no_model_is_named(real: Any, command: Command, tmp_path: Path, options: list[str]) -> None:
    file = tmp_path / "letter.onnx"
    file.write_text("a letter to my bank\n" * 40)
    said = command("submit", file, *options)
    assert said.code == 2 and "letter.onnx': not an ONNX model, or cut short" in said.err
    assert "name an .onnx file, and if it is one, make or copy it anew" in said.err
    array = tmp_path / "x.npy"
    np.save(array, np.ones(4))
    said = command("submit", array, *options)
    assert said.code == 2 and "x.npy': this is an array of NumPy, not ONNX: name the model" in said.err


def test_a_vendor_needs_the_whole_model(real: Any, path: Path, command: Command) -> None:
    said = command("submit", path, "--dim", "rows=5", "--vendor")
    assert said.code and "--with-weights" in said.err
    said = command("submit", path, "--dim", "rows=5", "--vendor", "--with-weights", "--json")
    assert said.data["settings"]["vendor"] is True
    real.store.jobs.cancel(said.data["id"])


@pytest.mark.parametrize("options", [[], ["--with-weights"]])
def test_a_job_in_a_precision_has_its_tasks(
    real: Any, kit: Any, tmp_path: Path, command: Command, options: list[str]
) -> None:
    path = tmp_path / "wide.onnx"
    path.write_bytes(wide_model())
    keys = set()
    for precision in ("as given", "bf16"):
        said = command("submit", path, "--precision", precision, *options, "--json")
        assert (said.code, said.data["precision"]) == (0, precision), said.err
        [task] = said.data["tasks"]
        assert [task["key"]] == list(open_for(kit.target(), path, precision=Precision(precision)).tasks)
        keys.add(task["key"])
        real.store.jobs.cancel(said.data["id"])
    assert len(keys) == 2


def test_a_precision_is_checked_before_anything_is_sent(real: Any) -> None:
    with Client(real.url, real.token) as client, pytest.raises(Refused, match=r"^no precision is called 'fp16'; there"):
        client.submit(wide_model(), precision="fp16")


def test_the_best_of_a_model_is_timed_again(real: Any, path: Path, command: Command) -> None:
    said = command("submit", path, "--dim", "rows=6", "--retime", "--json")
    assert (said.code, said.data["settings"]["retime"], said.data["trials"]) == (0, 5, None), said.err
    again = command("submit", path, "--dim", "rows=6", "--retime")
    assert f"job {said.data['id']} was there already: priority 0\n" in again.err
    refused = command("submit", path, "--dim", "rows=6", "--retime", "--trials", "5")
    assert refused.code == 2 and "--trials" in refused.err and "searches nothing" in refused.err
    with Client(real.url, real.token) as client, pytest.raises(Refused, match="retime is 0; it must be"):
        client.submit(path, dims={"rows": 6}, retime=0)
    real.store.jobs.cancel(said.data["id"])


def test_a_vendor_for_a_structure_is_refused(real: Any, path: Path, command: Command) -> None:
    model = command("submit", path, "--dim", "rows=5", "--json").data["model"]
    answer = real.client().post("/v1/jobs", json={"model": model, "dims": {"rows": 5}, "vendor": True})
    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == "#/vendor"
    assert "needs the whole model: send it with its weights" in answer.json()["detail"]


def test_a_job_is_watched_to_its_end(real: Any, kit: Any, path: Path, command: Command) -> None:
    thread = tune(real, kit)
    said = command("submit", path, "--dim", "rows=4", "--trials", "6", "--watch")
    thread.join()
    assert said.code == 0, said.err
    assert "improved after 4 trials: Gemm\\x1b[31m 1.00 ms by trial, 2.00x as fast as by default" in said.err
    assert "\x1b" not in said.err + said.out
    assert "the whole model: 4.00 ms by default, 2.00 ms tuned: 2.00x as fast" in said.out
    assert "small.onnx, rows=4 on cpu:\\x1b[2J: 6 trials" in said.out
    shown = command("jobs", "show", 1)
    assert shown.out.startswith(said.out)  # what the machine did is told behind it


def test_a_job_that_fails(real: Any, kit: Any, path: Path, command: Command) -> None:
    thread = tune(real, kit, JobState.FAILED)
    said = command("submit", path, "--dim", "rows=4", "--watch", "--json")
    thread.join()
    assert (said.code, said.data["state"], said.data["error"]) == (1, "failed", "it broke")
    watched = command("jobs", "watch", said.data["id"])
    assert watched.code == 1
    assert "it broke" in watched.out


def test_jobs_are_steered(real: Any, path: Path, command: Command) -> None:
    job_id = command("submit", path, "--dim", "rows=4", "--json").data["id"]
    assert command("jobs", "pause", job_id).out == f"job {job_id} is paused: small.onnx, rows=4\n"
    assert command("jobs", "resume", job_id, "--json").data["state"] == "queued"
    assert command("jobs", "prioritise", job_id, "-5", "--json").data["priority"] == -5
    listed = command("jobs", "list", "--json").data["jobs"]
    shown = command("jobs", "show", job_id, "--json").data
    assert listed == [{name: value for name, value in shown.items() if name != "machine"}]
    assert [(job["id"], job["state"], job["priority"]) for job in listed] == [(job_id, "queued", -5)]
    assert "small.onnx" in command("jobs", "list", "--state", "queued").out
    assert command("jobs", "list", "--state", "failed").out == "no jobs\n"
    assert command("jobs", "cancel", job_id).out == f"job {job_id} is cancelled: small.onnx, rows=4\n"
    assert "0 of 200 trials" in command("jobs", "show", job_id).out


def test_a_list_of_jobs_says_when_there_are_more(real: Any, path: Path, command: Command) -> None:
    for seed in range(2):
        command("submit", path, "--dim", "rows=4", "--seed", seed)
    said = "there are more: --limit says how many are listed"
    assert said in command("jobs", "list", "--limit", 1).out
    listed = command("jobs", "list", "--limit", 1, "--json").data
    assert ([job["id"] for job in listed["jobs"]], listed["more"]) == ([2], True)
    assert said not in command("jobs", "list", "--limit", 2).out
    assert command("jobs", "list", "--limit", 2, "--json").data["more"] is False


def test_names_of_jobs(real: Any, path: Path, command: Command) -> None:
    first = command("submit", path, "--dim", "rows=4", "--tag", "b", "--tag", "a", "--note", "why\nso", "--json").data
    assert (first["tags"], first["notes"], first["owner"]["name"]) == (["a", "b"], "why\nso", "all")
    said = command("submit", path, "--dim", "rows=4", "--tag", "c", "--tag", "a", "--note", "else")
    assert said.err.rstrip().endswith("; not taken: --tag c, --note")
    command("submit", path, "--dim", "rows=4", "--seed", "1")
    shown = command("jobs", "show", first["id"]).out
    assert "tags: a, b\nsubmitted by all\n  why\n  so\n" in shown
    for conditions in (["--tag", "a", "--tag", "b"], ["--search", "WHY"], ["--owner", "me", "--tag", "b"]):
        found = command("jobs", "list", *conditions, "--json").data["jobs"]
        assert [job["id"] for job in found] == [first["id"]]
    assert "a, b" in command("jobs", "list").out and command("jobs", "list", "--tag", "c").out == "no jobs\n"
    changed = command("jobs", "change", first["id"], "--name", "net", "--tag", "c", "--untag", "a", "--note", "")
    assert changed.out == f"job {first['id']} is queued: net, rows=4\n"
    shown = command("jobs", "show", first["id"], "--json").data
    assert (shown["label"], shown["tags"], shown["notes"]) == ("net", ["b", "c"], "")


def test_a_job_is_extended(real: Any, path: Path, command: Command) -> None:
    number = command("submit", path, "--dim", "rows=4", "--minutes", "5", "--json").data["id"]
    assert command("jobs", "extend", number, "--minutes", "10").out == (
        f"job {number} is queued: small.onnx, rows=4\nit ends by: 15 minutes\n"
    )
    command("jobs", "cancel", number)
    said = command("jobs", "extend", number, "--trials", "7", "--minutes", "1")
    assert said.out == (
        f"job {number} is finished: a new job goes on from its trials\n"
        f"job {number + 1} is queued: small.onnx, rows=4\nit ends by: 7 trials, 1 minute\n"
    )
    said = command("jobs", "extend", number, "--trials", "1", "--json")
    assert (said.data["id"], said.data["is_new"], said.data["trials"]) == (number + 1, False, 8)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit", "missing.onnx"], "No such file"),
        (["submit", "{path}", "--dim", "rows=4", "--tag", "A b"], "--tag: must be small letters, digits and"),
        (["jobs", "change", "1"], "nothing is to be changed: give --name, --tag, --untag or --note"),
        (["jobs", "extend", "1"], "how much longer is the job to go on? give --minutes or --trials"),
        (["jobs", "extend", "1", "--minutes", "0"], "--minutes must be at least 0.01"),
        (["jobs", "extend", "99", "--minutes", "1"], "There is no such job"),
        (["submit", "{path}"], "'rows' of input 'x' is open"),
        (["submit", "{path}", "--dim", "rows=4", "--target", "0" * 64], "The target is not known"),
        (
            ["submit", "{path}", "--dim", "rows=4", "--target", "nobody"],
            "no such target is at work",
        ),
        (["submit", "{path}", "--dim", "rows=4", "--target", "G" * 64], "--target: must be 64 hexadecimal digits"),
        (["submit", "{path}", "--dim", "rows=4", "--threads", "99"], "the target has 4 threads"),
        (["submit", "{path}", "--dim", "other=4"], "no dimension 'other' is open"),
        (["jobs", "show", "99"], "There is no such job"),
        (["jobs", "show", "0"], "must be at least 1"),
        (["jobs", "list", "--server", "nonsense"], "a server is http://HOST:PORT"),
        (["jobs", "list", "--server", ""], "which server?"),
    ],
)
def test_what_can_not_be_done(real: Any, path: Path, command: Command, arguments: list[str], said: str) -> None:
    answer = command(*(argument.format(path=path) for argument in arguments), "--json")
    assert answer.code == 2
    assert said in answer.err
    assert said in answer.data["error"]["message"]
    assert answer.err.count("\n") == 1


def test_no_server_is_named(command: Command, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEWRIGHT_SERVER", raising=False)
    said = command("submit", path)
    assert said.code == 2
    assert "--server URL" in said.err and "the same tune command" not in said.err


@pytest.mark.parametrize("arguments", [["list"], ["show", 1], ["watch", 1], ["resume", 1], ["prioritise", 1, 2]])
def test_a_job_of_tune_needs_no_server(command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[Any]) -> None:
    monkeypatch.delenv("TUNEWRIGHT_SERVER", raising=False)
    said = command("jobs", *arguments)
    assert said.code == 2
    [line] = said.err.splitlines()
    assert line.endswith("a job that tunewright tune began has none: the same tune command goes on with it")


def test_each_improvement_is_told_once_and_in_order(real: Any, kit: Any, path: Path, command: Command) -> None:
    def work() -> None:
        jobs = real.store.jobs
        lease = wait_for(lambda: jobs.lease([kit.target().key], "tester", devices=[kit.target()]))
        job = jobs.get(lease.job_id)
        about = {"task_key": job.spec.tasks[0].task_key, "op": "Gemm", "default_ms": 10.0}
        jobs.renew(lease, events=[NewEvent(EventKind.STAGE, {"stage": "searching"})])
        for trial in range(5):
            improved = NewEvent(EventKind.IMPROVED, about | {"best_ms": 9.0 - trial, "trial": trial})
            standing = {"stage": "searching", "trials": trial + 1, "most_trials": 6, "speedup": 1.5}
            jobs.renew(lease, progress=standing, events=[improved, NewEvent(EventKind.PROGRESS, standing)])
        two = [NewEvent(EventKind.IMPROVED, about | {"best_ms": best_ms, "trial": 5}) for best_ms in (4.0, 3.0)]
        jobs.renew(lease, events=two)
        jobs.finish(lease, JobState.SUCCEEDED, result=result(job))

    tuner = threading.Thread(target=work)
    tuner.start()
    said = command("submit", path, "--dim", "rows=4", "--watch")
    tuner.join()
    told = [line for line in said.err.splitlines() if line.startswith("improved")]
    assert [line.partition(": ")[0] for line in told] == [
        "improved after 1 trial",
        *(f"improved after {trials} trials" for trials in (2, 3, 4, 5, 6, 6)),
    ]
    assert [line.partition("Gemm ")[2].partition(" by")[0] for line in told] == [
        f"{best_ms}.00 ms" for best_ms in (9, 8, 7, 6, 5, 4, 3)
    ]


def test_a_job_waits_for_a_device(
    serve: Any, kit: Any, path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(make_reader=None) as one:
        monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
        words = ("submit", path, "--dim", "rows=4", "--server", one.url)
        said = command(*words)
        assert (said.code, said.err) == (0, "")
        assert "job 1 is queued, waiting for a device: small.onnx, rows=4" in said.out
        assert "no device yet" in " ".join(command("jobs", "list", "--server", one.url).out.split())
        assert "2 tasks for no device yet" in command("jobs", "show", 1, "--server", one.url).out
        tuner = tune(one, kit)
        assert command("jobs", "watch", 1, "--server", one.url).code == 0
        tuner.join()
        assert one.store.jobs.get(1).spec.target_key == kit.target().key


def test_a_view_of_a_job_that_waits_for_a_device() -> None:
    view = JobMonitor(from_json(Job, JOB | {"state": "queued", "target": ""}))
    assert view.moment().doing == "waiting for a device"
    view.update(event(2, "paused"))
    view.update(event(3, "resumed"))
    assert view.moment().doing == "waiting for a device"
    view.update(event(4, "started"))
    view.update(event(5, "returned"))
    assert view.moment().doing == "waiting for another tuner process"


def test_ctrl_c_ends_the_watching_and_not_the_job(real: Any, path: Path) -> None:
    words = ["submit", str(path), "--dim", "rows=4", "--watch"]
    # The tests may have been started deaf to it, which children inherit.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        f"from tunewright.api.program import execute; sys.exit(execute({words!r}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("waiting for a tuner process")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the job goes on; to watch it again: tunewright jobs watch 1" in err
    assert out == ""
    assert [job.state for job in real.store.jobs.list()] == [JobState.QUEUED]


def test_a_job_that_is_out_of_time_is_listed_with_what_came_of_it(
    real: Any, kit: Any, path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    command("submit", path, "--dim", "rows=4")
    lease = real.store.jobs.lease([kit.target().key], "tester")
    ended = result(real.store.jobs.get(1)) | {"ended_by": "minutes", "outcome": "defaults_kept"}
    real.store.jobs.pause_leased(lease, result=ended)
    assert "paused, minutes over: defaults kept" in command("jobs", "list").out


def test_a_target_is_named(real: Any, kit: Any, path: Path, command: Command) -> None:
    target = kit.target()
    for seed, given in enumerate((str(target), target.key[:10], target.key)):
        said = command("submit", path, "--dim", "rows=4", "--seed", seed, "--target", given, "--json")
        assert said.data["target"] == target.key
    listed = command("jobs", "list")
    assert listed.out.split()[0] == "job"
    assert str(target) in listed.out


def test_jobs_of_one_model_at_several_sizes_are_told_apart(
    real: Any, kit: Any, path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for rows in (4, 6):
        submitted = command("submit", path, "--dim", f"rows={rows}", "--json").data
        job_id = submitted["id"]
        assert submitted["dims"] == {"rows": rows}
        assert real.client().get(f"/v1/jobs/{job_id}").json()["dims"] == {"rows": rows}
        assert f"small.onnx, rows={rows}" in command("jobs", "show", job_id).out
        assert f">small.onnx, rows={rows}</h1>" in real.client().get(f"/jobs/{job_id}").text
        of = real.client().get(
            f"/tasks/{submitted['tasks'][0]['key']}", params={"target": kit.target().key, "job": job_id}
        )
        assert f"job {job_id} (small.onnx, rows={rows})</a>" in of.text
    listed, page, lines = command("jobs", "list").out, *(real.client().get(at) for at in ("/", "/v1/pages/jobs"))
    for rows in (4, 6):
        assert f"small.onnx, rows={rows}" in listed and f"small.onnx, rows={rows}</a>" in page.text
    assert [line["dims"] for line in lines.json()["jobs"]] == [{"rows": 6}, {"rows": 4}]


def test_a_job_is_told_alike_everywhere(real: Any, kit: Any, path: Path, command: Command) -> None:
    submitted = command("submit", path, "--dim", "rows=4", "--minutes", 2, "--json").data
    lease = real.store.jobs.lease([kit.target().key], "tester")
    standing = {
        "stage": "searching",
        "trials": 3,
        "most_trials": None,
        "default_ms": 3.0,
        "tuned_ms": 2.0,
        "speedup": 1.5,
    }
    real.store.jobs.renew(lease, progress=standing)
    asked = real.client().get(f"/v1/jobs/{lease.job_id}").json()
    shown = command("jobs", "show", lease.job_id, "--json").data
    assert shown.pop("machine")
    assert shown.keys() == submitted.keys() == asked.keys() | {"is_new"}
    assert (asked["speedup"], asked["speedup_of"], asked["outcome"]) == (1.5, "trials", None)
    moments = ("created_at", "updated_at")
    assert {name: shown[name] for name in asked if name not in moments} == {
        name: asked[name] for name in asked if name not in moments
    }
    assert command("jobs", "list", "--json").data == {"jobs": [shown], "more": False}
    assert real.client().get("/v1/jobs").json()["items"] == [asked]
    assert (shown["progress"], shown["target_name"]) == (standing | {"trials": 0, "spent_s": 0.0}, str(kit.target()))
    kit.store_trials(real.store, lease, 5)
    row = next(line for line in command("jobs", "list").out.splitlines() if "running" in line).split()
    assert row[:5] == [str(lease.job_id), "running", "small.onnx,", "rows=4", str(kit.target())]
    assert row[6:8] == ["5", "1.50x°"]
    asked, page = (real.client().get(f"{at}/jobs/{lease.job_id}").json() for at in ("/v1", "/v1/pages"))
    [line] = real.client().get("/v1/pages/jobs").json()["jobs"]
    shown = command("jobs", "show", lease.job_id).out
    counts = asked["progress"]["trials"], page["job"]["trials"], page["trials"], line["trials"]
    assert counts == (5, 5, 5, 5) and "5 trials, " in shown


def test_a_job_that_was_there() -> None:
    job = from_json(Job, JOB | {"is_new": False, "trials": 200})
    assert job.is_new is False
    assert note_existing(job, None, None, None, 0) == "job 7 was there already: 200 trials, priority 0"
    assert note_existing(job, 9, None, None, 5).endswith("; not taken: --trials 9, --priority 5")
    limited = from_json(Job, JOB | {"until": 0.02})
    assert note_existing(limited, 100, None, None, 0) == (
        "job 7 was there already: 100 trials, until a minute brings less than 2%, priority 0; not taken: --until none"
    )
    assert note_existing(job, None, None, 0.005, 0).endswith("; not taken: --trials none, --until 0.5%")
    left_behind = from_json(Job, JOB | {"trials": None, "minutes": 1.0, "before_s": 61.4, "spent_s": 88.0})
    assert note_existing(left_behind, None, 0.3, None, 0) == (
        "job 7 was there already: 1 minute more than the 1:01 spent before, priority 0; not taken: --minutes 0.3"
    )
    unbounded = from_json(Job, JOB | {"trials": None, "minutes": 2.0})
    assert note_existing(unbounded, None, 2.0, None, 0) == "job 7 was there already: 2 minutes, priority 0"
    assert from_json(Job, JOB).is_new is None


def test_no_key(real: Any, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEWRIGHT_API_KEY")
    said = command("jobs", "list")
    assert (said.code, "no API key: set TUNEWRIGHT_API_KEY" in said.err) == (2, True)


def test_jobs_ahead(real: Any, kit: Any, path: Path, command: Command) -> None:
    for seed in (0, 1, 2):
        command("submit", path, "--dim", "rows=4", "--seed", seed)
    with Client(real.url, real.token) as client:
        assert [_ahead(client, client.job(job_id)) for job_id in (1, 2, 3)] == [0, 1, 2]
        client.prioritise(3, 5)
        real.store.jobs.lease([kit.target().key], "tester", devices=[kit.target()])
        assert [_ahead(client, client.job(job_id)) for job_id in (1, 2, 3)] == [1, 2, 0]  # itself is not ahead


# The view


def event(number: int, kind: str, **data: Any) -> JobEvent:
    return from_json(
        JobEvent, {"job": 7, "number": number, "kind": kind, "data": data, "created_at": "2026-11-20T09:30:00Z"}
    )


def test_a_default_is_no_news() -> None:
    watched = JobMonitor(from_json(Job, JOB | {"state": "queued"}))
    watched.update(event(1, "default", task_key="c" * 64, op="Conv", default_ms=2.0, best_ms=1.0))
    [row] = watched.moment().tasks
    assert (row.default_s, row.best_s, watched.moment().note) == (0.002, 0.001, "")


def test_a_regression_is_told_as_it_comes() -> None:
    watched = JobMonitor(from_json(Job, JOB | {"state": "queued"}))
    watched.update(event(1, "regressed", task_key="c" * 64, op="Conv", before_ms=1.0, now_ms=1.5, now={"llvm": "22"}))
    assert watched.moment().note == "slower than before: Conv 1.50 ms, was 1.00 ms: +50%; llvm unknown, now 22"


def test_the_view_follows_the_events() -> None:
    watched = JobMonitor(from_json(Job, JOB | {"state": "queued"}))
    assert watched.moment().at == "waiting for a tuner process"
    assert [row.op for row in watched.moment().tasks] == ["Conv"]
    watched.update(event(1, "started", holder="h"))
    assert watched.moment().at == "a tuner process begins"
    watched.update(event(2, "stage", stage="searching"))
    watched.update(event(3, "improved", task_key="c" * 64, op="Conv", best_ms=1.0, default_ms=None, trial=4))
    assert watched.moment().note == "improved after 5 trials: Conv 1.00 ms by trial"
    watched.update(event(4, "improved", task_key="c" * 64, op="Conv", best_ms=0.5, default_ms=2.0, trial=5))
    assert watched.moment().note == "improved after 6 trials: Conv 500 µs by trial, 4.00x as fast as by default"
    watched.update(
        event(5, "progress", trials=5, most_trials=100, spent_s=3.0, left_s=60.0, speedup=4.0, remaining_gain=0.03)
    )
    seen = watched.moment()
    assert (seen.at, seen.trials, seen.budget, seen.speedup, seen.left_s) == ("searching", 5, 100, 4.0, 60.0)
    assert seen.remaining_gain == 0.03
    [row] = seen.tasks
    assert (row.op, row.occurrences, row.default_s, row.best_s) == ("Conv", 2, 0.002, 0.0005)
    assert not row.is_confirmed
    assert seen.note == ""  # it was told
    assert row.chosen == 2
    for chosen in ([1], "?", [None], [1, 2]):  # what makes no sense changes nothing
        watched.update(event(5, "progress", chosen=chosen))
        assert watched.moment().tasks[0].chosen == 1
    watched.update(event(6, "lost", holder="h"))
    assert "waiting for another one" in watched.moment().at
    watched.update(event(7, "stage", stage="confirming"))
    watched.update(event(8, "confirmed", task_key="c" * 64, op="Conv", best_ms=0.6, default_ms=2.1))
    watched.update(event(8, "progress", confirmed=1, to_confirm=1, noise="it was busy"))
    assert (watched.moment().tasks[0].best_s, watched.moment().tasks[0].is_confirmed) == (0.0006, True)
    assert watched.moment().at.endswith("side by side: 1 of 1 task")
    watched.update(event(9, "paused"))
    assert watched.moment().at == "paused"
    assert watched.is_paused


def test_an_improvement_is_marked_as_its_trial_is() -> None:
    watched = JobMonitor(from_json(Job, JOB | {"state": "queued"}))
    about = {"task_key": "c" * 64, "op": "Conv", "best_ms": 0.5, "default_ms": 2.0, "trial": 5}
    for number, noise, default_noise, told in (
        (1, "busy", "", "Conv ~500 µs by trial, ~4.00x as fast as by default"),
        (2, "", "busy", "Conv 500 µs by trial, ~4.00x as fast as by default"),
    ):
        watched.update(event(number, "improved", **about, noise=noise, default_noise=default_noise))
        assert watched.moment().note.endswith(told)
        assert watched.moment().tasks[0].noise == "busy"


def test_the_view_begins_where_the_job_stands() -> None:
    now = {"stage": "searching", "trials": 9, "most_trials": 100, "spent_s": 9.0, "left_s": None, "speedup": 1.001}
    watched = JobMonitor(from_json(Job, JOB | {"progress": now | {"trials": 10}}))  # one was stored since
    assert watched.moment().at == "searching"
    watched.update(event(1, "queued"))
    watched.update(event(2, "started", holder="h"))
    watched.update(event(3, "improved", task_key="c" * 64, op="Conv", best_ms=1.0, default_ms=2.0, trial=4))
    watched.update(event(4, "progress", **now | {"trials": 4, "speedup": 2.0}))
    seen = watched.moment()
    assert (seen.at, seen.trials, seen.speedup, seen.note, seen.tasks[0].best_s) == ("searching", 10, 1.001, "", 0.001)
    watched.update(event(5, "progress", **now))
    watched.update(event(6, "improved", task_key="c" * 64, op="Conv", best_ms=0.5, default_ms=2.0, trial=10))
    assert watched.moment().note.startswith("improved after 11 trials")
    behind = JobMonitor(from_json(Job, JOB | {"state": "queued"}), 2)
    behind.update(event(1, "queued"))
    assert behind.moment().at == "waiting: behind 2 jobs"


def test_no_gain_is_no_news() -> None:
    watched = JobMonitor(from_json(Job, JOB | {"state": "queued"}))
    watched.update(event(2, "started", holder="h"))
    watched.update(event(3, "improved", task_key="c" * 64, op="Conv", best_ms=2.0, default_ms=2.001, trial=4))
    assert watched.moment().note == "improved after 5 trials: Conv 2.00 ms by trial"


@pytest.mark.parametrize(
    ("end", "lines_after"), [("paused", ["paused: 33 of 100 trials, 0:15 of searching"]), ("cancelled", [])]
)
def test_around_a_pause_nothing_is_told_twice(
    end: str, lines_after: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody takes up a job that was to pause or end, and it goes on when it searches again."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watched, lines = JobMonitor(from_json(Job, JOB | {"state": "queued"})), list[str]()
    view = views._LineView(lines.append)

    def update(number: int, kind: str, **data: Any) -> None:
        now[0] += 1.0
        watched.update(event(number, kind, **data))
        view.show(watched.moment())

    told = {
        "stage": "searching",
        "trials": 33,
        "spent_s": 15.0,
        "left_s": 420.0,
        "speedup": 1.5,
        "remaining_gain": 0.047,
    }
    update(1, "started", holder="h")
    update(2, "stage", stage="searching")
    update(3, "progress", **told)
    before = len(lines)
    update(4, "returned", holder="h", state=end)
    update(5, end)
    assert lines[before:] == lines_after
    if end == "paused":
        update(6, "resumed")
        update(7, "started", holder="h")
        assert "going on" not in " ".join(lines)
        update(8, "stage", stage="searching")
        update(9, "progress", **told)
        assert [line for line in lines if "going on" in line] == [
            "going on with the job: 33 of 100 trials were done before"
        ]


@pytest.mark.parametrize(
    ("told", "again"),
    [
        ({"again_gain": 0.02, "spent_s": 90.0, "task_gains": [0.01]}, views.FurtherGain(90.0, 0.02, "Conv", 0.01)),
        ({"again_gain": 0.02, "spent_s": 3.0, "task_gains": [None]}, views.FurtherGain(60.0, 0.02)),
        ({"again_gain": 0.02, "spent_s": 3.0, "task_gains": [0.1, 0.2]}, None),
        ({"again_gain": None, "spent_s": 3.0, "task_gains": [0.1]}, None),
        ({"again_gain": "a lot", "spent_s": 3.0, "task_gains": "all"}, None),
        ({}, None),
    ],
)
def test_what_more_budget_would_bring(told: dict[str, Any], again: views.FurtherGain | None) -> None:
    for stage, wanted in (("searching", again), ("confirming", None)):
        watched = JobMonitor(from_json(Job, JOB | {"progress": {"stage": stage} | told}))
        assert watched.moment().again == wanted


def test_what_part_of_a_run_a_task_takes() -> None:
    watched = JobMonitor(from_json(Job, JOB | {"progress": {"stage": "searching"}}))
    assert [line.share for line in watched.moment().tasks] == [None]
    watched = JobMonitor(from_json(Job, JOB))
    watched.update(event(1, "default", task_key="c" * 64, op="Conv", best_ms=1.0, default_ms=2.0))
    [line] = watched.moment().tasks
    assert (line.share, line.before_share) == (1.0, None)


def test_lines_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "LINE_S", 0.0)
    lines: list[str] = []
    view = views._LineView(lines.append)
    one = JobMonitor(
        from_json(Job, JOB | {"spent_s": 0.0, "progress": {"stage": "searching", "speedup": 0.995}})
    ).moment()
    view.show(one)
    view.show(one)
    assert lines == ["searching: no gain so far, 0 of 100 trials, 0:00 of searching"]
    ahead = {"stage": "searching", "speedup": 1.5, "left_s": 40.0, "remaining_gain": 0.015}
    view.show(JobMonitor(from_json(Job, JOB | {"spent_s": 0.0, "progress": ahead})).moment())
    assert lines[1].endswith(
        "1.50x as fast by trials so far, 0 of 100 trials, 0:00 of searching, about 0:40 left, 1.5% more expected"
    )


def test_lines_tell_what_changed_and_no_more_often_than_people_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    [task] = from_json(Job, JOB).tasks
    job = replace(from_json(Job, JOB), tasks=tuple(replace(task, key=f"{n:064}") for n in range(20)))
    watched, lines = JobMonitor(job), list[str]()
    view = views._LineView(lines.append)

    def update(number: int, kind: str, **data: Any) -> None:
        watched.update(event(number, kind, **data))
        view.show(watched.moment())

    update(1, "started", holder="h")
    update(2, "stage", stage="confirming")
    before = len(lines)
    for number in range(20):  # each within a second
        now[0] += 0.5
        update(3 + number, "confirmed", task_key=f"{number:064}", op="Conv", best_ms=1.0, default_ms=2.0)
        update(3 + number, "progress", stage="confirming", confirmed=1 + number, to_confirm=20)
    assert 1 <= len(lines) - before <= 2 and "of 20 tasks" in lines[-1]
    update(30, "stage", stage="running")
    before = len(lines)
    for number in range(20):  # nothing but the time goes on
        now[0] += 10.0
        update(40 + number, "progress", stage="running", trials=0)
    assert len(lines) == before
    update(60, "stage", stage="searching")
    before = len(lines)
    for number in range(600):  # twenty minutes
        now[0] += 2.0
        update(61 + number, "progress", stage="searching", trials=number, most_trials=1000)
    assert 15 < len(lines) - before < 45


def test_the_view_bears_nonsense() -> None:
    watched = JobMonitor(from_json(Job, JOB))
    before = watched.moment().tasks
    nonsense: list[tuple[str, dict[str, Any]]] = [
        ("stage", {"stage": ["x"]}),
        ("stage", {}),
        ("progress", {"trials": "many", "spent_s": None, "left_s": -1, "speedup": True}),
        ("improved", {}),
        ("improved", {"task_key": "c" * 64, "best_ms": "fast", "op": None}),
        ("improved", {"task_key": "nobody's", "best_ms": 1.0}),
        ("changed", {"priority": "\x1b" * 999}),
        ("unheard of", {}),
    ]
    for number, (kind, data) in enumerate(nonsense):
        watched.update(event(number + 1, kind, **data))
    assert watched.moment().tasks == before
    assert watched.moment().note.isprintable()


def test_each_command_has_its_place_in_the_help() -> None:
    whole = get_command(program.app)
    assert isinstance(whole, ProgramGroup)
    assert list(whole.commands) == [name for names in PANELS.values() for name in names]


def test_help_is_quick() -> None:
    heavy = {"httpx", "onnx", "numpy", "llvmlite", "xgboost", "sqlalchemy", "ray", "fastapi", "uvicorn", "rich.live"}
    code = (
        "import sys; from tunewright.api.program import execute; execute(['--help']); execute(['submit', '--help']);"
        f"print(sorted({heavy!r} & sys.modules.keys()), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.strip() == "[]"
    assert "submit" in run.stdout


def test_a_client_sends_a_large_model_in_pieces(real: Any, tmp_path: Path) -> None:
    large = model()
    large.graph.initializer.append(numpy_helper.from_array(np.zeros(700_000, np.float32), "unused"))
    onnx.save(large, tmp_path / "large.onnx")
    with Client(real.url, real.token) as client:
        first = client.submit(tmp_path / "large.onnx", with_weights=True, dims={"rows": 4})
        again = client.submit(tmp_path / "large.onnx", with_weights=True, dims={"rows": 4}, seed=1)
        assert again.model == first.model
        assert again.id != first.id
        external = tmp_path / "external.onnx"
        onnx.save(large, external, save_as_external_data=True, location="w.bin", size_threshold=0)
        with pytest.raises(Exception, match="files of their own"):
            client.submit(external, with_weights=True, dims={"rows": 4})
        client.submit(external, dims={"rows": 4})
