"""Texts of the command line and the service: help and JSON fields of each command, and the OpenAPI document.

Commands run in processes of their own, on a small model, and with a service where they need one. Their numbers differ
from run to run; their fields do not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import typer

from tunewright.api import program
from tunewright.bench.service import run_service
from tunewright.bench.synthetic_records import products_model

PROGRAM = (sys.executable, "-P", "-m", "tunewright.api.cli")

DIGEST = re.compile("[0-9a-f]{16,64}")

DATA_FIELDS = frozenset({"values", "failed", "fallback", "provenance", "statuses", "description"})
"""Fields whose own fields are data: names of knobs, of ops, of statuses."""

ENVIRONMENT = {"COLUMNS": "120"}
"""Environment variables of the commands: the width of help."""

LOCAL_CALLS: tuple[tuple[str, ...], ...] = (
    ("doctor",),
    ("tune", "{model}", "--trials", "6"),
    ("tasks", "{model}"),
    ("lookup", "{model}"),
    ("show", "{task}"),
    ("run", "{model}"),
    ("bench", "{model}", "--against", "onnxruntime"),
    ("lock", "{model}", "--output", "{folder}/lock.json"),
    ("report", "1", "--output", "{folder}"),
    ("import", "{records}"),
    ("backup", "{folder}/backup.db"),
    ("restore", "{folder}/backup.db", "--db", "sqlite:///{folder}/restored.db"),
    ("void", "{task}", "--reason", "replayed"),
    ("db", "upgrade"),
    ("key", "create", "somebody"),
    ("key", "list"),
)
"""Calls of the commands that end by themselves, need no service and print one JSON object."""

SERVICE_CALLS: tuple[tuple[str, ...], ...] = (
    ("submit", "{model}", "--trials", "6", "--server", "{server}"),
    ("work", "--once"),
    ("jobs", "watch", "1", "--server", "{server}"),
    ("jobs", "list", "--server", "{server}"),
    ("jobs", "show", "1", "--server", "{server}"),
)
"""Calls of commands that need a service."""


def help_texts() -> Iterator[tuple[str, Callable[[], str]]]:
    """For each command a name and a function that gives its help."""
    for name in ("", *_names(typer.main.get_command(program.app))):
        yield f"help/{name}", partial(_run, (*name.split(), "--help"), os.environ)


def _names(command: Any, above: str = "") -> Iterator[str]:
    for word, subcommand in getattr(command, "commands", {}).items():
        yield f"{above} {word}".strip()
        yield from _names(subcommand, f"{above} {word}".strip())


def json_texts() -> Iterator[tuple[str, Callable[[], str]]]:
    """For each command a name and a function that gives its JSON fields; then the OpenAPI document of a service."""
    with TemporaryDirectory() as text:
        folder = Path(text)
        env = os.environ | {"TUNEWRIGHT_HOME": text}
        model = folder / "model.onnx"
        model.write_bytes(products_model([(64, 32, 48)]))
        words = {"model": str(model), "folder": text, "records": str(folder / "records.jsonl")}
        for arguments in LOCAL_CALLS:
            yield _answer(arguments, words, env)
            if arguments[0] == "tune":
                words["task"] = json.loads(_run(("tasks", str(model), "--json"), env))["tasks"][0]["key"]
                (folder / "records.jsonl").write_text(_run(("export",), env), encoding="utf-8")
        home = folder / "service"
        home.mkdir()
        db = f"sqlite:///{home / 'tuning.db'}"
        service_env = env | {"TUNEWRIGHT_HOME": str(home), "TUNEWRIGHT_DB": db}
        with run_service(db, home) as service:
            for arguments in SERVICE_CALLS:
                yield _answer(arguments, words | {"server": service.url}, service_env)
            headers = {"Authorization": f"Bearer {service.key}"}
            document = httpx.get(f"{service.url}/v1/openapi.json", headers=headers).raise_for_status()
        yield "json/openapi", lambda: json.dumps(document.json(), indent=1)


def _answer(
    arguments: Sequence[str], words: Mapping[str, str], env: Mapping[str, str]
) -> tuple[str, Callable[[], str]]:
    printed = _run([*(argument.format_map(words) for argument in arguments), "--json"], env)
    fields = "\n".join(sorted(set(_fields(json.loads(printed)))))
    return f"json/{' '.join(word for word in arguments if word.isalpha())}", lambda: fields


def _fields(data: Any, path: str = "") -> Iterator[str]:
    """The paths of all fields; elements of a list share one."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            field_path = f"{path}.{'*' if DIGEST.fullmatch(name) else name}"
            yield field_path
            if name not in DATA_FIELDS:
                yield from _fields(value, field_path)
    elif isinstance(data, list):
        for item in data:
            yield from _fields(item, f"{path}[]")


def _run(arguments: Sequence[str], env: Mapping[str, str]) -> str:
    return subprocess.run(
        [*PROGRAM, *arguments], env={**env, **ENVIRONMENT}, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
