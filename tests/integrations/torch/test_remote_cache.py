"""The remote caches that PyTorch has built in, on the front for clients of Redis."""

from __future__ import annotations

import json
import logging
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("redis")

from torch._inductor import remote_cache

from tunewright.db.logs.logs import LogQuota

from ...api.redis_front import running_front

BEST = {"XBLOCK": 256, "num_warps": 4, "num_stages": 1, "configs_hash": "c3", "time_taken_ms": 12}


@pytest.fixture
def port(one):
    """Of a front."""
    with running_front(one.store, LogQuota()) as found:
        yield found


def test_what_one_process_tuned_another_finds(one, port, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", f"redis://:{one.token}@127.0.0.1:{port}")
    for kind, cache_id in (("RemoteAutotuneCache", "a1" * 32), ("RemoteBundledAutotuneCache", "bundled-autotune-v1")):
        first, second = (remote_cache.create_cache(cache_id, False, "", kind) for _ in range(2))
        assert first.get("b2" * 32) is None
        best = BEST if kind == "RemoteAutotuneCache" else {"cab3.best_config": BEST}
        first.put("b2" * 32, best)
        assert second.get("b2" * 32) == best
    assert len(one.store.logs.list("inductor")) == 2


@pytest.mark.parametrize(
    ("kind", "cache_id"),
    [
        ("RemoteFxGraphCache", "fx-graph-v1"),
        ("RemoteAOTAutogradCache", "autograd-experimental"),
        ("RemoteDynamoPGOCache", "dynamo-pgo"),
    ],
)
def test_pickles_are_neither_kept_nor_found(one, port, kind, cache_id, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", f"redis://:{one.token}@127.0.0.1:{port}")
    cache = remote_cache.create_cache(cache_id, False, "", kind)
    cache.put("b2" * 32, {"data": "gASVAAAA", "time_taken_ms": 1})
    assert cache.get("b2" * 32) is None
    assert one.store.logs.namespaces() == []


@pytest.mark.parametrize("password", ["tw_wrong", ""])
def test_a_key_that_is_none_is_a_cache_that_is_none(port, password, monkeypatch, caplog):
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", f"redis://:{password}@127.0.0.1:{port}")
    cache = remote_cache.create_cache("a1" * 32, False, "", "RemoteAutotuneCache")
    started_s = time.monotonic()
    with caplog.at_level(logging.CRITICAL):
        cache.put("b2" * 32, BEST)
        assert cache.get("b2" * 32) is None
    assert time.monotonic() - started_s < 30


def test_a_server_that_is_away_breaks_nothing(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", "redis://:x@127.0.0.1:1")
    cache = remote_cache.create_cache("a1" * 32, False, "", "RemoteAutotuneCache")
    started_s = time.monotonic()
    for _ in range(20):
        assert cache.get("b2" * 32) is None
        cache.put("b2" * 32, json.loads(json.dumps(BEST)))
    assert time.monotonic() - started_s < 10
