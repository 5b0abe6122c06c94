"""What is written down about the folders is true: packages, lock, import contract, wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS = sorted(path.parent.name for path in ROOT.glob("[a-z]*/__init__.py"))
NOT_SHIPPED = shutil.ignore_patterns("__pycache__")


def test_packages_are_the_folders_with_an_init() -> None:
    on_disk = [path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py")]
    names = sorted("tunewright." + ".".join(path.relative_to(ROOT).parts) for path in on_disk)
    assert sorted(SETUPTOOLS["packages"]) == names


def test_folders_are_named_alike_everywhere() -> None:
    names = [f"tunewright.{folder}" for folder in FOLDERS]
    tool = PROJECT["tool"]
    assert SETUPTOOLS["package-dir"] == {f"tunewright.{folder}": folder for folder in FOLDERS}
    assert sorted(tool["importlinter"]["root_packages"]) == names
    assert set(tool["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]) >= set(FOLDERS)
    assert set(tool["mypy"]["files"]) >= {f".types/tunewright/{folder}" for folder in FOLDERS}


def test_link_for_type_checkers_leads_to_the_root() -> None:
    link = ROOT / ".types" / "tunewright"
    assert link.is_symlink()
    assert link.resolve() == ROOT
    assert not (ROOT / "__init__.py").exists(), "tunewright is a namespace package"


def test_each_top_package_is_marked_as_typed() -> None:
    """A namespace package can't carry the mark (PEP 561), so each folder has one, and nothing below it."""
    marks = sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("py.typed"))
    assert marks == [Path(folder, "py.typed") for folder in FOLDERS]


def test_lock_pins_every_package_by_hash_and_names_no_address() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"://|\bindex\b|\.org\b|\.com\b", text)
    entries = re.split(r"^(?=[a-z0-9])", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==\S+ ", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_lock_covers_the_declared_dependencies() -> None:
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE))
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = PROJECT["project"]["dependencies"] + [line for name in extras if name != "torch" for line in extras[name]]
    names = {re.match(r"[A-Za-z0-9-]+", line)[0].lower() for line in wanted}  # type: ignore[index]
    assert names - {"tunewright"} <= locked


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """The import contract of `root`'s pyproject.toml, checked on `root`'s folders."""
    code = "from importlinter.cli import lint_imports_command as command; command(['--no-cache', '--no-logo'])"
    environment = os.environ | {"PYTHONPATH": str(root / ".types")}
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, check=False, cwd=root, env=environment, capture_output=True, text=True, timeout=120)


def test_import_contract_holds() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("codegen/intruder.py", "import tunewright.graph"),
        ("search_space/intruder.py", "def late():\n    from tunewright.db import intruded"),
        ("db/intruder.py", "import tunewright.workers"),
        ("graph/intruder.py", "from tunewright.codegen import intruded"),
        ("tuner/intruder.py", "def late():\n    from onnx import helper"),
        ("graph/intruder.py", "import llvmlite.binding"),
        ("search_space/cpu/intruder.py", "import xgboost"),
        ("costmodel/intruder.py", "import ray"),
        ("tuner/intruder.py", "from sqlalchemy import select"),
        ("workers/intruder.py", "import rich.progress"),
        ("search_space/patterns/intruder.py", "from ..cpu import intruded"),
    ],
)
def test_import_contract_catches(module: str, line: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / ".types").mkdir()
    (tmp_path / ".types" / "tunewright").symlink_to("..")
    for package in SETUPTOOLS["packages"]:
        folder = tmp_path.joinpath(*package.split(".")[1:])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
        (folder / "intruded.py").touch()
    (tmp_path / module).write_text(line + "\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 broken" in result.stdout
    assert "intruder" in result.stdout


def test_wheel_holds_every_file_of_the_folders_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=NOT_SHIPPED)
    files = {
        str(path.relative_to(source)) for folder in FOLDERS for path in (source / folder).rglob("*") if path.is_file()
    }
    build = [sys.executable, "-c", "from setuptools.build_meta import build_wheel; build_wheel('..')"]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=120)
    [wheel] = tmp_path.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert shipped == {f"tunewright/{name}" for name in files}
