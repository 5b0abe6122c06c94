"""Learned: what was learned before a job, layer upon layer: the base model, and what a database adds to it.

As bytes it can be kept and shipped. A later layer corrects the sum of those before it, so it is small and quick to fit.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .features import VERSION
from .forest import Forest, Members, Values

LARGEST_BYTES = 64 << 20
"""Of a model that is read, unpacked: hundreds of thousands of trials don't need as much."""

UNPACKING_BYTES = 256 << 20
"""Memory for unpacking: what `lzma` writes asks for 10 MiB."""


FORM = 1
"""Of what `Learned.write` writes; it rises when that changes."""


class Unreadable(ValueError):
    """What was kept as a model, and is none to this program: another version of it or of XGBoost has written it."""


class OtherFeatures(Unreadable):
    """A model that learned from features of another version, or is written in another form."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Ranks the schedules of a task: the higher, the faster.

    Trees that rank have a unit of their own: `scale` is log2 of times in it. `reach` predicts, from the features of a
    task's default, log2 of the time of that / `roofline.floor_s`.
    """

    layers: tuple[Forest, ...] = field(repr=False)
    reach: Forest | None = field(repr=False)
    # Both scales are measured on tasks held out; 0.5 is what it is for most models.
    scale: float = field(default=0.5, kw_only=True)
    spread_scale: float = field(default=1.0, kw_only=True)  # deviation of errors, in deviations between members

    def members(self, values: Values) -> Members:
        """The rank by each member [members, points]. A layer of one member adds the same to all."""
        total = self.layers[0].predict(values)
        for layer in self.layers[1:]:
            total = total + layer.predict(values)
        return total

    def with_layer(self, forest: Forest) -> Learned:
        """One more."""
        return replace(self, layers=(*self.layers, forest))

    def on(self, below: Learned) -> Learned:
        """These layers above others, which they were fitted to correct."""
        return replace(below, layers=(*below.layers, *self.layers))

    def contributions(self, values: Values) -> NDArray[np.float32]:
        """What each feature takes off log2 of the time [points, features + 1]: see `Forest.contributions`."""
        parts = [layer.contributions(values) for layer in self.layers]
        return np.asarray(self.scale * np.sum(parts, axis=0), np.float32)

    def write(self) -> bytes:
        """As bytes, compressed."""
        parts = [layer.write() for layer in self.layers] + ([self.reach.write()] if self.reach else [])
        head = {
            "form": FORM,
            "features": VERSION,
            "layers": len(self.layers),
            "scale": self.scale,
            "spread_scale": self.spread_scale,
            "bytes": [len(part) for part in parts],
        }
        return lzma.compress(json.dumps(head).encode() + b"\n" + b"".join(parts))

    @staticmethod
    def read(content: bytes, sha256: str) -> Learned:
        """The inverse of `write`, of bytes with this digest: XGBoost's reader trusts what it reads.

        Raises Unreadable, ValueError for other bytes.
        """
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError(f"the model is not the one with digest {sha256[:12]}")
        try:
            return _parsed(_unpacked(content))
        except OtherFeatures:
            raise
        except (ValueError, KeyError, TypeError, lzma.LZMAError) as error:
            raise Unreadable(f"the model can't be read: {error or type(error).__name__}") from error


def _parsed(content: bytes) -> Learned:
    head, _, rest = content.partition(b"\n")
    data = json.loads(head)
    if (data["form"], data["features"]) != (FORM, VERSION):
        raise OtherFeatures(f"the model is of form {data['form']} with features of version {data['features']}")
    forests = []
    for size in data["bytes"]:
        forests.append(Forest.read(rest[:size]))
        rest = rest[size:]
    layers = int(data["layers"])
    reach = forests[layers] if len(forests) > layers else None
    scales = {name: float(data[name]) for name in ("scale", "spread_scale")}
    return Learned(tuple(forests[:layers]), reach, **scales)


def _unpacked(content: bytes) -> bytes:
    """Raises LZMAError, ValueError for what is cut short or too large."""
    unpacker = lzma.LZMADecompressor(memlimit=UNPACKING_BYTES)
    unpacked = unpacker.decompress(content, LARGEST_BYTES)
    if not unpacker.eof:
        raise ValueError(f"it is cut short, or has more than {LARGEST_BYTES >> 20} MiB")
    return unpacked
