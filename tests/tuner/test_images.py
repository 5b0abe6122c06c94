"""Sessions that start from an image: the same as those that don't, and only where nothing has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tunewright.codegen.host import detect
from tunewright.codegen.ir import microkernel
from tunewright.codegen.runtime import native
from tunewright.codegen.runtime.library import Library
from tunewright.codegen.target import CUDA
from tunewright.db.store import open_store
from tunewright.graph.numerics import Precision
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.sketches import default_schedule, spaces
from tunewright.tuner.errors import Refused
from tunewright.tuner.lookup.source import ScheduleSource
from tunewright.tuner.models.model import open_for
from tunewright.tuner.session import compile as compile_module
from tunewright.tuner.session import executable
from tunewright.tuner.session import image_store as questions
from tunewright.tuner.session.executable import Executable
from tunewright.tuner.session.image_store import ImageStore
from tunewright.tuner.session.session import InferenceSession

from ..commands import Command
from .conftest import small_model
from .interpreted import GPU


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What sessions were started from by reading the model."""
    read: list[Any] = []
    start = executable.open_executable

    def counted(*args: Any) -> executable.Executable:
        read.append(args[0])
        return start(*args)

    monkeypatch.setattr(executable, "open_executable", counted)
    return read


@pytest.fixture(params=["cpu", CUDA])
def target(request: pytest.FixtureRequest) -> str:
    """The name of a device of this machine."""
    name: str = request.param
    if name == CUDA:
        request.getfixturevalue("gpu")
    return name


def threads_of(target: str) -> int | None:
    return None if target == CUDA else 1


def outputs(path: Path | bytes, target: str = "cpu", **options: Any) -> tuple[Any, ...]:
    with InferenceSession(path, threads=threads_of(target), target=target, **options) as session:
        [array] = session.run(None, {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)})
        return array.tolist(), session.coverage(), session.schedules, session.get_inputs(), session.get_outputs()


def opened(path: Path, target: str, store: ImageStore) -> Executable:
    return executable.open_executable(
        path, ScheduleSource(), {}, threads_of(target), target, Precision.AS_GIVEN, None, store
    )


def test_a_target_is_looked_at_before_what_is_remembered(home: Path) -> None:
    outputs(home / "small.onnx")
    outputs(home / "small.onnx")
    with pytest.raises(Refused, match="no target is called 'gpu'; there are auto, cpu, cuda"):
        InferenceSession(home / "small.onnx", target="gpu")


def test_the_second_session_is_the_same(home: Path, target: str, starts: list[Any]) -> None:
    first = outputs(home / "small.onnx", target)
    assert first == outputs(home / "small.onnx", target)
    assert len(starts) == 1
    assert first == outputs(small_model().SerializeToString(), target)
    assert len(starts) == 2
    assert len(list((home / "images").glob("*.image"))) == 1


def test_a_model_without_constants_has_an_image_too(home: Path, target: str, starts: list[Any]) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (4, 8)) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Softmax", ["x"], ["y"])], "bare", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, home / "bare.onnx")
    assert outputs(home / "bare.onnx", target) == outputs(home / "bare.onnx", target)
    assert len(starts) == 1


def test_an_image_has_all_objects_of_a_kernel(home: Path, starts: list[Any], monkeypatch) -> None:
    monkeypatch.setattr(microkernel, "MIN_STORES", 1)
    linked: list[list[int]] = []

    def counted(groups: Any) -> Library:
        linked.append([len(objects) for objects, _ in groups])
        return Library(groups)

    monkeypatch.setattr(native, "Library", counted)
    assert outputs(home / "small.onnx") == outputs(home / "small.onnx")
    assert len(starts) == 1
    assert linked[0] == linked[1] and max(linked[1]) > 1


def record(url: str, schedule: str, target_name: str) -> None:
    target = GPU if target_name == CUDA else detect(1)
    with open_store(url) as store:
        store.add_target(target)
        for task, _ in open_for(target, small_model().SerializeToString()).tasks.values():
            space, default = spaces(task, target)[0], default_schedule(task, target)
            rows = map(space.schedule, space.sample(8, np.random.default_rng(0)))
            chosen = default if schedule == "default" else next(one for one in rows if one != default)
            store.add_task(task)
            seconds = 1e-6 if schedule == "default" else 1e-7
            store.record(Record(task.key, target.key, chosen, Measurement(Status.OK, (seconds,), seconds)))


def test_what_changes_in_the_database_counts(home: Path, target: str, starts: list[Any]) -> None:
    url = f"sqlite:///{home / 'tuning.db'}"
    record(url, "default", target)
    first = outputs(home / "small.onnx", target, db=url)
    assert outputs(home / "small.onnx", target, db=url)[2] == first[2]
    record(url, "other", target)
    second = outputs(home / "small.onnx", target, db=url)
    assert second[2] != first[2]
    assert second[1].tuned == 2
    read = len(starts)
    assert outputs(home / "small.onnx", target, db=url) == second
    assert len(starts) == read
    assert len(list((home / "images").glob("*.image"))) == 2


def test_processes_that_wait_beside_it_change_nothing(home: Path, target: str, starts: list[Any]) -> None:
    url = f"sqlite:///{home / 'tuning.db'}"
    record(url, "default", target)
    with open_store(url) as store:
        store.fleet.enlist("t1", "host", 1, "1.0", "local")
        first = outputs(home / "small.onnx", target, db=url)
        for _ in range(2):
            store.fleet.report("t1", [])
            assert outputs(home / "small.onnx", target, db=url) == first
        assert len(starts) == 1
        record(url, "other", target)  # it is seen at once, in the journal as well
        assert outputs(home / "small.onnx", target, db=url)[2] != first[2]


def test_what_changes_in_the_model_counts(home: Path, target: str, starts: list[Any]) -> None:
    path = home / "small.onnx"
    first = outputs(path, target)
    other = small_model()
    other.graph.initializer[1].raw_data = np.ones(24, np.float32).tobytes()
    onnx.save(other, path)
    assert outputs(path, target)[0] != first[0]
    assert len(starts) == 2


def test_a_file_that_just_changed_is_not_recognised(home: Path, target: str, starts: list[Any], monkeypatch) -> None:
    monkeypatch.setattr(questions, "SETTLED_NS", 10**12)
    for _ in range(2):
        outputs(home / "small.onnx", target)
    assert len(starts) == 2
    assert not list((home / "images").glob("*.json"))


def test_weights_in_other_files_are_read_each_time(home: Path, target: str, starts: list[Any]) -> None:
    path = home / "apart.onnx"
    onnx.save(small_model(), path, save_as_external_data=True, location="weights", size_threshold=0)
    first = outputs(path, target)
    assert outputs(path, target) == first
    assert len(starts) == 2


@pytest.mark.parametrize("damage", ["cut", "changed", "code", "empty"])
def test_damaged_images_count_as_absent(damage: str, home: Path, target: str, starts: list[Any]) -> None:
    first = outputs(home / "small.onnx", target)
    [path] = (home / "images").glob("*.image")
    content = bytearray(path.read_bytes())
    match damage:
        case "cut":
            content = content[:-100]
        case "changed":
            content[100] ^= 1
        case "code":  # its last byte; the size of all before the constants is the second number
            at = len(questions.MAGIC) + 8
            content[at + 39 + int.from_bytes(content[at : at + 8], "little")] ^= 1
        case _:
            content = bytearray()
    path.write_bytes(content)
    for _ in range(2):  # the first makes another one
        assert outputs(home / "small.onnx", target) == first
    assert len(starts) == 2


def test_what_was_not_used_for_longest_goes(home: Path, target: str) -> None:
    outputs(home / "small.onnx", target)
    [path] = (home / "images").glob("*.image")
    os.utime(path, (time.time() - 100,) * 2)
    store = ImageStore(home / "images", limit_bytes=path.stat().st_size)
    started = opened(home / "small.onnx", target, store)
    assert started.name  # it was there
    onnx.save(small_model(rows=5), home / "other.onnx")
    assert opened(home / "other.onnx", target, store).name
    assert path not in (home / "images").glob("*.image")


def test_images_leave_room_on_a_small_disk(home: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs(home / "small.onnx", target)
    [path] = (home / "images").glob("*.image")
    os.utime(path, (time.time() - 100,) * 2)
    onnx.save(small_model(rows=5), home / "other.onnx")
    store = ImageStore(home / "images")
    usage = shutil.disk_usage(home)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=path.stat().st_size))
    assert opened(home / "other.onnx", target, store).name
    [other] = (home / "images").glob("*.image")  # the first had to go
    assert other != path


def test_the_folder_may_be_deleted_at_any_time(home: Path, target: str) -> None:
    outputs(home / "small.onnx", target)
    [image] = (home / "images").glob("*.image")
    store = ImageStore(home / "images")
    shutil.rmtree(home / "images")
    assert not opened(home / "small.onnx", target, store).name
    outputs(home / "small.onnx", target)
    assert image.exists()


def test_a_model_that_is_too_large_is_not_kept_and_drives_out_no_other(home: Path, target: str) -> None:
    outputs(home / "small.onnx", target)
    before = set((home / "images").iterdir())
    onnx.save(small_model(rows=5), home / "other.onnx")
    assert not opened(home / "other.onnx", target, ImageStore(home / "images", 1)).name
    assert set((home / "images").iterdir()) == before


def test_a_large_image_is_written_while_the_session_runs(
    home: Path, target: str, starts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "LARGE_BYTES", 0)
    go_on = threading.Event()
    write = ImageStore._write

    def wait(*arguments: Any) -> None:
        go_on.wait(60)
        write(*arguments)

    monkeypatch.setattr(ImageStore, "_write", wait)
    first = outputs(home / "small.onnx", target)
    assert not list((home / "images").glob("*.image"))
    go_on.set()
    assert outputs(home / "small.onnx", target) == first  # which waits for it
    assert len(starts) == 1 and list((home / "images").glob("*.image"))


def test_a_large_image_that_can_not_be_written_is_not_there(
    home: Path, target: str, starts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "LARGE_BYTES", 0)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    first = outputs(home / "small.onnx", target)
    assert outputs(home / "small.onnx", target) == first
    assert len(starts) == 2 and not list((home / "images").glob("*.image*"))


def test_the_command_starts_from_images_and_leaves_them(
    home: Path, target: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    build = compile_module.build_kernels

    def counted(*arguments: Any) -> Any:
        built.append(1)
        return build(*arguments)

    monkeypatch.setattr(executable, "build_kernels", counted)
    for rows in (4, 4, 5):
        onnx.save(small_model(rows=rows), home / "any.onnx")
        options = ["--target", target, *([] if target == CUDA else ["--threads", 1]), "--json"]
        assert command("run", home / "any.onnx", *options).data["outputs"][0]["shape"] == [rows, 24]
    assert len(built) == 2
    assert len(list((home / "images").glob("*.image"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("is_closed", [False, True])
def test_the_end_of_a_process_waits_for_its_image(is_closed: bool, home: Path) -> None:
    code = "import sys; from tunewright.tuner.session import image_store; image_store.LARGE_BYTES = 0\n"
    code += "from tunewright.tuner import InferenceSession; session = InferenceSession(sys.argv[1], threads=1)\n"
    code += "session.close()" if is_closed else ""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(home / "small.onnx")], env=environment, timeout=60, check=True)
    assert list((home / "images").glob("*.image")) and not list((home / "images").glob("*.tmp"))


STARTED = """
import sys, numpy as np
from tunewright.tuner import InferenceSession
with InferenceSession(sys.argv[1], threads=1) as session:
    print(session.run(None, {"x": np.ones((4, 8), np.float32)})[0].shape)
print(sorted({"onnx", "sqlalchemy", "xgboost"} & sys.modules.keys()))
"""


def test_other_runtimes_are_measured_without_ours() -> None:
    code = "import sys, tunewright.tuner.peers.peak_memory, tunewright.tuner.peers; print('onnx' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_a_start_from_an_image_imports_little(home: Path) -> None:
    past_s = time.time() - 60
    os.utime(home / "small.onnx", (past_s, past_s))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    time.sleep(2.1)  # until the file counts as settled
    said = [
        subprocess.run(
            [sys.executable, "-c", STARTED, str(home / "small.onnx")],
            env=environment, capture_output=True, text=True, timeout=60, check=True,
        ).stdout
        for _ in range(2)
    ]  # fmt: skip
    assert said == ["(4, 24)\n['onnx']\n", "(4, 24)\n[]\n"]
