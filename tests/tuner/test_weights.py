"""Large constants: once in memory and on disk for all images that have them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tunewright.codegen.private_folder import PrivateFolder
from tunewright.codegen.runtime.file_pages import LEAST_BYTES, FilePages
from tunewright.tuner.session import compile as compile_module
from tunewright.tuner.session import weights
from tunewright.tuner.session.session import InferenceSession
from tunewright.tuner.session.weights import WeightFiles

from .conftest import small_model

RNG = np.random.default_rng(3)


def drawn(size_bytes: int) -> Any:
    return RNG.integers(0, 256, size_bytes, dtype=np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> WeightFiles:
    return WeightFiles(PrivateFolder(tmp_path / "weights"))


def test_what_is_put_is_there(files: WeightFiles) -> None:
    drafts = [drawn(size) for size in (1, 333, 1000)]
    sizes = [(files.put(weight), weight.nbytes) for weight in drafts]
    expected = [weight.tolist() for weight in drafts]
    del drafts
    found = files.get([*sizes, sizes[0]])
    assert [weight.tolist() for weight in found] == [*expected, expected[0]]
    assert all(weight.ctypes.data % 64 == 0 for weight in found)
    again = files.get(sizes[1:])
    assert again[0] is found[1] and again[1] is found[2]
    assert files.get([]) == ()


def test_what_is_gone_or_cut_short_is_told(files: WeightFiles, tmp_path: Path) -> None:
    digest = files.put(drawn(500))
    [path] = (tmp_path / "weights").iterdir()
    os.truncate(path, 499)
    with pytest.raises(ValueError, match="cut short"):
        files.get([(digest, 500)])
    path.unlink()
    with pytest.raises(FileNotFoundError):
        files.get([(digest, 500)])


def test_a_weight_that_is_in_use_is_looked_for_on_disk(files: WeightFiles, tmp_path: Path) -> None:
    """So that the image is written again, for the next process."""
    weight = drawn(500)
    digest = files.put(weight)
    [path] = (tmp_path / "weights").iterdir()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        files.get([(digest, 500)])
    assert files.put(weight) == digest and path.exists()


def test_a_weight_that_is_put_again_is_not_read_again(files: WeightFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = drawn(500)
    digest = files.put(weight)
    monkeypatch.setattr("hashlib.sha256", lambda _: pytest.fail("read"))
    assert files.put(weight) == digest
    with pytest.raises(pytest.fail.Exception):
        files.put(weight.copy())


def test_large_weights_get_huge_pages(files: WeightFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    made = threading.Event()
    monkeypatch.setattr(weights, "HUGE_AFTER_S", 0.0)
    monkeypatch.setattr(FilePages, "make_huge", lambda _: made.set())
    digests = [(files.put(drawn(size)), size) for size in (LEAST_BYTES, 100)]
    small = files.get(digests[1:])
    assert not made.is_set()
    large = files.get(digests[:1])
    assert made.wait(30) and len(small) == len(large)


def test_threads_get_the_same_weight(files: WeightFiles) -> None:
    digest = files.put(drawn(1 << 20))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(files.get([(digest, 1 << 20)])[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(weight) for weight in found}) == 1


def test_sizes_of_a_model_share_weights(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "WEIGHT_BYTES", 300)
    onnx.save(small_model("batch"), home / "dynamic.onnx")
    x = RNG.standard_normal((6, 8), dtype=np.float32)

    def results(rows: int) -> tuple[Any, InferenceSession]:
        session = InferenceSession(home / "dynamic.onnx", dims={"batch": rows}, threads=1)
        return session.run(None, {"x": x[:rows]})[0], session

    first = [results(rows)[0] for rows in (4, 6)]
    (one, small), (other, large) = results(4), results(6)
    with small, large:
        np.testing.assert_array_equal(one, first[0])
        np.testing.assert_array_equal(other, first[1])
        assert small.memory.keys() & large.memory.keys()
    [path] = (home / "images").glob("*.weight")
    assert path.stat().st_size >= 8 * 24 * 4
    path.unlink()
    np.testing.assert_array_equal(results(4)[0], first[0])
    assert path.exists()
