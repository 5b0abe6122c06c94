"""`tunewright doctor` looks at the service too, and names what mends it."""

from __future__ import annotations

import re
import shutil
import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewright.codegen.cuda.device import Device as GpuDevice
from tunewright.codegen.cuda.device import NoDevice
from tunewright.codegen.cuda.driver import NoClocks
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.host import detect
from tunewright.codegen.target import Target
from tunewright.costmodel.features import version_of
from tunewright.costmodel.forest import Forest, Growth
from tunewright.costmodel.layered_model import LayeredModel
from tunewright.db.fleet import TunerDevice
from tunewright.db.inspection import ServiceState
from tunewright.db.snapshot import NewSnapshot
from tunewright.db.store import open_store
from tunewright.tuner.cli import checks as doctor_checks

from ..commands import Command
from ..search_space.oracle import DOTS, MATRICES, WIDE

HOSTILE = "m\x1b[2J\n<script>"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    return tmp_path


def checks(command: Command, name: str) -> list[dict[str, Any]]:
    answer = command("doctor", "--json")
    assert answer.code == 0, answer
    return [check for check in answer.data["checks"] if check["name"] == name]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (WIDE, "bytes are multiplied as float32, bfloat16 as float32"),
        (DOTS, "bytes are multiplied four at a time, bfloat16 as such"),
        (MATRICES, "bytes are multiplied four at a time, bfloat16 as such"),
    ],
)
def test_how_narrow_numbers_are_multiplied(target: Target, words: str) -> None:
    assert doctor_checks._multiplied(target) == words


def test_vectors_are_those_of_this_machine(command: Command) -> None:
    [check] = checks(command, "vectors")
    assert check["found"].endswith(f"; {doctor_checks._multiplied(detect())}")


def test_it_is_fast_and_changes_nothing(command: Command, home: Path) -> None:
    open_store(f"sqlite:///{home / 'tuning.db'}").close()
    command("doctor")  # builds a kernel, where the cache is new
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and path.suffix == ".db"}
    start_s = time.monotonic()
    command("doctor")
    assert time.monotonic() - start_s < 2
    assert {path: path.read_bytes() for path in before} == before


def test_a_home_that_cannot_be_made(command: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(home / "file" / "inside"))
    answer = command("doctor", "--json")
    [check] = [check for check in answer.data["checks"] if check["name"] == "kernels"]
    assert check["state"] == "fault" and "TUNEWRIGHT_HOME" in check["mend"]


@pytest.mark.slow
def test_gpus(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[Any]:
        raise NoDevice("no driver: install one")

    def untold() -> None:
        raise NoClocks("a container needs the capability utility")

    monkeypatch.setattr(doctor_checks, "GPU", ("numpy", "onnx"))
    monkeypatch.setattr(doctor_checks, "driver_version", lambda: "13.0")
    monkeypatch.setattr(doctor_checks, "devices", lambda: [GpuDevice(0, "NVIDIA H200", KNOWN["sm_90a"])])
    monkeypatch.setattr(doctor_checks, "management", lambda: None)
    assert checks(command, "gpu clocks") == []
    monkeypatch.setattr(doctor_checks, "management", untold)
    [check] = checks(command, "gpu clocks")
    assert (check["state"], check["found"].endswith("the capability utility")) == ("note", True)
    [check] = checks(command, "gpu")
    assert check["state"] == "ok"
    assert check["found"] == "NVIDIA H200, sm_90a, 132 multiprocessors; the driver takes CUDA 13.0"
    monkeypatch.setattr(doctor_checks, "devices", none)
    [check] = checks(command, "gpu")
    assert (check["state"], check["found"].endswith("no driver: install one")) == ("note", True)


def test_what_compiles_for_gpus_is_missing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "GPU", ("numpy", "nobody-has-this"))
    [check] = checks(command, "nvrtc")
    assert (check["state"], check["mend"]) == ("note", "pip install 'tunewright[cuda]'")
    assert check["found"].endswith(": nobody-has-this not installed")
    assert checks(command, "gpu") == []


def layer(seed: int) -> bytes:
    """A cost model that learned from eight points."""
    rng = np.random.default_rng(seed)
    growth = Growth(rounds=1, max_depth=1, eta=0.1, colsample_bytree=1.0)
    values, labels = rng.random((8, 4), np.float32), rng.random(8, np.float32)
    return LayeredModel(
        (Forest.fit(values, labels, np.zeros(8, np.int64), growth, members=1, seed=seed),), None
    ).write()


@pytest.mark.slow
def test_how_good_the_cost_model_is(command: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shipped,) = checks(command, "cost model")
    assert re.match(
        r"base model [0-9a-f]{12} of \d{4}-\d\d-\d\d, from [\d,]+ trials of \d+ tasks: pairwise 0\.", shipped["found"]
    )
    with open_store(f"sqlite:///{home / 'tuning.db'}") as store:
        store.snapshots.keep(NewSnapshot("cpu", "other features", b"0", 100, 100, {}))
        assert "another version or base model" in checks(command, "cost model")[1]["found"]
        store.snapshots.keep(NewSnapshot("cpu", version_of("cpu"), b"no model", 100, 100, {}))
        assert "another version or base model" in checks(command, "cost model")[1]["found"]
        store.snapshots.keep(
            NewSnapshot("cpu", version_of("cpu"), layer(1), 100, 100, {"held_out": None, "below": None})
        )
        unknown = checks(command, "cost model")[1]["found"]
        assert "too few tasks to judge it by; jobs use it, lookups pick by the base model alone" in unknown
        figures = {"tasks": 4, "pairwise": 0.9, "peak_1": 0.95, "peak_5": None, "time_error": 0.2}
        metrics = {"held_out": figures, "below": figures | {"pairwise": 0.8}}
        store.snapshots.keep(NewSnapshot("cpu", version_of("cpu"), layer(2), 1, 100, metrics))
    said = "pairwise 0.900, peak_1 0.950, peak_5 -, time_error 0.200 on 4 tasks held out"
    (_, newest) = checks(command, "cost model")
    assert (
        newest["found"].startswith("snapshot 4 of ") and f"from 1 trial: {said} (what is below it: " in newest["found"]
    )
    assert newest["found"].endswith("; lookups pick by it too")
    with open_store(f"sqlite:///{home / 'tuning.db'}") as store:
        store.snapshots.keep(
            NewSnapshot("cpu", version_of("cpu"), layer(3), 1, 101, {"held_out": figures | {"tasks": 1}})
        )
    assert "on 1 task held out, which says nothing of others" in checks(command, "cost model")[1]["found"]
    monkeypatch.setattr(doctor_checks, "base", lambda kind: None)
    assert checks(command, "cost model")[0]["state"] == "note"


def test_the_packages_of_the_service_are_those_that_are_declared() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    declared = {re.split(r"[\[>]", one)[0] for one in project["project"]["optional-dependencies"]["serve"]}
    assert set(doctor_checks.SERVICE) == declared - {"tunewright"}


@pytest.mark.slow
def test_what_the_service_lacks(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = checks(command, "service")
    assert check["state"] == "ok"
    present = doctor_checks._version
    monkeypatch.setattr(doctor_checks, "_version", lambda name: "" if name in ("uvicorn", "ray") else present(name))
    (check,) = checks(command, "service")
    assert (check["state"], check["mend"]) == ("note", "pip install 'tunewright[serve]'")
    assert "uvicorn" in check["found"]
    assert checks(command, "ray token") == []


@pytest.mark.slow
def test_the_token_of_ray(command: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> tuple[str, str]:
        (check,) = checks(command, "ray token")
        return check["state"], check["found"] + check["mend"]

    assert found()[0] == "ok"
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret token")
    token.chmod(0o644)
    state, said = found()
    assert state == "note" and f"chmod 600 {token}" in said
    token.chmod(0o600)
    assert found() == ("ok", f"from {token}")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "typo"))
    assert found()[0] == "note"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another secret")
    assert found() == ("ok", "from RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    state, said = found()
    assert state == "note" and "unset RAY_AUTH_MODE" in said


@pytest.mark.slow
def test_the_local_key(command: Command, home: Path) -> None:
    (check,) = checks(command, "local key")
    assert check["state"] == "ok" and "not there yet" in check["found"]
    path = home / "local_key"
    path.write_text("tw_abcdefghijkl_" + "s" * 43)
    path.chmod(0o600)
    (check,) = checks(command, "local key")
    assert check["state"] == "ok"
    path.chmod(0o640)
    (check,) = checks(command, "local key")
    assert check["state"] == "note"
    assert check["mend"].startswith(f"tunewright key revoke abcdefghijkl; rm {path}")
    assert "s" * 43 not in command("doctor").out


@pytest.mark.slow
def test_what_images_take(command: Command, home: Path) -> None:
    (check,) = checks(command, "images")
    assert check["state"] == "ok" and "not there yet" in check["found"]
    (home / "images").mkdir()
    (home / "images" / "a.image").write_bytes(bytes(5000))
    (check,) = checks(command, "images")
    assert check["state"] == "ok" and "1 file, 5 kB of at most" in check["found"]
    (home / "images" / "gone.image").symlink_to("nowhere")  # as one that goes while it is looked at
    (same,) = checks(command, "images")
    assert "1 file, 5 kB" in same["found"]


@pytest.mark.slow
def test_a_small_disk(command: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("images", "objects"):
        (home / name).mkdir()
    assert checks(command, "disk") == []
    usage = shutil.disk_usage(home)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000_000))
    (check,) = checks(command, "disk")
    assert check["state"] == "note" and "100 MB free" in check["found"]
    (images,) = checks(command, "images")
    assert images["state"] == "ok" and "0 B of at most 50 MB, 100 MB free" in images["found"]


def test_confinement(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = checks(command, "confinement")
    assert check["found"]
    monkeypatch.setattr(doctor_checks, "landlock_version", lambda: 0)
    (check,) = checks(command, "confinement")
    assert check["state"] == "note" and "lsm=" in check["mend"]


@pytest.mark.slow
def test_the_queue_and_the_fleet(command: Command, home: Path) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    with open_store(f"sqlite:///{home / 'tuning.db'}") as store:
        store.fleet.enlist("t1", "h", 1, "0.1", "local")
        store.fleet.report("t1", [TunerDevice(HOSTILE, "ab" * 32, until, "the canary failed")])
    (check,) = checks(command, "device")
    assert check["state"] == "note"
    assert "the canary failed" in check["found"]
    assert all(line.isprintable() for line in command("doctor").out.splitlines())
    (check,) = checks(command, "jobs")
    assert (check["state"], check["found"]) == ("ok", "0 queued, 1 tuner at work")


def test_a_database_that_others_can_read(command: Command, home: Path) -> None:
    path = home / "tuning.db"
    open_store(f"sqlite:///{path}").close()
    assert {check["state"] for check in checks(command, "database")} == {"ok"}
    path.chmod(0o644)
    *_, check = checks(command, "database")
    assert (check["state"], check["mend"]) == ("note", f"chmod go= {path}*")


def test_what_is_made_of_work() -> None:
    found = list(doctor_checks._work(ServiceState(clock_ahead_s=-90.0, queued=2, lost=3), "postgresql://h/db"))
    assert [check.state for check in found] == ["note"] * 3
    assert "90 s behind" in found[0].found and "timedatectl" in found[0].mend
    assert found[1].found.startswith("3 running jobs")
    assert found[2].found.startswith("2 jobs are queued, and no tuner")
    assert "tunewright work --db postgresql://h/db" in found[2].mend
    assert list(doctor_checks._work(ServiceState(clock_ahead_s=0.1), "u")) == []
