"""What a connection may send before anybody looks at its key."""

import socket

import pytest

from tunewright.api.http import protocol


def answered(line: socket.socket) -> bytes:
    """All that comes until the service ends the connection."""
    line.settimeout(10)
    said = b""
    try:
        while piece := line.recv(1 << 16):
            said += piece
    except ConnectionResetError:
        pass
    return said


def flood(line: socket.socket, piece: bytes, times: int = 2000) -> int:
    """How many bytes the service took."""
    taken = 0
    try:
        for _ in range(times):
            line.sendall(piece)
            taken += len(piece)
    except OSError:
        pass
    return taken


@pytest.mark.parametrize(
    "head",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;x=",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
    ids=["path", "header", "extension of a chunk", "trailer"],
)
def test_heads_without_end_are_cut_off(one, head):
    with one.line() as line:
        line.sendall(head)
        assert flood(line, b"x" * 50_000) < 20_000_000  # most of it lies in the system's buffers


def test_headers_without_end_are_cut_off(one, client):
    with one.line() as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        assert flood(line, b"a: " + b"x" * 1000 + b"\r\n", 50_000) < 20_000_000
    assert client.get("/v1/jobs", headers={f"x-{n}": "y" * 1000 for n in range(40)}).status_code == 200


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /livez HTT"])
def test_heads_that_do_not_come_are_not_waited_for(one, begun, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    with one.line() as line:
        line.sendall(begun)
        said = answered(line)
    assert said.count(b"HTTP/1.1 200") == begun.count(b"\r\n\r\n")


def test_bodies_that_nobody_reads_are_not_waited_for(one, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.3)
    with one.line() as line:
        line.sendall(b"PUT /v1/models/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
        assert answered(line).startswith(b"HTTP/1.1 401")


def test_slow_answers_and_idle_streams_stay(one, monkeypatch, kit):
    monkeypatch.setattr(protocol, "HEAD_S", 0.1)
    model = kit.send(one.client(), 8)
    kit.enlist(one.store, kit.target())
    client = one.client()
    job = client.post("/v1/jobs", json={"model": model}).json()["id"]
    with client.stream("GET", f"/v1/jobs/{job}/events") as answer:
        lines = answer.iter_lines()
        assert next(lines)
        with one.line() as silent:
            assert answered(silent) == b""  # so long that it would be cut off too
        one.store.jobs.cancel(job)
        assert any("cancelled" in line for line in lines)
