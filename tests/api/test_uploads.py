"""Damaged models get a problem document each, and do no harm: a part of `./dev bench uploads`."""

from __future__ import annotations

import gzip

import pytest

from tunewright.bench import mutation, uploads


@pytest.mark.slow
def test_damaged_models_are_answered() -> None:
    report = uploads.run(count=300, seed=11)
    assert not report.faults
    sent = {name: count for name, count in report.answers.items() if name.startswith("send ")}
    assert sum(sent.values()) == 300
    assert sum(count for name, count in report.answers.items() if name.startswith("job ")) == (
        report.answers["send 201"] + report.answers["send 200"]
    )
    for name in ("send 201", "send 422 bad-model", "job 202", "job 422 bad-model"):
        assert report.answers[name] > 10, name
    assert not any("error of the reader" in name for name in report.answers)


def test_damage_follows_from_the_seed() -> None:
    first, other = mutation.Mutations(5), mutation.Mutations(5)
    assert [first.model(n) for n in range(40)] == [other.model(n) for n in range(39, -1, -1)][::-1]
    assert first.model(1) != mutation.Mutations(6).model(1)
    assert first.model(100) in first.corpus


def test_messages_are_taken_apart_and_put_together() -> None:
    for data in mutation.corpus():
        assert mutation.unparse(mutation.parse(data)) == data
    for data in (b"\xff", b"\x0a\x05ab", b"\x0b", b"\x00\x01", b"\x08" + b"\xff" * 20):
        with pytest.raises(mutation.MalformedMessage):
            mutation.parse(data)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/models"),
        ("PUT", f"/v1/models/{'0' * 64}"),
        ("POST", "/v1/records"),
        ("POST", "/v1/jobs"),
        ("POST", "/v1/lookups"),
        ("PATCH", "/v1/jobs/1"),
        ("POST", "/v1/nothing"),
    ],
)
def test_packed_bodies_are_refused(client, kit, method, path):
    for coding in ("gzip", "br", "GZIP, identity", "nonsense"):
        answer = client.request(method, path, content=gzip.compress(b"[8]"), headers={"Content-Encoding": coding})
        problem = kit.problem(answer, "unsupported-encoding", 415)
        assert repr(coding) in problem["detail"]
        assert answer.headers["accept-encoding"] == "identity"
    plain = client.request(method, path, content=b"[8]", headers={"Content-Encoding": "identity"})
    assert plain.status_code != 415
