"""Opening: how a session comes to what it runs. Light to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tunewright.codegen.host import detect
from tunewright.codegen.runtime.library import pool_functions
from tunewright.codegen.runtime.memory import trim_compiler, trim_heap
from tunewright.codegen.target import CUDA

from ..arguments import check_dims, sizes_of
from ..settings import settings
from ..targets import local_target
from .caches import image_store, object_cache
from .image_store import CacheEntry, ImageStore, compiler_of, session_key
from .origin import Origin
from .session_model import SessionModel
from .static_model import StaticModel

if TYPE_CHECKING:
    from tunewright.workers.sandbox.process import Child

    from .compilation import Compiled
    from .executable import Executable
    from .open_model import OpenModel
    from .stand_in import StandIn


class Opening:
    """Opens the model of an origin: from its image on disk, or else from the model, now or in the background.

    `model` is that of the origin as it was given, by which errors name it. `process` compiles in the background, where
    there is one that is not for this model alone; then something else answers meanwhile.
    """

    def __init__(self, origin: Origin, model: Path | str | bytes, process: Child | None = None) -> None:
        self._origin, self._model, self._process = origin, model, process
        self._images = image_store()
        self._key: str | None = None  # of an image for `_target`; None where none may be kept
        if self._images is not None and origin.server is None and (origin.db is None or origin.lock is None):
            self._target = local_target(origin.target, origin.threads)
            db = origin.db or settings().db
            self._key = session_key(origin.model, origin.dims, self._target, db, origin.lock, origin.precision)
            trim_compiler()  # what loading it took

    def open(self, *, background: bool) -> SessionModel:
        """What the session runs. With `background` it may have no kernels yet."""
        if (model := self._from_image()) is not None:
            return model
        origin = self._origin
        is_there = isinstance(origin.model, bytes) or origin.state is not None
        is_early = background and origin.target != CUDA  # a GPU's model is ready when the session is there
        if is_early and self._images is not None and is_there and origin.has_one_place:
            return self._in_background(self._images)
        return self._from_model()

    def _from_image(self) -> StaticModel | None:
        """The model on the stored image of its key, if there is one."""
        if self._images is None or self._key is None:
            return None
        entry = self._images.entry(self._key)
        stored = self._images.get(entry.image, compiler_of(self._target)) if entry is not None else None
        if entry is None or stored is None:
            return None
        if stored.pool_code:
            pool_functions(stored.pool_code)
        model = StaticModel.load(self._target, stored.image, entry)
        model.take_origin(self._origin)
        return model

    def _from_model(self) -> SessionModel:
        """The model compiled here; with dimensions that stay open where such are left."""
        from tunewright.graph.onnx_import import OpenDimensionsError

        try:
            executable = self._executable()
        except OpenDimensionsError:
            open_model = self._at_any_size()
            if open_model is None:
                raise
            return open_model
        model = StaticModel.of(executable)
        self._settle(model, executable.entry)
        trim_heap()  # the model as it was read
        trim_compiler()
        return model

    def _executable(self) -> Executable:
        from ..lookup.source import ScheduleSource
        from .executable import open_executable

        origin = self._origin
        source = ScheduleSource(origin.db, origin.server, origin.lock)
        return open_executable(
            self._model,
            source,
            origin.dims,
            origin.threads,
            origin.target,
            origin.precision,
            object_cache(),
            self._images,
        )

    def _in_background(self, images: ImageStore) -> SessionModel:
        from .compilation import Compilation
        from .pending_model import PendingModel
        from .stand_in import StandIn

        origin, stand_in = self._origin, None
        if self._process is None:
            if len(sizes_of(origin.dims)) == len(origin.dims):  # no inputs are bound
                stand_in = StandIn.of(origin.model, origin.dims, detect(origin.threads).threads)
            if stand_in is None and (open_model := self._at_any_size()) is not None:
                return open_model
        compilation = Compilation(origin, images, self._executable, self._process)
        return PendingModel(compilation, stand_in, self._finish)

    def _finish(self, compiled: Compiled, stand_in: StandIn | None) -> StaticModel:
        """The model once it is compiled in the background."""
        model = StaticModel(compiled.model, compiled.entry)
        self._settle(model, compiled.entry, stand_in)
        return model

    def _settle(self, model: StaticModel, entry: CacheEntry, stand_in: StandIn | None = None) -> None:
        """Keep what other weights take, and what a session of the same model is to start from."""
        model.take_origin(self._origin, stand_in)
        if self._images is not None and self._key is not None and entry.image:
            self._images.put_entry(self._key, entry)

    def _at_any_size(self) -> OpenModel | None:
        """The model with dimensions that stay open; None where there are none, or a lock file binds them."""
        origin = self._origin
        if origin.lock is not None:
            return None
        from .open_model import OpenModel

        def open_at(dims: Mapping[str, int], process: Child) -> SessionModel:
            origin.check_unchanged()
            sized = replace(origin, dims=check_dims({**origin.dims, **dims}))
            return Opening(sized, origin.model, process).open(background=True)

        return OpenModel.of(origin, open_at)
