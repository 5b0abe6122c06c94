"""The front for clients of Redis, with a real client of it, and with bytes that no client sends."""

import asyncio
import json
import pickle
import socket

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from tunewright.api.redis.resp import PART_BYTES, RespError, read_command
from tunewright.db.access import KeyScope
from tunewright.db.errors import Unreachable
from tunewright.db.logs.logs import LogQuota

from .redis_front import running_front

INDUCTOR = f"pt2:{'a1' * 32}::{'b2' * 32}:c1"
BUNDLE = f"pt2:bundled-autotune-v1::{'b2' * 32}:c1"
TRITON = f"triton:{'A2' * 26}:matmul_kernel.autotune.json"
CHOICE = {"XBLOCK": 256, "num_warps": 4, "num_stages": 3, "configs_hash": "c3", "found_by_coordesc": False}
BEST = json.dumps(CHOICE).encode()
CHOICES = json.dumps({"cab3.best_config": CHOICE}).encode()


def result(median_ms=1.0, **fields) -> bytes:
    """What Triton's autotuner writes of one config."""
    config = {"kwargs": {"BLOCK": 128}, "num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None}
    config |= {"pre_hook": None, "ir_override": None}
    timings = [[config | fields, [median_ms, 0.5, float("inf")]]]
    return json.dumps({"key": [1, "fp32"], "configs_timings": timings}).encode()


@pytest.fixture
def front(one):
    """A front of the service's log: its port."""
    with running_front(one.store, LogQuota(entries=50)) as port:
        yield port


@pytest.fixture
def connect(front):
    """A function that makes a client with a password."""
    made = []

    def connect(password, **options):
        options = {"host": "127.0.0.1", "port": front, "password": password, "retry": Retry(NoBackoff(), 0)} | options
        made.append(redis.Redis(**options))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def client(one, connect):
    return connect(one.token)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_finds_what_another_set(one, connect, protocol):
    client = connect(one.token, protocol=protocol)
    assert client.ping()
    assert client.get(INDUCTOR) is None
    assert client.set(INDUCTOR, BEST, ex=60)
    assert connect(one.token).get(INDUCTOR) == BEST
    assert client.mget([INDUCTOR, BUNDLE, TRITON, "x"]) == [BEST, None, None, None]
    [entry] = one.store.logs.list("inductor")
    assert (entry.key, entry.value) == (INDUCTOR, BEST)


def test_the_newest_is_found(client):
    for number in (1, 2, 1, 3):
        client.set(TRITON, result(number))
        assert client.get(TRITON) == result(number)


def test_a_release_that_is_promoted_is_what_is_found(one, client):
    client.set(TRITON, result(1))
    http = one.client()
    assert http.post("/v1/logs/triton:releases", json={"name": "one"}).status_code == 200
    client.set(TRITON, result(2))
    assert http.post("/v1/logs/triton:promote", json={"release": "one"}).status_code == 200
    assert client.get(TRITON) == result(1)
    client.set(TRITON, result(3))
    assert client.mget([TRITON]) == [result(1)]
    http.post("/v1/logs/triton:promote", json={"release": None})
    assert client.get(TRITON) == result(3)


def test_an_address_may_have_the_key(one, front):
    with redis.Redis.from_url(f"redis://:{one.token}@127.0.0.1:{front}") as client:
        client.set(BUNDLE, CHOICES)
        assert client.get(BUNDLE) == CHOICES


def test_a_key_may_have_the_key(one, connect):
    """Of clients that have no setting for a password."""
    client = connect(None)
    client.set(f"{one.token}:{TRITON}", result())
    assert client.mget([f"{one.token}:{TRITON}"]) == [result()]
    assert [entry.key for entry in one.store.logs.list("triton")] == [TRITON]
    with pytest.raises(redis.exceptions.AuthenticationError):
        client.get(TRITON)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"pt2:fx-graph-v1::{'b2' * 32}:c1", BEST),
        (f"pt2:autograd-experimental::{'b2' * 32}:c1", BEST),
        (f"pt2:dynamo-pgo::{'b2' * 32}:c1", BEST),
        (f"triton:{'A2' * 26}:__triton_launcher.so", b"\x7fELF"),
        (f"triton:{'A2' * 26}:../../x.autotune.json", BEST),
        ("other", BEST),
        (b"\xff\x00", BEST),
        (BUNDLE, json.dumps({"/home/user/.ssh/x.best_config": CHOICE}).encode()),
        (BUNDLE, json.dumps({"../x.best_config": CHOICE}).encode()),
        (BUNDLE, BEST),
        (INDUCTOR, json.dumps({"configs_hash": "c3"}).encode()),
        (INDUCTOR, json.dumps(CHOICE | {"num_warps": 7}).encode()),
        (INDUCTOR, json.dumps(CHOICE | {"XBLOCK": "3"}).encode()),
        (TRITON, b"{}"),
        (TRITON, result(ir_override="/tmp/x.ptx")),
        (TRITON, result(num_warps=-7)),
        (TRITON, result(evil=1)),
        (TRITON, result(-1.0)),
        (TRITON, result(10**400)),
        (INDUCTOR, pickle.dumps({"a": 1})),
        (INDUCTOR, b"[1]"),
        (INDUCTOR, b"<b>"),
        (INDUCTOR, b"[" * 10_000),
        (INDUCTOR, json.dumps({"x": "y" * (64 << 10)}).encode()),
    ],
)
def test_what_may_be_code_or_is_no_choice_is_forgotten(one, client, key, value):
    assert client.set(key, value)
    assert client.get(key) is None
    assert one.store.logs.namespaces() == []


def test_keys_need_their_scope_and_namespace(one, connect):
    _, triton = one.store.keys.create("t", [KeyScope.LOGS_READ, KeyScope.LOGS_WRITE], namespaces=["triton"])
    reader = one.key(KeyScope.LOGS_READ)
    connect(triton).set(TRITON, result())
    assert connect(reader).get(TRITON) == result()
    for token, ask in (
        (triton, lambda client: client.get(INDUCTOR)),
        (triton, lambda client: client.set(INDUCTOR, BEST)),
        (reader, lambda client: client.set(TRITON, result())),
        (one.key(KeyScope.JOBS_READ), lambda client: client.get(TRITON)),
        ("tw_wrong", lambda client: client.get(TRITON)),
        (None, lambda client: client.get(TRITON)),
        (None, lambda client: client.set("other", BEST)),
    ):
        with pytest.raises(redis.exceptions.ConnectionError):  # which clients take for no server, and go on
            ask(connect(token))


def test_guessing_is_limited(connect, one):
    def is_shut_out():
        with pytest.raises(redis.exceptions.AuthenticationError):
            connect("tw_wrong").ping()
        try:
            connect(one.key()).ping()  # a new one: those that were checked before go on
        except redis.exceptions.AuthenticationError as error:
            return "no key can be checked now" in str(error)
        return False

    assert any(is_shut_out() for _ in range(60)), "30 guesses a minute, and some more while that takes its time"


def test_a_database_that_is_away_is_an_empty_cache(one, client, monkeypatch):
    client.set(INDUCTOR, BEST)

    def away(*_, **__):
        raise Unreachable("the database is away")

    monkeypatch.setattr(one.store.logs, "look_up", away)
    monkeypatch.setattr(one.store.logs, "write", away)
    assert client.get(INDUCTOR) is None
    assert client.set(INDUCTOR, BEST)


def test_a_full_namespace_breaks_nothing(client):
    for number in range(60):
        assert client.set(f"pt2:{number:064x}::{'b2' * 32}:c1", BEST)
    assert client.get(f"pt2:{49:064x}::{'b2' * 32}:c1") == BEST
    assert client.get(f"pt2:{50:064x}::{'b2' * 32}:c1") is None


def test_unknown_commands_are_errors(client):
    for command in (("FLUSHALL",), ("EVAL", "x", "0"), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("GET",), ("SET", "k")):
        with pytest.raises(redis.exceptions.ResponseError):
            client.execute_command(*command)
    assert client.ping()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"*-1\r\n",
        b"*99999999999\r\n",
        b"*2000\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$9999999\r\n",
        b"*1\r\n$1\r\nabc\r\n",
        b"*1\r\n+x\r\n",
        b"x" * 100_000,
        b"*" + b"1" * 100 + b"\r\n",
    ],
)
def test_what_is_no_command_ends_the_connection(front, sent):
    with socket.create_connection(("127.0.0.1", front), timeout=30) as connection:
        connection.sendall(sent)
        assert connection.recv(1000).startswith(b"-ERR Protocol error")
        assert connection.recv(1000) == b""


def test_no_connection_holds_more_than_a_command(front):
    with socket.create_connection(("127.0.0.1", front), timeout=30) as connection:
        connection.sendall(b"*9\r\n$%d\r\n" % PART_BYTES)
        assert b"a command of more than 131072 bytes" in connection.recv(1000)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_to_an_end(data):
    async def read():
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        try:
            while await read_command(reader) is not None:
                pass
        except RespError:
            pass

    asyncio.run(read())
