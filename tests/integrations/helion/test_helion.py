"""The log as the remote cache of Helion: payloads go there and back, and nothing ends a build.

Where Helion is installed its own caches and search are driven, without a GPU: with keys and kernels made up, as in
Helion's own tests.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunewright.api.client import log
from tunewright.api.client.log import LogClient
from tunewright.db.access import KeyScope
from tunewright.db.logs.entry import VALUE_BYTES, LogEntry
from tunewright.integrations.helion import Backend, backend
from tunewright.integrations.helion.payload import is_payload

from ...api.planted import NO_SERVERS, planted

KEY, OTHER = "a" * 64, "b" * 64
FIELDS = {
    "specialization_key": "('float32',)", "extra_results": "()", "kernel_source_hash": "c0", "hardware": "NVIDIA H100",
    "runtime_name": "13.0", "backend": "triton", "config_spec_hash": "d1", "extra_cache_key": "",
}  # fmt: skip


def payload(warps=8, **changes):
    config = json.dumps({"block_sizes": [64, 64], "num_warps": warps}, indent=2)
    record = {
        "config": config,
        "key": {"type": "LooseAutotuneCacheKey", "fields": FIELDS},
        "flat_config": json.dumps([64, 64, warps]),
    }
    return json.dumps(record | changes, indent=2)


@pytest.fixture(autouse=True)
def _told_anew(monkeypatch):
    monkeypatch.setattr(log, "_logged", set())
    backend._client_of.cache_clear()
    yield
    backend._client_of.cache_clear()


@pytest.fixture
def served(one, monkeypatch):
    monkeypatch.setattr(log.LogClient.__init__, "__defaults__", (None, 60.0))
    monkeypatch.setenv("TUNEWRIGHT_SERVER", one.url)
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.token)
    return Backend()


@pytest.fixture
def client(served, one):
    return LogClient("helion", one.url)


def test_what_one_process_finds_another_uses(served):
    assert served.get(KEY) is None
    served.put(KEY, payload())
    served.put(OTHER, payload(4))
    assert Backend().get(KEY) == payload()
    assert list(Backend().list()) == [payload(4), payload()]
    assert list(Backend().list(max_results=1)) == [payload(4)]
    assert list(Backend().list(max_results=0)) == []
    assert list(Backend().list(5)) == [payload(4), payload()]


def test_a_log_that_nobody_wrote_to_is_empty(served):
    assert list(served.list()) == []
    served.put(KEY, payload())
    assert list(served.list()) == [payload()]


def test_a_search_anew_takes_the_place_of_the_older_one(served):
    served.put(KEY, payload())
    served.put(KEY, payload(4))
    assert served.get(KEY) == payload(4)
    assert list(served.list()) == [payload(4)]


def test_another_namespace(served, monkeypatch):
    served.put(KEY, payload())
    monkeypatch.setenv("TUNEWRIGHT_HELION_NAMESPACE", "helion.team-a")
    assert served.get(KEY) is None
    served.put(KEY, payload(4))
    monkeypatch.delenv("TUNEWRIGHT_HELION_NAMESPACE")
    assert served.get(KEY) == payload()


NO_PAYLOADS = {
    "nothing": "",
    "no JSON": "{",
    "deep": "[" * 100_000,
    "a list": "[]",
    "no config": json.dumps({"key": {"fields": FIELDS}}),
    "a config that is no text": payload(config={"num_warps": 8}),
    "a config that is no JSON": payload(config="{"),
    "a config that is a list": payload(config="[]"),
    "no key": payload(key=None),
    "no fields": payload(key={"type": "x"}),
    "fields of numbers": payload(key={"fields": {"hardware": 1}}),
    "flat text": payload(flat_config="{"),
    "flat object": payload(flat_config={}),
    "a policy that is none": payload(cute_structural_policy="auto"),
}


@pytest.mark.parametrize("name", NO_PAYLOADS)
def test_what_helion_could_not_read_is_neither_kept_nor_served(name, served, client):
    assert not is_payload(NO_PAYLOADS[name])
    served.put(KEY, NO_PAYLOADS[name])
    assert client.entries() == []
    assert client.write([LogEntry(KEY, NO_PAYLOADS[name].encode()[:VALUE_BYTES])])
    assert served.get(KEY) is None
    assert list(served.list()) == []


def test_payloads_of_older_versions_are_read():
    for name, field in (("flat_config", None), ("flat_config", [64]), ("cute_structural_policy", {}), ("later", 1)):
        assert is_payload(payload(**{name: field}))


def test_what_the_log_can_not_keep_is_left_out(served, client, caplog):
    served.put("two\nlines", payload())
    served.put(KEY, payload(backend_cache_key="x" * VALUE_BYTES))
    assert client.entries() == []
    assert len(caplog.messages) == 2
    assert client.write([LogEntry(KEY, b"\xff")])
    assert served.get(KEY) is None
    assert served.get("two\nlines") is None


def test_without_a_server_it_is_as_if_there_were_no_cache(monkeypatch):
    monkeypatch.delenv("TUNEWRIGHT_SERVER", raising=False)
    assert Backend().get(KEY) is None
    Backend().put(KEY, payload())
    assert list(Backend().list(3)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("TUNEWRIGHT_SERVER", "ftp://x"), ("TUNEWRIGHT_HELION_NAMESPACE", "../x"), ("DEBUG", "true")],
)
def test_settings_that_mean_nothing_are_told_once_and_break_nothing(name, value, monkeypatch, caplog):
    monkeypatch.setenv("TUNEWRIGHT_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    for _ in range(3):
        assert Backend().get(KEY) is None
        Backend().put(KEY, payload())
    assert len(caplog.messages) == 1
    assert "Helion goes on without the log" in caplog.text


@pytest.mark.parametrize("name", NO_SERVERS)
def test_no_server_ends_a_build_or_holds_it_up(name, monkeypatch):
    monkeypatch.setattr(log.LogClient.__init__, "__defaults__", (None, 0.5))
    with planted(NO_SERVERS[name]) as url:
        monkeypatch.setenv("TUNEWRIGHT_SERVER", url)
        started_s = time.monotonic()
        for _ in range(20):  # a kernel each
            one = Backend()
            assert one.get(KEY) is None
            one.put(KEY, payload())
            assert list(one.list(10)) == []
        assert time.monotonic() - started_s < 10  # with room for a busy machine


def test_a_key_without_the_scope_is_as_no_server(served, one, monkeypatch):
    monkeypatch.setenv("TUNEWRIGHT_API_KEY", one.key(KeyScope.JOBS_READ))
    assert Backend().get(KEY) is None


def test_importing_it_imports_next_to_nothing():
    """Helion imports it in each process that compiles."""
    code = (
        "import sys; before = set(sys.modules); from tunewright.integrations.helion import Backend; Backend();"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    paths = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=paths, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"httpx", "rich", "sqlalchemy", "numpy", "onnx", "helion", "torch"} & set(done.stdout.split())
    assert len(done.stdout.split()) < 40


# With Helion


@pytest.fixture
def remote_cache(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("helion")
    from helion.autotuner import remote_cache

    monkeypatch.setenv("HELION_REMOTE_CACHE_BACKEND", "tunewright.integrations.helion.Backend")
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path / "helion"))
    return remote_cache


def make_cache(remote_cache, monkeypatch, tmp_path, machine):
    """A cache of Helion's for a kernel that is made up, on a machine with a folder of its own."""
    from helion.autotuner.base_cache import LooseAutotuneCacheKey

    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path / machine))
    cache = remote_cache.RemoteAutotuneCache.__new__(remote_cache.RemoteAutotuneCache)
    generation = SimpleNamespace(flatten=lambda config: [*config.config["block_sizes"], config.config["num_warps"]])
    spec = SimpleNamespace(create_config_generation=lambda **_: generation)
    cache.kernel = SimpleNamespace(config_spec=spec, backend_cache_key=lambda config: "k")
    cache.autotuner = SimpleNamespace(settings=SimpleNamespace(autotune_search_acf=None))
    cache.key = LooseAutotuneCacheKey(("float32",), (), "c0", "NVIDIA H100", "13.0", "triton", "d1")
    cache._backend = remote_cache._load_remote_backend()
    return cache


def test_helion_takes_it_as_a_backend(remote_cache):
    made = remote_cache._load_remote_backend()
    assert isinstance(made, remote_cache.RemoteCacheBackend)
    assert type(remote_cache._load_remote_backend_if_configured()) is type(made)


def test_what_helion_finds_on_one_machine_it_takes_on_another(remote_cache, served, monkeypatch, tmp_path):
    from helion.autotuner.local_cache import parse_cache_entry
    from helion.runtime.config import Config

    one = make_cache(remote_cache, monkeypatch, tmp_path, "one")
    assert one.get() is None
    one.put(Config(block_sizes=[64, 32], num_warps=8))
    file = one._get_local_cache_path()
    assert served.get(one.key.stable_hash()) == file.read_text()
    two = make_cache(remote_cache, monkeypatch, tmp_path, "two")
    assert two._get_local_cache_path() != file
    assert two.get() == Config(block_sizes=[64, 32], num_warps=8)
    assert two._get_local_cache_path().exists()
    [entry] = map(parse_cache_entry, two._backend.list(max_results=4))
    assert (entry.hardware, entry.flat_config) == ("NVIDIA H100", (64, 32, 8))


def test_helion_searches_where_the_log_has_garbage(remote_cache, served, client, monkeypatch, tmp_path):
    """Helion reads what `get` gives outside of its guard: all that can't be read must be a miss before."""
    one = make_cache(remote_cache, monkeypatch, tmp_path, "one")
    for text in NO_PAYLOADS.values():
        assert client.write([LogEntry(one.key.stable_hash(), text.encode()[:VALUE_BYTES])])
        assert one.get() is None


def test_helion_goes_on_without_a_server(remote_cache, monkeypatch, tmp_path):
    from helion.runtime.config import Config

    monkeypatch.setenv("TUNEWRIGHT_SERVER", "http://127.0.0.1:1")
    one = make_cache(remote_cache, monkeypatch, tmp_path, "one")
    assert one.get() is None
    one.put(Config(block_sizes=[64, 32], num_warps=8))
    assert one.get() == Config(block_sizes=[64, 32], num_warps=8)  # of this machine


@pytest.mark.slow
def test_a_kernel_is_searched_for_once_for_all_machines(served, client, tmp_path):
    """All of Helion, interpreted on the processor."""
    for package in ("torch", "helion", "jax"):
        pytest.importorskip(package)

    def run(machine):
        settings = {
            "HELION_REMOTE_CACHE_BACKEND": "tunewright.integrations.helion.Backend", "HELION_PALLAS_INTERPRET": "1",
            "HELION_CACHE_DIR": str(tmp_path / machine), "PYTHONPATH": ":".join(sys.path),
        }  # fmt: skip
        command = [sys.executable, "-P", str(Path(__file__).with_name("helion_kernel.py"))]
        done = subprocess.run(command, env=os.environ | settings, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "Autotuning complete" in run("one")
    [entry] = client.entries()
    assert is_payload(entry.value.decode())
    told = run("two")
    assert "skipping autotuning" in told
    assert "Autotuning complete" not in told
