"""What tests of sketches share as fixtures."""

from __future__ import annotations

import pytest

from tunewright.codegen.llvm.build import ObjectCache


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> ObjectCache:
    """Object code: schedules have microkernels in common."""
    return ObjectCache(tmp_path_factory.mktemp("objects"))
