"""Servers that are none: what a client may meet at an address."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Behaviour = Callable[[socket.socket], None]


@contextmanager
def planted(behave: Behaviour) -> Iterator[str]:
    """A server that does this with every connection; its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    open_now: list[socket.socket] = []

    def one(connection):
        with connection, suppress(OSError):
            behave(connection)

    def accept():
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                open_now.append(connection)
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for connection in open_now:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def silent(connection) -> None:
    """Reads until the client gives up."""
    while connection.recv(65536):
        pass


def says(*pieces: bytes) -> Behaviour:
    """Reads a request and sends these pieces."""

    def behave(connection):
        read_request(connection)
        for piece in pieces:
            connection.sendall(piece)

    return behave


def read_request(connection) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l")), 0
    )
    while len(body) < length:
        body += connection.recv(65536)
    return body


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def endless(connection) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")


def trickling(head: bytes) -> Behaviour:
    def behave(connection):
        read_request(connection)
        connection.sendall(head)
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)  # it trickles

    return behave


def cut_off(connection) -> None:
    read_request(connection)
    connection.sendall(http(b"x" * 1000)[:200])
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset


NESTED = b"[" * 100_000

NO_SERVERS: dict[str, Behaviour] = {
    "slow": lambda connection: time.sleep(10),  # and does not even read
    "slow after reading": silent,
    "closes at once": lambda connection: None,
    "garbage": says(os.urandom(4096)),
    "html": says(http(b"<!doctype html><title>router</title><script>alert(1)</script>", "200 OK")),
    "not json": says(http(b"{")),
    "nested": says(http(NESTED)),
    "not utf-8": says(http(b'{"items": "\xff"}')),
    "a list": says(http(b"[]")),
    "null": says(http(b"null")),
    "endless": endless,
    "huge": says(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n", *[b"x" * 65536] * 64),
    "trickling body": trickling(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"),
    "trickling headers": trickling(b"HTTP/1.1 200 OK\r\nX-"),
    "trickling status": trickling(b"HT"),
    "cut off": cut_off,
    "packed": says(http(b"\x1f\x8b" + bytes(100), "200 OK", "Content-Encoding: gzip")),
    "404": says(http(b"", "404 Not Found")),
    "redirect": says(http(b"", "302 Found", "Location: http://127.0.0.1:1/")),
    "500": says(http(b"{}", "500 Internal Server Error")),
    "429": says(http(b"{}", "429 Too Many Requests", "Retry-After: 3600")),
    "no content": says(http(b"", "204 No Content")),
}
