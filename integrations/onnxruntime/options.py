"""What a session tells its provider, through ONNX Runtime."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tunewright.graph.numerics import Precision

NAME = "TunewrightExecutionProvider"

OPTIONS_KEY = "options"
"""The provider's option that has all others, as JSON."""

GIVEN_KEY = "given"
"""The option that has the names of weights that the session is given beside the model's file, as JSON."""


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """How groups are run: arguments of `InferenceSession`, and more."""

    threads: int | None = None
    db: str | None = None
    server: str | None = None
    lock: str | None = None
    background: bool = True
    precision: str = Precision.AS_GIVEN
    tune_minutes: float | None = None  # the session is tuned for so long while it runs
    runs: bool = True  # else it is only to be seen which groups there are

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> ProviderOptions:
        return ProviderOptions(**json.loads(text))
