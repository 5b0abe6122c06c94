"""StaticModel: a model of one size with its kernels. Light to import."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tunewright.codegen.runtime.pool import shared_pool
from tunewright.codegen.target import CUDA
from tunewright.graph.ir import TensorType

from .caches import object_cache
from .execution import CompiledModel
from .image import Image
from .image_store import CacheEntry, Coverage
from .maps import as_maps
from .notes import coverage_notes, thread_notes
from .origin import Origin
from .ports import Ports
from .session_model import ReadyModel
from .weight_overrides import WeightOverrides

if TYPE_CHECKING:
    from tunewright.codegen.target import Target
    from tunewright.search_space.schedule import Schedule

    from .device_model import DeviceModel
    from .executable import Executable
    from .stand_in import StandIn
    from .vendor import VendorRunner

SAMPLES, SAMPLE_S = 21, 2e-3
"""Number of samples of the kernels' time, and the seconds of one."""


class StaticModel(ReadyModel):
    """Runs a model at one size, on kernels for it or in the vendor's runtime that takes their place.

    `entry` is what is told of the kernels.
    """

    def __init__(self, kernels: CompiledModel | DeviceModel, entry: CacheEntry) -> None:
        self._kernels, self._entry, self._is_closed = kernels, entry, False
        self._runner: CompiledModel | DeviceModel | VendorRunner = kernels
        self._coverage = replace(entry.coverage, vendor=dict(Counter(kernels.vendor_ops)))
        self._thread_notes = tuple(thread_notes(entry.threads)) if isinstance(kernels, CompiledModel) else ()
        self._ports = Ports(kernels.image.inputs, kernels.image.outputs)
        self._has_maps = any(port.keys for port in kernels.image.outputs)
        self._overrides: WeightOverrides | None = None  # None: weights can't be given
        self._vendor_notes: tuple[str, ...] = ()
        self._vendor_bytes = 0  # what the model takes in a vendor's runtime that runs it, about

    @staticmethod
    def load(target: Target, image: Image, entry: CacheEntry) -> StaticModel:
        """An image on the processor, or on the GPU of this machine."""
        if target.kind != CUDA:
            return StaticModel(CompiledModel(image, shared_pool(entry.threads)), entry)
        from tunewright.codegen.cuda import driver

        from .device_model import DeviceModel

        return StaticModel(DeviceModel(image, driver.driver()), entry)

    @staticmethod
    def of(executable: Executable) -> StaticModel:
        """A compiled model on what it was compiled for."""
        return StaticModel.load(executable.target, executable.image, executable.entry)

    def take_origin(self, origin: Origin, opened: StandIn | None = None) -> None:
        """Take weights that are inputs as well from runs, too; run in the runtime that the model's last job took.

        That may have been `opened` already.
        """
        if self._entry.vendor is not None:
            self.take_vendor(self._entry.vendor, origin.model, origin.dims, opened)
        types = {default.label: default.kind for default in self._entry.defaults}
        if types:
            self._overrides = WeightOverrides(types, partial(_with_weights, origin, self._entry.schedules))
            self._ports = Ports(self._ports.inputs, self._ports.outputs, types)

    def take_vendor(
        self, told: Mapping[str, Any], model: Path | bytes, dims: Mapping[str, int], opened: StandIn | None = None
    ) -> None:
        """Run in the vendor's runtime of a `VendorTime`, here as plain data, where that can be; `notes` tell of it."""
        if not isinstance(self._kernels, CompiledModel):
            return
        from .vendor import VendorModel, taken_vendor

        source = VendorModel(model, dims)
        stand_in, note = taken_vendor(told, source, self._entry.threads, self._kernels.image, opened)
        if stand_in is not None:
            self.run_in(stand_in)
            self._vendor_bytes = source.size_bytes
        self._vendor_notes = (note,)

    def run_in(self, vendor: StandIn) -> None:
        """Run the model in the vendor's runtime; the kernels stand by."""
        from .vendor import VendorRunner

        assert isinstance(self._kernels, CompiledModel)
        self._runner = VendorRunner(vendor, self._kernels)
        self._coverage = replace(self._coverage, runtime=vendor.name)

    # Runs

    def _run_overridden(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any] | None:
        if self._overrides is None or not (weights := self._overrides.among(input_feed)):
            return None
        with self._overrides.model(weights, input_feed) as model:
            return model.run(output_names, input_feed)

    def _results(self, arrays: list[Any]) -> list[Any]:
        """All outputs, with dicts in the place of rows where the model makes dicts."""
        results = self._runner.run(arrays)
        if not self._has_maps:
            return results
        ports = zip(results, self.image.outputs, strict=True)
        return [as_maps(result, port.keys) if port.keys else result for result, port in ports]

    def kernels_s(self, input_feed: Mapping[str, Any]) -> float:
        arrays = self._arrays(input_feed)
        if self._overrides is not None and (weights := self._overrides.among(input_feed)):
            with self._overrides.model(weights, input_feed) as model:
                return model.kernels_s(input_feed)
        [once_s] = self._runner.times_s(arrays, samples=1, repeats=2)
        repeats = max(1, round(SAMPLE_S / max(once_s, 1e-9)))
        return median(self._runner.times_s(arrays, SAMPLES, repeats))

    def kernels_for(self, arrays: Sequence[Any]) -> CompiledModel | None:
        return self._runner if isinstance(self._runner, CompiledModel) else None

    @property
    def ready(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> StaticModel:
        return self

    def close(self) -> None:
        if self._overrides is not None:
            self._overrides.close()
        self._is_closed = True
        self._runner.close()

    # What is to be told

    @property
    def image(self) -> Image:
        """What runs, as plain data."""
        return self._kernels.image

    @property
    def weight_types(self) -> Mapping[str, TensorType]:
        return self._overrides.types if self._overrides is not None else {}

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._vendor_notes, *self._entry.notes, *coverage_notes(self._coverage), *self._thread_notes)

    @property
    def vendor_notes(self) -> tuple[str, ...]:
        return self._vendor_notes

    @property
    def schedules(self) -> dict[str, Schedule]:
        return _schedules(self._entry.schedules)

    def coverage(self) -> Coverage:
        return self._coverage

    @property
    def memory(self) -> Mapping[Hashable, int]:
        own_bytes = self.image.arena_bytes + self._vendor_bytes
        return {**{id(block): block.nbytes for block in self.image.constants}, self: own_bytes}


def _schedules(forms: Mapping[str, Any]) -> dict[str, Schedule]:
    """Schedules of their plain data, by task key."""
    from tunewright.search_space.schedule import Schedule

    return {key: Schedule.from_json(form) for key, form in forms.items()}


def _with_weights(origin: Origin, schedules: Mapping[str, Any], weights: frozenset[str]) -> StaticModel:
    """A model with these weights as inputs. `schedules` are those of the model without."""
    return StaticModel.of(origin.executable(weights, _schedules(schedules), object_cache()))
