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


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML with the tag `!reset` of Compose: what the file before has there is left out."""


Loader.add_constructor("!reset", lambda loader, node: RESET)
RESET = "!reset"


def merged(before: Any, given: Any) -> Any:
    """What Compose makes of one file after another, as far as ours go. Commands replace each other, lists add up."""
    if given == RESET:
        return None
    if isinstance(before, dict) and isinstance(given, dict):
        replaced = {"command", "entrypoint", "test"}
        both = {
            key: value if key in replaced or key not in before else merged(before[key], value)
            for key, value in given.items()
        }
        return {key: value for key, value in {**before, **both}.items() if value is not None}
    if isinstance(before, list) and isinstance(given, list):
        return before + given
    return given


def composed(*names: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        text = (ROOT / "deploy" / f"{name}.yaml").read_text(encoding="utf-8")
        found = merged(found, yaml.load(text, Loader))  # noqa: S506 - a safe one with one more tag
    return found


COMPOSED = (
    ("compose",),
    ("compose", "compose.gpu"),
    ("compose", "compose.machines"),
    ("compose", "compose.machines", "compose.gpu"),
    ("compose.worker",),
    ("compose.worker", "compose.gpu"),
)
"""The files that are told to be used together."""


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    return composed("compose")


@pytest.fixture(scope="session", params=COMPOSED, ids="+".join)
def any_compose(request: pytest.FixtureRequest) -> dict[str, Any]:
    return composed(*request.param)


@pytest.fixture(scope="session")
def machines() -> dict[str, Any]:
    """The first of several machines."""
    return composed("compose", "compose.machines")


@pytest.fixture(scope="session")
def worker() -> dict[str, Any]:
    """Every machine but the first."""
    return composed("compose.worker")


@pytest.fixture(scope="session")
def rendered() -> dict[str, list[dict[str, Any]]]:
    """What the chart comes to, by the names of the values in chart_values.yaml."""
    golden = Path(__file__).parents[1] / "golden"
    return {
        path.stem.removeprefix("chart_"): [d for d in yaml.safe_load_all(path.read_text(encoding="utf-8")) if d]
        for path in sorted(golden.glob("chart_*.yaml"))
    }
