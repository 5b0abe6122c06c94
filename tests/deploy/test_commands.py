"""Every command of Tunewright and Ray that a deployment runs, or its pages tell to run, exists with its options."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import tunewright.api.program

from .conftest import COMPOSED, composed

Object = dict[str, Any]

PAGES = ("deploy.md", "operate.md", "security.md")
PROGRAM = tunewright.api.program.app
"""With the commands of the service, which importing that module adds."""


def said(text: str) -> Iterator[list[str]]:
    """Commands in a text for people: lines that begin with `tunewright`, or run it in a container."""
    in_container = re.compile(r"docker compose run --rm migrate(?= \w)")
    for line in in_container.sub("tunewright", text.replace("\\\n", " ")).splitlines():
        if found := re.search(r"(?:^ {4,}|-- +|[A-Z_]+=\S+ )(tunewright(?: [^`|>;#]+)?)", line):
            yield shlex.split(found[1])


def of_shell(script: str) -> Iterator[list[str]]:
    """Commands in the script of a container."""
    for part in re.split(r";|&&?", script):
        words = [word for word in shlex.split(part) if word not in ("{", "}", "exec", "$@")]
        if words:
            yield words


def of_container(entrypoint: list[str], command: list[str]) -> Iterator[list[str]]:
    if entrypoint == ["sh", "-c"]:
        yield from of_shell(command[0])
    else:
        yield entrypoint + command


def deployed(root: Path, rendered: dict[str, list[Object]]) -> Iterator[tuple[str, list[str]]]:
    for files in COMPOSED:
        for name, service in composed(*files)["services"].items():
            if service["image"].startswith("${TUNEWRIGHT_"):
                for words in of_container(service.get("entrypoint", ["tunewright"]), service["command"]):
                    yield f"{'+'.join(files)} {name}", words
    for name, documents in rendered.items():
        for document in documents:
            if document["kind"] == "Deployment":
                spec = document["spec"]["template"]["spec"]
                for container in spec["initContainers"] + spec["containers"]:
                    for words in of_container(container.get("command", ["tunewright"]), container["args"]):
                        yield f"chart {name} {container['name']}", words
    image = (root / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    yield "Dockerfile", ["tunewright", *json.loads(re.findall(r"^CMD (\[.*\])", image, re.MULTILINE)[0])]
    notes = (root / "deploy" / "helm" / "tunewright" / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    for words in said(notes):
        yield "NOTES.txt", words
    for page in PAGES:
        for words in said((root / "docs" / page).read_text(encoding="utf-8")):
            yield page, words


def check(where: str, words: list[str]) -> None:
    """That the command line understands it. Values are not looked at."""
    command: Any = typer.main.get_command(PROGRAM)
    rest = words[1:]
    while hasattr(command, "commands"):
        assert rest and rest[0] in command.commands, f"{where}: no command {' '.join(words)}"
        command, rest = command.commands[rest[0]], rest[1:]
    options = {name: p for p in command.params for name in (*p.opts, *p.secondary_opts)}
    arguments = 0
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and word != "-":
            name, given, _ = word.partition("=")
            assert name in options, f"{where}: {' '.join(words)}: no option {name}"
            if not given and not getattr(options[name], "is_flag", False):
                assert rest, f"{where}: {name} wants a value"
                rest.pop(0)
        else:
            arguments += 1
    expected = [p for p in command.params if not any(name.startswith("-") for name in p.opts)]
    most = sum(p.nargs for p in expected) if all(p.nargs > 0 for p in expected) else arguments
    least = sum(p.required for p in expected)
    assert least <= arguments <= most, f"{where}: {' '.join(words)}: {arguments} arguments"


@pytest.mark.slow
def test_every_command_and_option_exists(root: Path, rendered: dict[str, list[Object]]) -> None:
    found = list(deployed(root, rendered))
    ours = [(where, words) for where, words in found if words[0] == "tunewright"]
    assert {"serve", "work", "db", "key"} <= {words[1] for _, words in ours}
    for where, words in ours:
        check(where, words)


def test_every_option_of_ray_exists(root: Path, rendered: dict[str, list[Object]]) -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    known = {name for p in scripts.start.params for name in p.opts}
    found = [words for _, words in deployed(root, rendered) if words[:2] == ["ray", "start"]]
    assert len(found) >= 5
    for words in found:
        assert {word.partition("=")[0] for word in words[2:]} <= known
    for documents in rendered.values():
        for document in documents:
            if document["kind"] == "RayCluster":
                groups = (document["spec"]["headGroupSpec"], *document["spec"]["workerGroupSpecs"])
                for group in groups:
                    assert {f"--{name}" for name in group["rayStartParams"]} <= known


def test_a_wrong_command_would_be_seen() -> None:
    for words in (["tunewright", "serv"], ["tunewright", "work", "--pol", "ray"], ["tunewright", "db", "upgrade", "x"]):
        with pytest.raises(AssertionError):
            check("here", words)


def test_variables_of_the_environment_are_those_of_the_settings(
    root: Path, compose: Object, rendered: dict[str, list[Object]]
) -> None:
    listed = set(re.findall(r"`([A-Z_0-9]+)`", (root / "docs" / "settings.md").read_text(encoding="utf-8")))
    used = {name for s in compose["services"].values() for name in s.get("environment", {})}
    for documents in rendered.values():
        for document in documents:
            if document["kind"] == "Deployment":
                for container in document["spec"]["template"]["spec"]["containers"]:
                    used |= {variable["name"] for variable in container.get("env", [])}
    image = (root / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    used |= set(re.findall(r"\b(TUNEWRIGHT_\w+)=", image))
    assert {name for name in used if name.startswith(("TUNEWRIGHT_", "RAY_AUTH"))} <= listed
