from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest

from tunewright.codegen import microkernel
from tunewright.codegen.build import build
from tunewright.search_space.sketches import lower
from tunewright.workers.frames import LENGTH, BrokenFrame, frame, read, take
from tunewright.workers.wire import LastTask, artifact_json, candidate_json, identity, read_artifact, read_candidate


def test_candidates_pass(make) -> None:
    for candidate in (make.default(), make.planted("ok")):
        assert read_candidate(json.loads(json.dumps(candidate_json(candidate)))) == candidate


def test_artifacts_pass_with_their_packings(make) -> None:
    candidate = make.default()
    artifact = build(lower(candidate), candidate.target)
    assert artifact.packings, "the test wants a packed constant"
    mapped = {name: replace(p, maps=((0, ((0.5, 1.0), (1.0, -2.0))),)) for name, p in artifact.packings.items()}
    for one in (artifact, replace(artifact, packings=mapped)):
        assert read_artifact(json.loads(json.dumps(artifact_json(one)))) == one


def test_artifacts_pass_with_all_their_objects(make, monkeypatch) -> None:
    monkeypatch.setattr(microkernel, "WORTH", 1)
    candidate = make.default()
    artifact = build(lower(candidate), candidate.target)
    assert len(artifact.objects) > 1
    assert read_artifact(json.loads(json.dumps(artifact_json(artifact)))) == artifact


def test_identity_is_the_code_and_how_it_is_called(make) -> None:
    candidate = make.default()
    artifact = build(lower(candidate), candidate.target)
    one = identity(artifact_json(artifact))
    assert one == identity(artifact_json(build(lower(candidate), candidate.target)))
    others = [replace(artifact, packings={}), replace(artifact, sha256="0" * 64), replace(artifact, phases=())]
    assert len({one, *(identity(artifact_json(other)) for other in others)}) == 4


def test_frames_are_taken_one_by_one_as_they_arrive() -> None:
    messages: list[dict[str, Any]] = [{"a": 1}, {"b": "é"}, {}]
    stream = b"".join(map(frame, messages))
    buffer = bytearray()
    found = []
    for byte in stream:
        buffer.append(byte)
        if (message := take(buffer)) is not None:
            found.append(message)
    assert found == messages
    assert not buffer
    reader = BytesIO(stream)
    assert [read(reader) for _ in range(4)] == [*messages, None]


@pytest.mark.parametrize("body", [b"no json", b"[1]", b"\xff\xfe"])
def test_what_is_no_frame_is_refused(body: bytes) -> None:
    with pytest.raises(BrokenFrame):
        take(bytearray(LENGTH.pack(len(body)) + body))
    with pytest.raises(BrokenFrame):
        take(bytearray(b"\xff\xff\xff\xff{}"))


def test_a_stream_that_ends_early_has_ended() -> None:
    assert read(BytesIO(frame({"a": 1})[:-1])) is None


def test_a_task_that_was_read_last_is_not_read_again(make, other_task) -> None:
    last = LastTask()
    first = read_candidate(candidate_json(make.default()), last)
    assert read_candidate(candidate_json(make.planted("ok")), last).task is first.task
    other = last.read(other_task.to_json())
    assert other == other_task != first.task
    assert last.read(make.task.to_json()) == make.task
