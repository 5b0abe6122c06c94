"""SessionModel: what a session runs. Light to import."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tunewright.graph.ir import TensorType

from ..errors import Refused
from .execution import CompiledModel
from .image_store import Coverage
from .node_arg import Port
from .ports import Ports

if TYPE_CHECKING:
    from tunewright.search_space.schedule import Schedule

CLOSED = "the session is closed; open the model again to run it"


class SessionModel(Protocol):
    """What a session runs: a model of one size, whose kernels may still be compiled, or one of any size.

    Threads may share it. Methods raise what those of `InferenceSession` raise.
    """

    _is_closed: bool

    @property
    def inputs(self) -> Sequence[Port] | None:
        """The inputs; None where only the kernels tell them."""
        ...

    @property
    def outputs(self) -> Sequence[Port] | None:
        """The outputs; None where only the kernels tell them."""
        ...

    @property
    def ready(self) -> bool:
        """Whether runs go through the kernels."""
        ...

    def wait(self, timeout_s: float | None = None) -> ReadyModel | None:
        """What runs from when this is ready, for which it waits; None where it is not ready in time."""
        ...

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any] | None:
        """The outputs of that name, in that order; all of them for None. None where only the kernels tell them."""
        ...

    def close(self) -> None:
        """Unload the code; what compiles it in the background ends."""
        ...

    def ready_model(self) -> ReadyModel:
        """What runs from when this is ready, for which it waits."""
        model = self.wait()
        assert model is not None  # it waits for ever
        return model

    def check_open(self) -> None:
        """Raises Refused where the session is closed."""
        if self._is_closed:
            raise Refused(CLOSED)

    def compile_at(self, dims: Mapping[str, int]) -> None:
        """Compile kernels for a size of the open dimensions."""
        raise Refused("the session is of one size: no dimensions are open")

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The sizes of open dimensions that have kernels, by name, the one that was run last at the end."""
        return []

    def kernels_for(self, arrays: Sequence[Any]) -> CompiledModel | None:
        """What runs at the sizes of these inputs; None where there is nothing yet, or no processor's kernels run."""
        return None

    @property
    def memory(self) -> Mapping[Hashable, int]:
        """Bytes of the blocks of memory that it holds, by what tells them apart; none where that is not known."""
        return {}

    @property
    def vendor_notes(self) -> tuple[str, ...]:
        """The notes on the vendor's runtime that the model's last job took."""
        return ()


class ReadyModel(SessionModel, Protocol):
    """What a session runs once it is ready."""

    _ports: Ports

    @property
    def inputs(self) -> Sequence[Port]:
        return self._ports.inputs

    @property
    def outputs(self) -> Sequence[Port]:
        return self._ports.outputs

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """The outputs of that name, in that order; all of them for None."""
        arrays = self._arrays(input_feed)
        if output_names is None and len(input_feed) == len(arrays):
            return self._results(arrays)
        overridden = self._run_overridden(output_names, input_feed)
        if overridden is not None:
            return overridden
        numbers = self._ports.numbers(input_feed, output_names)
        results = self._results(arrays)
        return [results[number] for number in numbers]

    def _arrays(self, input_feed: Mapping[str, Any]) -> list[Any]:
        """The inputs, as the model wants them."""
        self.check_open()
        return self._ports.arrays(input_feed)

    def _results(self, arrays: list[Any]) -> list[Any]:
        """All outputs, for values of the inputs in order."""
        ...

    def _run_overridden(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any] | None:
        """The outputs with the weights that the feed has; None where it has none."""
        return None

    def kernels_s(self, input_feed: Mapping[str, Any]) -> float:
        """Seconds of a run that its kernels take."""
        ...

    def coverage(self) -> Coverage:
        """The coverage of the model by native and by tuned kernels."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What keeps it from being as fast as it can be, a line each."""
        ...

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedule that each task runs on, by task key."""
        ...

    @property
    def weight_types(self) -> Mapping[str, TensorType]:
        """The weights that runs may give in the place of the model's own, by name."""
        return {}
