"""What the tests of deploy/ share: its files, and the names of the repository that they must agree with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def deploy() -> Path:
    return ROOT / "deploy"


@pytest.fixture(scope="session")
def version() -> str:
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return found


@pytest.fixture(scope="session")
def ray_version() -> str:
    found = re.search(r"(?m)^ray==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert found
    return found[1]


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="session")
def rendered() -> dict[str, list[dict[str, Any]]]:
    """What the chart comes to, by the names of the values in chart_values.yaml."""
    golden = Path(__file__).parents[1] / "golden"
    return {
        path.stem.removeprefix("chart_"): [d for d in yaml.safe_load_all(path.read_text(encoding="utf-8")) if d]
        for path in sorted(golden.glob("chart_*.yaml"))
    }
