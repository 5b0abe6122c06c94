"""What the documentation lists is what there is: commands, options, settings, links."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tunewright.api import program
from tunewright.api.serve import PORT
from tunewright.db.job import DEFAULT_TRIALS
from tunewright.tuner.cli.options import TRIALS_WHERE_NONE
from tunewright.tuner.settings import DEBUG_LADDER

ROOT = Path(__file__).resolve().parent.parent
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
THRESHOLDS = re.findall(
    r"^\| [^|]+ \| ([^|]*\d[^|]*) \| (`[^|]+`) \| `(.+)\.py` \|$",
    (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
UNITS = {"": 1, "times": 1, "s": 1, "ms": 1e-3, "%": 1e-2, "MiB": 1 << 20, "GiB": 1 << 30}
OTHERS = {"9090", "6379"}  # Prometheus, Redis
FOLDERS = sorted(path.parent for path in ROOT.glob("[a-z]*/__init__.py"))

SOURCES = sorted(
    path
    for folder in FOLDERS
    if folder.name not in ("tests", "bench")
    for path in folder.rglob("*")
    if path.suffix in (".py", ".html")
)

VARIABLE = re.compile(
    r"""environ(?:\.get\(|\.setdefault\(|\[)\s*"(\w+)"|"(\w+)" (?:not )?in os\.environ"""
    r"""|env\.get\("(\w+)"|"(TUNEWRIGHT_\w+)": \("""
)
"""A variable of the environment in the source."""


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its full name."""
    for word, one in getattr(command, "commands", {}).items():
        full = f"{name} {word}".strip()
        if hasattr(one, "commands"):
            yield from commands(one, full)
        else:
            yield full, one


COMMANDS = dict(commands(typer.main.get_command(program.app)))


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts if option.startswith("--")}


def section(name: str) -> str:
    found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", CLI, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section on {name}"
    return found[1]


def test_every_command_has_its_section() -> None:
    assert sorted(re.findall(r"^## (.*)$", CLI, re.MULTILINE)) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_listed(name: str) -> None:
    listed = set(re.findall(r"`(--[a-z-]+)[ `]", "\n".join(re.findall(r"^- .*$", section(name), re.MULTILINE))))
    assert listed == options(COMMANDS[name])


def test_shared_options_are_explained() -> None:
    intro = CLI[: CLI.index("\n## ")]
    own = typer.main.get_command(program.app)
    for option in {"--db", "--threads", "--dim", "--json", "--help"} | options(own):
        assert f"`{option}" in intro or f"tunewright {option}`" in intro, option


def test_arguments_are_named_in_the_usage() -> None:
    for name, command in COMMANDS.items():
        arguments = [one.metavar for one in command.params if one.param_type_name == "argument"]
        assert " ".join(["tunewright", name, *arguments]) in section(name)


def test_every_command_answers_in_json() -> None:
    assert all("--json" in options(command) for command in COMMANDS.values())


def test_every_setting_is_listed() -> None:
    sources = [path.read_text(encoding="utf-8") for folder in FOLDERS for path in folder.rglob("*.py")]
    read = {name for source in sources for groups in VARIABLE.findall(source) for name in groups if name}
    listed = set(re.findall(r"`([A-Z][A-Z_]+)`", "\n".join(re.findall(r"^\| `.*$", SETTINGS, re.MULTILINE))))
    assert {"TUNEWRIGHT_HOME", "TUNEWRIGHT_DB", "DEBUG"} <= read
    assert listed == read


def test_every_step_of_debug_is_listed() -> None:
    steps = re.findall(r"^\| (\d) \| `tunewright\.(\w+)` \|", SETTINGS, re.MULTILINE)
    assert [(int(step), name) for step, name in steps] == list(enumerate(DEBUG_LADDER))[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) + re.findall(r'(?:href|src)="([^"#]+)"', text)
    for target in links:
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_that_the_text_names_exists(page: Path) -> None:
    packages = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}
    named = re.findall(r"`([a-z_]+/[a-z_0-9/]*(?:\.[a-z]+)?)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if name.partition("/")[0] in packages and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_text_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    used = re.findall(
        r"^    (?:\./dev run )?tunewright ([a-z].*)$|`(?:\./dev run )?tunewright ([a-z][^`]*)`", text, re.MULTILINE
    )
    for indented, inline in used:
        check_command(indented or inline)


def test_commands_that_the_source_names_exist() -> None:
    for source in SOURCES:
        for quoted, marked in re.findall(
            r"`tunewright ([a-z][^`]*)`|<code>tunewright ([a-z][^<{]*)", source.read_text(encoding="utf-8")
        ):
            check_command(quoted or marked)


def check_command(text: str) -> None:
    words = text.split("#")[0].split()
    name = next((n for n in COMMANDS if words[: len(n.split())] == n.split()), None)
    assert name, words
    given = {word.strip("[]").partition("=")[0] for word in words if word.strip("[]").startswith("--")}
    assert given <= options(COMMANDS[name]) | {"--help"}, words


def test_addresses_are_those_of_the_server() -> None:
    """Whoever copies one reaches what `serve` serves by default."""
    for page in (*PAGES, *SOURCES):
        ports = set(re.findall(r"(?:127\.0\.0\.1|localhost):(\d+)", page.read_text(encoding="utf-8")))
        assert ports <= {str(PORT), *OTHERS}, page


def test_the_port_is_the_one_that_the_command_listens_on() -> None:
    [default] = [one.default for one in COMMANDS["serve"].params if one.name == "port"]
    assert default == PORT


def test_the_trials_of_a_search_without_bounds_are_those_told() -> None:
    assert f" {DEFAULT_TRIALS} " in TRIALS_WHERE_NONE
    for name in ("tune", "submit"):
        assert f"it is {DEFAULT_TRIALS}" in section(name) or f"; {DEFAULT_TRIALS} where" in section(name)


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = re.findall(r"\]\(([a-z]+\.md)\)", index.read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(page.name for page in index.parent.glob("*.md") if page != index)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]*)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            text = (page.parent / target if target else page).read_text(encoding="utf-8")
            assert anchor in {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}, target


def slug(heading: str) -> str:
    """The anchor that hosting sites give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize(("values", "constants", "path"), THRESHOLDS)
def test_thresholds_are_those_of_the_code(values: str, constants: str, path: str) -> None:
    listed = [float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) ?(%|ms|s|times|MiB|GiB|)", values)]
    module = importlib.import_module("tunewright." + path.replace("/", "."))
    code: list[float] = []
    for name in re.findall(r"`(.+?)`", constants):
        owner, _, default = name.rpartition(".")  # a class whose fields have defaults, or the module
        value = getattr(getattr(module, owner)() if owner else module, default)
        code += value if isinstance(value, tuple) else [value]
    assert listed == pytest.approx(code)


def test_the_table_of_thresholds_is_read() -> None:
    assert len(THRESHOLDS) > 25
