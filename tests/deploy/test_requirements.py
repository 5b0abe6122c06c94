"""What the image installs is the part of the lock that the service needs, hashes included.

`pytest --update-golden` writes deploy/*requirements.txt anew, after `./dev lock`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = ("serve", "postgres", "otel")
ENTRY = r"(?m)^(?=[a-z0-9])"
"""Where an entry of the lock begins."""

HEAD = "# A part of constraints.txt, written by `./dev test tests/deploy --update-golden`: {what}.\n"


def canonical(text: str) -> str:
    """The name that a requirement begins with."""
    found = re.match(r"[A-Za-z0-9._-]+", text)
    assert found, text
    return re.sub("[-_.]+", "-", found[0]).lower()


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def named(requirements: list[str], extras: dict[str, list[str]]) -> Iterator[str]:
    """Names of the packages required; `tunewright[extra]` stands for those of the extra."""
    for requirement in requirements:
        if found := re.match(r"tunewright\[([^\]]+)\]", requirement):
            for extra in found[1].split(","):
                yield from named(extras[extra], extras)
        elif "== 'darwin'" not in requirement:
            yield canonical(requirement)


def entries() -> dict[str, list[tuple[str, set[str]]]]:
    """The lock: the entries of a package (one for each range of Pythons), and which packages want it."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found: dict[str, list[tuple[str, set[str]]]] = {}
    for entry in re.findall(r"(?m)^[a-z0-9].*\n(?: +.*\n)+", text):
        name = canonical(entry)
        pins, _, via = entry.partition("    # via")
        wanted_by = {canonical(word) for word in re.findall(r"^ *#? *([A-Za-z0-9._-]+)", via, re.MULTILINE)}
        found.setdefault(name, []).append((pins, wanted_by))
    return found


def part(roots: set[str]) -> str:
    """The entries of the packages `roots` and of all that they need."""
    locked = entries()
    assert roots <= locked.keys()
    needed = set(roots)
    while more := {name for name, of in locked.items() if name not in needed for _, via in of if via & needed}:
        needed |= more
    return "".join(pins for name in sorted(needed) for pins, _ in locked[name])


def of_service(*more: str) -> set[str]:
    """What the service asks for by name, with its extras and `more`."""
    data = project()["project"]
    extras = data["optional-dependencies"]
    roots = set(named(data["dependencies"], extras))
    for extra in (*EXTRAS, *more):
        roots |= set(named(extras[extra], extras))
    return roots


def service_part() -> str:
    return HEAD.format(what="the service, with its extras " + ", ".join(EXTRAS)) + part(of_service())


def cuda_part() -> str:
    """What the extra adds to the service."""
    there = part(of_service())
    added = [entry for entry in re.split(ENTRY, part(of_service("cuda")))[1:] if entry not in there]
    return HEAD.format(what="what the extra cuda adds to requirements.txt") + "".join(added)


def build_part() -> str:
    return HEAD.format(what="what builds the wheel") + part({"setuptools"})


FILES = {"requirements.txt": service_part, "cuda-requirements.txt": cuda_part, "build-requirements.txt": build_part}


@pytest.mark.parametrize("name", FILES)
def test_the_image_installs_what_is_locked(name: str, request: pytest.FixtureRequest) -> None:
    path = ROOT / "deploy" / name
    if request.config.getoption("--update-golden"):
        path.write_text(FILES[name](), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == FILES[name](), "./dev test tests/deploy --update-golden"


def test_every_package_has_hashes_and_nothing_of_the_tests_comes_along() -> None:
    text = service_part()
    pins = re.findall(r"(?m)^([a-z0-9._-]+)==", text)
    assert {"fastapi", "ray", "psycopg", "psycopg-binary", "uvicorn", "onnx", "llvmlite", "xgboost-cpu"} <= set(pins)
    assert not {"pytest", "openvino", "onnxruntime", "mypy", "hypothesis", "setuptools"} & set(pins)
    for entry in re.split(ENTRY, text + cuda_part())[1:]:
        assert "--hash=sha256:" in entry, entry


def test_the_image_with_cuda_has_what_compiles_and_drives() -> None:
    pins = set(re.findall(r"(?m)^([a-z0-9._-]+)==", cuda_part()))
    assert {"cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-ml-py"} <= pins
    assert not pins & set(re.findall(r"(?m)^([a-z0-9._-]+)==", service_part()))


def test_the_wheel_is_built_with_what_the_project_asks_for() -> None:
    asked = {canonical(text) for text in project()["build-system"]["requires"]}
    assert asked == {"setuptools"}
