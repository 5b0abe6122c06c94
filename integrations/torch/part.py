"""GraphPart: what sessions run of a graph, with its weights as constants."""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tunewright.tuner import InferenceSession
from tunewright.tuner.errors import Refused, message, refusals
from tunewright.tuner.text import ONNX_RUNTIME, counted

from .arrays import as_array, as_tensor
from .cut import StepModule
from .notes import log, tell
from .onnx_writer import OnnxWriter
from .options import BackendOptions
from .recording import Run, recording

MOST_SETS = 512
"""Sets of weights that have sessions at a time: as many modules that share code."""

MOST_CHANGES = 2
"""Times that a weight may be changed in place before it is taken for an input."""

Stamps = tuple[list[int], list[int]]
"""What changes with the elements of tensors: where each lies, and how often it was written."""


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A session, and the weights that are its constants."""

    session: InferenceSession
    weights: tuple[weakref.ref[Any], ...]
    stamps: Stamps

    def has(self, weights: Sequence[Any]) -> bool:
        """Whether these are the weights, by identity."""
        return all(kept() is given for kept, given in zip(self.weights, weights, strict=True))

    @property
    def is_over(self) -> bool:
        """Whether a weight is gone, so that nobody can run it any more."""
        return any(kept() is None for kept in self.weights)


def stamps_of(tensors: Sequence[Any]) -> Stamps:
    """What tells that they are as they were. None is of inference mode, whose tensors count no writes."""
    return [tensor.data_ptr() for tensor in tensors], [tensor._version for tensor in tensors]  # noqa: SLF001


class GraphPart:
    """Runs a step of a graph by a session, or by PyTorch where none can be had.

    Each set of weights has a session: modules of one class share their compiled code, and weights may be changed. What
    is changed again and again is an input.
    """

    def __init__(self, step: StepModule, writer: OnnxWriter, weights: Sequence[int], options: BackendOptions) -> None:
        self._step, self._writer, self.options = step, writer, options
        self._sessions: OrderedDict[tuple[int, ...], OpenPart] = OrderedDict()  # the last one was run last
        self._opening = threading.RLock()  # of threads that share the part one opens what is missing
        self._changes: Counter[tuple[int, int]] = Counter()  # by number and weight
        self._take_weights(weights)
        self.fault = ""  # why PyTorch runs it
        self._undo = [_inverse(order) for order in step.orders]

    def _take_weights(self, numbers: Iterable[int]) -> None:
        """Take the inputs of these numbers for constants."""
        self._numbers = (*numbers,)
        self._fed = [(n, label) for n, label in enumerate(self._writer.labels) if n not in self._numbers]

    @property
    def session(self) -> InferenceSession | None:
        """The session that was run last; None before the first run, and where PyTorch runs the part."""
        return next(reversed(self._sessions.values())).session if self._sessions else None

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        """The outputs for the inputs, in order."""
        if self.fault:
            return self._by_pytorch(tensors)
        try:
            if (record := recording()) is not None:
                sizes = self._writer.sizes({number: tensors[number].shape for number, _ in self._fed})
                record.add(Run(self, sizes, tensors))
                return self._by_pytorch(tensors)
            with self._opening:
                session, feeds = self._session(tensors), self._feeds(tensors)
            results = session.run(None, feeds)
        except refusals() as error:
            self.leave(message(error))
            return self._by_pytorch(tensors)
        return self._in_order(map(as_tensor, results))

    def _by_pytorch(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        return self._in_order(self._step.module(*tensors))

    def _in_order(self, outputs: Iterable[Any]) -> tuple[Any, ...]:
        """The outputs with their axes as the graph has them, in the order of memory as they are given."""
        pairs = zip(outputs, self._undo, strict=True)
        return tuple(tensor if order is None else tensor.permute(order) for tensor, order in pairs)

    def _feeds(self, tensors: Sequence[Any]) -> dict[str, Any]:
        return {label: as_array(tensors[number]) for number, label in self._fed}

    def _session(self, tensors: Sequence[Any]) -> InferenceSession:
        """The session of these weights, opened where there is none. Hold `_opening`."""
        if untraced := {number for number in self._numbers if tensors[number].is_inference()}:
            tell("weights made in inference mode are inputs, as nobody can see when they are written")
            self._take_weights(number for number in self._numbers if number not in untraced)
        weights = [tensors[number] for number in self._numbers]
        key = (*map(id, weights),)
        known = self._sessions.get(key)
        if known is not None and known.has(weights):
            if known.stamps == stamps_of(weights):
                self._sessions.move_to_end(key)
                return known.session
            self._note_changes(known, weights)
            return self._session(tensors)
        model = self.model(tensors)
        opened = InferenceSession(
            model,
            threads=self.options.threads,
            db=self.options.db,
            server=self.options.server,
            precision=self.options.precision,
            background=self.options.background,
        )
        self._check(opened)
        if isinstance(model, Path):
            weakref.finalize(opened, _drop, model.parent, os.getpid())
        self._keep(key, OpenPart(opened, (*map(weakref.ref, weights),), stamps_of(weights)))
        log.info("opened: %s", self)
        return opened

    def _keep(self, key: tuple[int, ...], part: OpenPart) -> None:
        """Keep a session, and those of weights that are still there."""
        for over in [known for known, kept in self._sessions.items() if kept.is_over]:
            del self._sessions[over]
        self._sessions[key] = part
        if len(self._sessions) > MOST_SETS:
            self._sessions.popitem(last=False)

    def _check(self, session: InferenceSession) -> None:
        """Raises Refused where ONNX's evaluator would run nodes, which is slower than PyTorch."""
        extents = [extent for argument in session.get_inputs() for extent in argument.shape or ()]
        if self.options.background or not all(isinstance(extent, int) for extent in extents):
            return  # nothing is known yet
        coverage = session.coverage()
        if slow := Counter(coverage.fallback) - Counter(coverage.vendor):
            told = ", ".join(f"{count} {op}" for op, count in slow.items())
            raise Refused(f"nodes have neither a kernel nor {ONNX_RUNTIME}: {told}")

    def _note_changes(self, known: OpenPart, weights: Sequence[Any]) -> None:
        """Weights were written: close what has the old ones; what is written often is an input from now on."""
        before, now = (zip(*stamps, strict=True) for stamps in (known.stamps, stamps_of(weights)))
        pairs = zip(zip(self._numbers, weights, strict=True), zip(before, now, strict=True), strict=True)
        changed = [(number, id(weight)) for (number, weight), (old, new) in pairs if old != new]
        self._changes.update(changed)
        often = {number for number, weight in changed if self._changes[number, weight] > MOST_CHANGES}
        if often:
            self._take_weights(number for number in self._numbers if number not in often)
            self._sessions.clear()
        self._sessions.pop((*map(id, weights),), None)

    def model(self, tensors: Sequence[Any]) -> bytes | Path:
        """The part as a model, with the weights among its inputs."""
        return self._writer.model({number: tensors[number] for number in self._numbers}, self._new_folder)

    def _new_folder(self) -> Path:
        """A folder for a model, which is dropped with the session of it, or with the part."""
        folder = Path(mkdtemp(prefix="tunewright-"))
        weakref.finalize(self, _drop, folder, os.getpid())  # at the end of the process too
        return folder

    @property
    def ops(self) -> list[str]:
        """The ops of its nodes."""
        return [str(node.target) for node in self._step.module.graph.nodes if node.op == "call_function"]

    def renew(self) -> None:
        """Open sessions anew, with what the database has by now."""
        with self._opening:
            self._sessions.clear()

    def leave(self, why: str) -> None:
        """Leave the part to PyTorch from now on."""
        self.fault = why
        self.renew()
        tell(f"left to PyTorch: {self}, because {why}")

    def __str__(self) -> str:
        return counted(len(self._step.module.graph.nodes) - len(self._step.inputs) - 1, "node")


def _drop(folder: Path, process: int) -> None:
    """Remove a folder; a fork leaves it to its parent."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _inverse(order: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if order is None else tuple(order.index(axis) for axis in range(len(order)))
