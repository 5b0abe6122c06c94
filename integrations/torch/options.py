"""What `torch.compile` is told with `options`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from tunewright.graph.numerics import Precision
from tunewright.tuner.arguments import check_flag, check_precision, check_source, check_threads
from tunewright.tuner.errors import Refused
from tunewright.tuner.lookup.source import ScheduleSource


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The arguments of the sessions that run a graph, which are those of `InferenceSession`."""

    threads: int | None = None  # None: as many as PyTorch uses
    db: str | None = None
    server: str | None = None
    precision: str = Precision.AS_GIVEN
    background: bool = False

    @staticmethod
    def read(given: Mapping[str, Any]) -> BackendOptions:
        """The options of these names. Raises Refused for others, and for values that mean nothing; StoreError for a
        database that is not there, or can't be used.
        """
        known = [field.name for field in fields(BackendOptions)]
        for name in given:
            if name not in known:
                raise Refused(f"no option is called {name!r}; there are {', '.join(known)}")
        options = BackendOptions(**given)
        check_source(options.db, options.server)
        if options.db is not None and options.server is not None:
            raise Refused("schedules come from one place: give one of db and server")
        ScheduleSource(options.db, options.server).check()
        check_precision(options.precision)
        check_flag("background", options.background)
        check_threads(options.threads)
        return options

    def with_threads(self) -> BackendOptions:
        """The same, with as many threads as PyTorch uses where none are given."""
        return self if self.threads is not None else replace(self, threads=torch.get_num_threads())
