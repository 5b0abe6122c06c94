"""WeightOverrides: runs that are given other weights than the model's own. Light to import."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tunewright.codegen.lru_cache import LruCache
from tunewright.graph.ir import TensorType

from ..errors import Refused
from .node_arg import check_array
from .session_model import CLOSED, ReadyModel

MOST_CHOICES = 8
"""Sets of overridden weights whose models are kept compiled."""


class WeightOverrides:
    """The weights that a run may give, `types` by name, and what runs then: see `Origin`.

    For each choice of weights `open_with` opens a model in which they are inputs. Those of the last choices are kept.
    Threads may share it, and take turns.
    """

    def __init__(self, types: Mapping[str, TensorType], open_with: Callable[[frozenset[str]], ReadyModel]) -> None:
        self.types = types
        self._open_with = open_with
        self._models: LruCache[frozenset[str], ReadyModel] = LruCache(MOST_CHOICES, lambda model: model.close())
        self._turn, self._is_closed = threading.Lock(), False

    def among(self, input_feed: Any) -> frozenset[str]:
        """The weights among what a run is given."""
        if not isinstance(input_feed, Mapping):
            return frozenset()
        return frozenset(label for label in self.types if label in input_feed)

    @contextmanager
    def model(self, weights: frozenset[str], input_feed: Mapping[str, Any]) -> Iterator[ReadyModel]:
        """The model in which these weights are inputs, for this thread alone. Raises as `InferenceSession.run`."""
        with self._turn:
            if self._is_closed:
                raise Refused(CLOSED)
            for label in weights:
                check_array(label, input_feed[label], self.types[label])
            yield self._models.get(weights, lambda: self._open_with(weights))

    def close(self) -> None:
        """Unload the code, when a run under way has ended."""
        with self._turn:
            self._is_closed = True
            self._models.clear()
