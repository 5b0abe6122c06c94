"""LayeredModel: forests fitted one above the other: the base model, and what a database's trials add to it.

As bytes it can be kept and shipped. A later layer corrects the sum of those before it, so it is small and quick to fit.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tunewright.search_space.space import Space

from .features import version_of
from .forest import Forest, Growth, Members, Values
from .labels import TrainingData, sketch_mark
from .model import Trials

MAX_BYTES = 64 << 20
"""Largest model that is read, decompressed: hundreds of thousands of trials don't need as much."""

MAX_MEMORY_BYTES = 256 << 20
"""Most memory for decompression: what `lzma` writes asks for 10 MiB."""


FORM, UBJSON_FORM = 2, 1
"""The form that `write` writes, which rises when that changes, and the one of XGBoost's UBJSON before it."""


ALONE = Growth(rounds=100, max_depth=5, eta=0.1, colsample_bytree=0.3)
"""The growth of a model with nothing below it."""

ABOVE = Growth(rounds=60, max_depth=4, eta=0.06, colsample_bytree=0.3, min_child_weight=10.0)
"""The growth of a layer above a model. The trials of a few tasks say little of others, so it is slow.

A model that learned from half of the base model's tasks orders 87.4% of the pairs of 349 tasks rightly; a layer of 60
further tasks makes that 87.0%, one of 250 tasks 87.6%. With the growth ALONE it is 86.0% and 87.5%.
"""

MEMBERS = 3
"""The members of a model with nothing below it; a layer has as many as the model below."""

FEWEST = 50
"""Least comparable trials to learn from."""


class UnreadableModel(ValueError):
    """Bytes that can't be read as a model: another version of Tunewright may have written them."""


class OtherFeatures(UnreadableModel):
    """A model that learned from features of another version, or is written in another form."""


@dataclass(frozen=True, slots=True)
class LayeredModel:
    """Ranks the schedules of a task: the higher, the faster.

    Trees that rank have a unit of their own: `scale` is log2 of times in it. `reach` predicts, from the features of a
    task's default, log2 of the time of that / `roofline.floor_s`.
    """

    layers: tuple[Forest, ...] = field(repr=False)
    reach: Forest | None = field(repr=False)
    # Both scales are measured on tasks held out; 0.5 is what it is for most models.
    scale: float = field(default=0.5, kw_only=True)
    spread_scale: float = field(default=1.0, kw_only=True)  # deviation of errors, in deviations between members
    kind: str = field(default="cpu", kw_only=True)  # of the targets whose features it knows
    # Of the trials that it learned from, see `sketch_mark`; None: not noted, as models of processors have seen all.
    sketches: frozenset[str] | None = field(default=None, kw_only=True)

    def members(self, values: Values) -> Members:
        """The rank by each member [members, points]. A layer of one member adds the same to all."""
        total = self.layers[0].predict(values)
        for layer in self.layers[1:]:
            total = total + layer.predict(values)
        return total

    def knows(self, space: Space) -> bool:
        """Whether it has learned from trials of a sketch. What it says of others is a guess."""
        return self.sketches is None or sketch_mark(space) in self.sketches

    def with_layer(self, forest: Forest) -> LayeredModel:
        """The model with a layer above the others."""
        return replace(self, layers=(*self.layers, forest))

    def on(self, below: LayeredModel) -> LayeredModel:
        """The model `below` with these layers above it, which were fitted to correct it."""
        sketches = None
        if self.sketches is not None and below.sketches is not None:
            sketches = self.sketches | below.sketches
        return replace(below, layers=(*below.layers, *self.layers), sketches=sketches)

    def contributions(self, values: Values) -> NDArray[np.float32]:
        """The part of each feature in log2 of the speed [points, features + 1]: see `Forest.contributions`."""
        parts = [layer.contributions(values) for layer in self.layers]
        return np.asarray(self.scale * np.sum(parts, axis=0), np.float32)

    def write(self) -> bytes:
        """The model as compressed bytes."""
        parts = [layer.write() for layer in self.layers] + ([self.reach.write()] if self.reach else [])
        head = {
            "form": FORM,
            "features": version_of(self.kind),
            "layers": len(self.layers),
            "scale": self.scale,
            "spread_scale": self.spread_scale,
            "bytes": [len(part) for part in parts],
            **({"sketches": sorted(self.sketches)} if self.sketches is not None else {}),
        }
        return lzma.compress(json.dumps(head).encode() + b"\n" + b"".join(parts))

    @staticmethod
    def read(content: bytes, sha256: str, kind: str = "cpu") -> LayeredModel:
        """The inverse of `write`, of bytes with this digest, as XGBoost trusts what it reads, for a kind of target.

        Raises UnreadableModel, and ValueError for other bytes.
        """
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError(f"the model is not the one with digest {sha256[:12]}")
        try:
            return _parse(_decompress(content), kind)
        except OtherFeatures:
            raise
        except (ValueError, KeyError, TypeError, lzma.LZMAError) as error:
            raise UnreadableModel(f"the model can't be read: {error or type(error).__name__}") from error


def fit_layer(trials: Sequence[Trials], below: LayeredModel | None) -> LayeredModel | None:
    """Fit a model to trials, or a layer above the model `below`; None where the trials are too few or all alike."""
    data = TrainingData.of(trials)
    if len(data.speeds) < FEWEST or not data.is_informative:
        return None
    before = below.members(data.values) if below else None
    growth, members = (ALONE, MEMBERS) if before is None else (ABOVE, len(before))
    forest = data.forest(growth, members=members, seed=0, before=before)
    return LayeredModel((forest,), None, kind=data.kind, sketches=data.sketches)


def _parse(content: bytes, kind: str) -> LayeredModel:
    head, _, rest = content.partition(b"\n")
    data = json.loads(head)
    if data["form"] not in (FORM, UBJSON_FORM) or data["features"] != version_of(kind):
        raise OtherFeatures(f"the model is of form {data['form']} with features of version {data['features']}")
    read = Forest.read_ubjson if data["form"] == UBJSON_FORM else Forest.read
    forests = []
    for size in data["bytes"]:
        forests.append(read(rest[:size]))
        rest = rest[size:]
    layers = int(data["layers"])
    reach = forests[layers] if len(forests) > layers else None
    scales = {name: float(data[name]) for name in ("scale", "spread_scale")}
    sketches = frozenset(map(str, data["sketches"])) if "sketches" in data else None
    return LayeredModel(tuple(forests[:layers]), reach, **scales, kind=kind, sketches=sketches)


def _decompress(content: bytes) -> bytes:
    """Raises LZMAError, and ValueError for bytes that are cut short or too large."""
    unpacker = lzma.LZMADecompressor(memlimit=MAX_MEMORY_BYTES)
    unpacked = unpacker.decompress(content, MAX_BYTES)
    if not unpacker.eof:
        raise ValueError(f"it is cut short, or has more than {MAX_BYTES >> 20} MiB")
    return unpacked
