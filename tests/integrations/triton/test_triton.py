"""Triton's own cache classes and autotuner, on a real server. No GPU: nothing is compiled for one."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("triton")

from triton import Config
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.cache import get_cache_manager
from triton.runtime.driver import driver

from tunewright.api.client.log import LogClient
from tunewright.db.logs.entry import LogEntry
from tunewright.integrations.triton import cache_manager, config_times
from tunewright.integrations.triton.cache_manager import CacheManager, is_result

from .kernels import add

CONFIGS = [Config({"BLOCK": block}, num_warps=warps) for block in (64, 128) for warps in (4, 8)]


class StubDriver:
    """An H100 that nothing runs on."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def log(one, monkeypatch, tmp_path):
    """The log of a server, for a process that knows nothing yet."""
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "tunewright.integrations.triton:CacheManager")
    client = LogClient("triton", one.url, timeout_s=60)
    monkeypatch.setattr(cache_manager, "log_client", lambda: client)
    monkeypatch.setattr(config_times, "log_client", lambda: client)
    monkeypatch.setattr(cache_manager, "device", lambda: "H100")
    monkeypatch.setattr(driver, "_active", StubDriver())
    return client


def tune(configs, measured, monkeypatch=None, times_ms=None):
    """What the autotuner does where a tuning key is new: the time of each config, and those that were measured."""
    tuner = Autotuner(
        add, ["x", "BLOCK"], configs, ["x"], None, None, cache_results=True, do_bench=lambda *_, **__: None
    )

    def bench_one(*_, config, **__):
        measured.append(config)
        return list((times_ms or {}).get(config, [1.0 + len(measured), 1.0, 9.0]))

    tuner._inner = bench_one

    def bench():
        tuner.configs_timings = {config: tuner._bench(config=config) for config in configs}
        tuner.cache[("key",)] = min(tuner.configs_timings, key=tuner.configs_timings.get)

    bench_of = Autotuner._bench
    Autotuner._bench = config_times._without_known(lambda self, *args, **kwargs: self._inner(*args, **kwargs))
    try:
        tuner.check_disk_cache(("key",), configs, bench)
    finally:
        Autotuner._bench = bench_of
    return tuner


def other_machine(monkeypatch, tmp_path: Path):
    """Triton's folder is empty."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "other"))


def test_triton_makes_our_manager(log):
    assert type(get_cache_manager("ab" * 32)) is CacheManager
    assert config_times.install()


def test_what_one_machine_tuned_another_knows(log, monkeypatch, tmp_path):
    first: list[Config] = []
    second: list[Config] = []
    best = tune(CONFIGS, first).cache[("key",)]
    assert first == CONFIGS
    other_machine(monkeypatch, tmp_path)
    assert tune(CONFIGS, second).cache[("key",)] == best
    assert second == []


def test_of_a_changed_list_only_what_is_new_is_measured(log, monkeypatch, tmp_path):
    """triton-lang/triton#9822."""
    tune(CONFIGS, [])
    other_machine(monkeypatch, tmp_path)
    more = [*CONFIGS[1:], Config({"BLOCK": 256}, num_warps=4)]
    measured: list[Config] = []
    tuner = tune(more, measured)
    assert measured == more[-1:]
    assert tuner.configs_timings.keys() == set(more)
    again: list[Config] = []
    other_machine(monkeypatch, tmp_path / "third")
    tune(CONFIGS[:2], again)
    assert again == []


def test_a_config_that_fails_is_not_tried_again(log, monkeypatch, tmp_path):
    never = [float("inf")] * 3
    tune(CONFIGS, [], times_ms={CONFIGS[0]: never})
    other_machine(monkeypatch, tmp_path)
    measured: list[Config] = []
    assert tune(CONFIGS[:3], measured).configs_timings[CONFIGS[0]] == never
    assert measured == []


def test_code_stays_in_the_folder(log, one):
    manager = CacheManager("AB2" * 17)
    manager.put(b"\x7fELF", "add.cubin")
    manager.put('{"a": 1}', "add.json", binary=False)
    assert manager.get_file("add.cubin")
    assert CacheManager("CD2" * 17).get_file("add.cubin") is None
    assert one.store.logs.namespaces() == []


HOSTILE = [
    b"\x80\x04.",
    b"{}",
    b'{"configs_timings": []}',
    b'{"configs_timings": [[{"kwargs": {}}, [1, 2]]]}',
    b'{"configs_timings": [[{"kwargs": {}, "num_warps": 4, "evil": 1}, [1, 2, 3]]]}',
    b'{"configs_timings": [[{"kwargs": {}, "ir_override": "/tmp/evil.ttgir"}, [1, 2, 3]]]}',
    b'{"configs_timings": [[{"kwargs": {"BLOCK": []}}, [1, 2, 3]]]}',
    b'{"configs_timings": [[{"kwargs": {}, "num_warps": -7}, [1, 2, 3]]]}',
    b'{"configs_timings": [[{"kwargs": {}}, [1, 2, 1' + b"0" * 400 + b"]]]}",
    b"[" * 60_000,
]


@pytest.mark.parametrize("value", HOSTILE)
def test_what_no_autotuner_wrote_is_not_read(log, value):
    manager = CacheManager("AB2" * 17)
    key = f"triton:{manager.key}:add.autotune.json"
    assert not log.write([LogEntry(key, value, cache_manager.environment())])  # nor is it taken
    assert manager.get_file("add.autotune.json") is None
    assert not is_result(key, value)


def test_without_a_server_triton_is_as_it_was(monkeypatch, tmp_path, log):
    client = LogClient("triton", "http://127.0.0.1:1")
    monkeypatch.setattr(cache_manager, "log_client", lambda: client)
    monkeypatch.setattr(config_times, "log_client", lambda: client)
    started_s = time.monotonic()
    measured: list[Config] = []
    for _ in range(3):
        other_machine(monkeypatch, tmp_path / str(time.monotonic()))
        tune(CONFIGS, measured)
    assert measured == CONFIGS * 3
    assert time.monotonic() - started_s < 30
    path = CacheManager("AB2" * 17).put(json.dumps({"a": 1}), "add.autotune.json", binary=False)
    assert json.loads(Path(path).read_text()) == {"a": 1}
