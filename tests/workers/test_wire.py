from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest

from tunewright.codegen.cuda.build import GpuArtifact
from tunewright.codegen.cuda.emit import Launch
from tunewright.codegen.cuda.nvrtc import Usage
from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.ir import microkernel
from tunewright.codegen.ir.ir import Buffer
from tunewright.codegen.ir.tensor_map import TensorMap
from tunewright.codegen.llvm.build import build
from tunewright.search_space.sketches import lower
from tunewright.workers.sandbox.child import LENGTH, BrokenFrame, frame, read, take
from tunewright.workers.wire import TaskCache, artifact_json, candidate_json, identity, read_artifact, read_candidate


def test_candidates_pass(make) -> None:
    for candidate in (make.default(), make.planted("ok")):
        assert read_candidate(json.loads(json.dumps(candidate_json(candidate)))) == candidate


def test_artifacts_pass_with_their_packings(make) -> None:
    candidate = make.default()
    artifact = build(lower(candidate), candidate.target)
    assert artifact.packings, "the test wants a packed constant"
    mapped = {name: replace(p, maps=((0, ((0.5, 1.0), (1.0, -2.0))),)) for name, p in artifact.packings.items()}
    for variant in (artifact, replace(artifact, packings=mapped)):
        assert read_artifact(json.loads(json.dumps(artifact_json(variant)))) == variant


def test_artifacts_pass_with_all_their_objects(make, monkeypatch) -> None:
    monkeypatch.setattr(microkernel, "MIN_STORES", 1)
    candidate = make.default()
    artifact = build(lower(candidate), candidate.target)
    assert len(artifact.objects) > 1
    assert read_artifact(json.loads(json.dumps(artifact_json(artifact)))) == artifact


def test_artifacts_of_gpus_pass_with_their_maps() -> None:
    maps = tuple(TensorMap(name, DType.F16, (3, 40, 64), (2560, 64, 1), (1, 64, 64)) for name in "xw")
    launches = Launch("k_p0", (132, 1, 1), 384, 200_000, maps), Launch("k_p1", (8, 1, 1), 128, 0)
    params = tuple(Buffer(name, (3, 40, 64), DType.F16) for name in "xwy")
    usage = {"k_p0": Usage(168, 0, 0, 0, 0), "k_p1": Usage(32, 0, 0, 0, 0)}
    artifact = GpuArtifact(b"\x7fELF", "ab" * 32, launches, usage, params, (), {})
    data = json.loads(json.dumps(artifact_json(artifact)))
    assert read_artifact(data) == artifact
    other = replace(artifact, launches=(launches[0]._replace(maps=maps[::-1]), launches[1]))
    assert identity(artifact_json(other)) != identity(data), "it is called in another way"


def test_identity_is_the_code_and_how_it_is_called(make) -> None:
    candidate = make.default()
    artifact = build(lower(candidate), candidate.target)
    digest = identity(artifact_json(artifact))
    assert digest == identity(artifact_json(build(lower(candidate), candidate.target)))
    others = [replace(artifact, packings={}), replace(artifact, sha256="0" * 64), replace(artifact, phases=())]
    assert len({digest, *(identity(artifact_json(other)) for other in others)}) == 4


def test_frames_are_taken_one_by_one_as_they_arrive() -> None:
    messages: list[dict[str, Any]] = [{"a": 1}, {"b": "é"}, {}]
    stream = b"".join(map(frame, messages))
    buffer = bytearray()
    frames = []
    for byte in stream:
        buffer.append(byte)
        if (message := take(buffer)) is not None:
            frames.append(message)
    assert frames == messages
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


@pytest.mark.slow
def test_a_task_that_was_read_last_is_not_read_again(make, other_task) -> None:
    last = TaskCache()
    first = read_candidate(candidate_json(make.default()), last)
    assert read_candidate(candidate_json(make.planted("ok")), last).task is first.task
    other = last.read(other_task.to_json())
    assert other == other_task != first.task
    assert last.read(make.task.to_json()) == make.task
