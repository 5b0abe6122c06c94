"""What a change of the code alone must leave as it is: `./dev bench replay --record FILE | --compare FILE`.

--record notes digests of everything below in a file, --compare makes them anew, names what differs and exits with 1,
and --show NAME prints one of them, to be compared with that of another checkout:

- the LLVM IR or CUDA C of each task's default schedules and of drawn ones, for all sketches and kinds of targets;
- the keys of the tasks of each model of the suite;
- the OpenAPI document of the service;
- of each command what `--help` prints, and which fields its JSON has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tunewright.bench.files import write_whole
from tunewright.bench.replay_texts.commands import help_texts, json_texts
from tunewright.bench.replay_texts.kernels import kernel_texts, sample_tasks
from tunewright.bench.suite import MODELS
from tunewright.tuner.models.model import open_model

PARTS = ("kernels", "tasks", "help", "json")


def main() -> int:
    """Record, compare or show. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="./dev bench replay", description=__doc__, allow_abbrev=False)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--record", metavar="FILE", type=Path, help="note what is there now")
    action.add_argument("--compare", metavar="FILE", type=Path, help="name what is other than was noted")
    action.add_argument("--show", metavar="NAME", help="print that of one name")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be given several times")
    arguments = parser.parse_args()
    parts = arguments.part or ([arguments.show.split("/")[0]] if arguments.show else list(PARTS))
    if arguments.show:
        return _show(parts, arguments.show)
    digests = {name: hashlib.sha256(text().encode()).hexdigest()[:16] for name, text in _texts(parts)}
    if arguments.record:
        write_whole(arguments.record, f"{json.dumps(digests, indent=0, sort_keys=True)}\n".encode())
        print(f"{len(digests)} texts noted in {arguments.record}")
        return 0
    noted = json.loads(arguments.compare.read_text(encoding="utf-8"))
    return print_differences({name: digest for name, digest in noted.items() if name.split("/")[0] in parts}, digests)


def print_differences(noted: Mapping[str, str], digests: Mapping[str, str]) -> int:
    """Print the names that differ. Returns the exit code."""
    differing = sorted(name for name in noted.keys() | digests.keys() if noted.get(name) != digests.get(name))
    for name in differing:
        print("gone:" if name not in digests else "new:" if name not in noted else "differs:", name)
    print(f"{len(differing)} of {len(noted)} differ")
    return 1 if differing else 0


def _show(parts: list[str], text_name: str) -> int:
    for name, text in _texts(parts):
        if name == text_name:
            print(text())
            return 0
    print(f"there is no {text_name}", file=sys.stderr)
    return 1


def _texts(parts: list[str]) -> Iterator[tuple[str, Callable[[], str]]]:
    """Names of all texts, and functions that make them."""
    if "kernels" in parts:
        yield from kernel_texts(sample_tasks())
    if "tasks" in parts:
        for name, build in MODELS.items():
            yield f"tasks/{name}", partial(_task_keys, build)
    if "help" in parts:
        yield from help_texts()
    if "json" in parts:
        yield from json_texts()


def _task_keys(build: Callable[[], bytes]) -> str:
    return "\n".join(sorted(open_model(build()).tasks))


if __name__ == "__main__":
    sys.exit(main())
