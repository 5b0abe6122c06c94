"""Models that torch.compile compiles ahead, in a process that is ended where it takes too long."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tunewright.bench.gpus import compile_ahead as ahead
from tunewright.bench.gpus.compile_ahead import compile_ahead
from tunewright.tuner.peers.runtimes import PeerFailed

PROGRAM = """
import threading
from pathlib import Path
import numpy as np
from tunewright.bench.rivals.serving import serve

def compile_model(tell, model, inputs):
    name = Path(model).read_text()
    assert dict(np.load(inputs)).keys() == {"x"}
    if name == "slow":
        threading.Event().wait()
    if name == "wrong":
        raise ValueError("no such op")

serve({"compile_model": compile_model})
"""


@pytest.mark.parametrize(
    ("model", "why"), [(b"good", ""), (b"wrong", "ValueError: no such op"), (b"slow", "not compiled after 1 s")]
)
def test_a_model_is_compiled_or_a_peer_is_missing(monkeypatch, model, why):
    monkeypatch.setattr(ahead, "LIMIT_S", 30.0 if model != b"slow" else 1.0)
    program = [sys.executable, "-P", "-c", PROGRAM]
    if not why:
        compile_ahead(model, {"x": np.ones(3)}, program)
        return
    with pytest.raises(PeerFailed, match=why):
        compile_ahead(model, {"x": np.ones(3)}, program)


def test_without_torch_it_says_so():
    with pytest.raises(PeerFailed, match=r"torch|cupy|CUDA|libcuda"):
        compile_ahead(b"", {"x": np.ones(3)})
