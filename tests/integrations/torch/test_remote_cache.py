"""The remote caches that PyTorch has built in, on the front for clients of Redis."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("redis")

from torch._inductor import remote_cache

from tunewright.api.http.access import KeyCache, RateLimits
from tunewright.api.redis.front import RedisFront
from tunewright.db.logs.logs import LogQuota

BEST = {"XBLOCK": 256, "num_warps": 4, "num_stages": 1, "configs_hash": "c3", "time_taken_ms": 12}


@pytest.fixture
def port(one):
    """Of a front."""
    listening, loop = socket.create_server(("127.0.0.1", 0)), asyncio.new_event_loop()
    rates = RateLimits(100_000, 100_000, 30)
    front = RedisFront(listening, one.store, KeyCache(one.store.keys), rates, LogQuota())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(front.start(), loop).result()
    yield listening.getsockname()[1]
    asyncio.run_coroutine_threadsafe(front.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


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
