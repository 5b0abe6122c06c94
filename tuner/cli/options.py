"""Options and arguments that several commands have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tunewright.codegen.target import MAX_THREADS
from tunewright.graph.binding import BOUND_MARK
from tunewright.graph.numerics import Precision

from ..arguments import MOST_SEED, MOST_SIZE, StrategyName
from ..errors import Refused
from ..text import ONNX_RUNTIME, counted, shorten

if TYPE_CHECKING:
    from ..search.sizes import SizeRange

LONGEST_VALUE = 40
"""Letters of a value that a message quotes."""


def url_check(option: str, example: str) -> Callable[[str | None], str | None]:
    """A callback that refuses an empty URL: an unset variable must not mean the default."""

    def check(url: str | None) -> str | None:
        if url is not None and not url.strip():
            raise Refused(f"{option} is empty; give {example}, or leave the option out")
        return url

    return check


def warn_if_crowded(threads: int | None) -> int | None:
    """The number of threads, with a warning where it exceeds the processors of this process."""
    if threads is not None:
        from tunewright.codegen.host import available_cores

        cores = len(available_cores())
        if threads > cores:
            have = counted(cores, "processor")
            print(f"warning: --threads {threads} is more than the {have} that this process may use", file=sys.stderr)
    return threads


ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)]
DbOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="SQLAlchemy URL of the database.",
        show_default="in your data folder",
        callback=url_check("--db", "an SQLAlchemy URL such as sqlite:///tuning.db"),
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Ask this server instead of a database.",
        show_default="TUNEWRIGHT_SERVER, where set",
        callback=url_check("--server", "a URL such as http://127.0.0.1:8433"),
    ),
]
LockOption = Annotated[
    Path | None,
    typer.Option("--lock", metavar="FILE", help="Use the schedules that tunewright lock pinned.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]
DimOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=NUMBER", help="Bind an open dimension; may be given several times."),
]
VendorOption = Annotated[
    bool,
    typer.Option("--vendor", help=f"Time the whole model in {ONNX_RUNTIME} too, and take that where it is faster."),
]
RuntimeOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="RUNTIME",
        help="Tune what a session of another runtime leaves to our kernels: onnxruntime.",
        show_default="a session of ours",
    ),
]
SizesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--sizes",
        metavar="NAME=SIZES",
        help="Tune for several sizes of an open dimension, such as 1..64 or 1,8,64; may be given several times.",
    ),
]
BindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bind", metavar="INPUT=VALUE", help="Give an input of one number its value; may be given several times."
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=MAX_THREADS,
        help="Threads that kernels run on.",
        show_default="all processors",
        callback=warn_if_crowded,
    ),
]
TargetOption = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option("--target", help="What kernels run on: the processor, which auto is too, or the first GPU."),
]
PrecisionOption = Annotated[
    Precision,
    typer.Option("--precision", help="What products may be computed in: two of three round more than the model."),
]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=MOST_SEED, help="The same seed tries candidates in the same order.")
]
StrategyOption = Annotated[StrategyName, typer.Option("--strategy", help="How candidates are chosen.")]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="PERCENT",
        help="Stop when another minute is expected to make all tasks together less than this faster, such as 2%.",
        show_default="no limit",
    ),
]
TRIALS_WHERE_NONE = "no limit; 200 where no other limit is given"
"""Default number of trials, as the help shows it."""

RayAddressOption = Annotated[
    str | None,
    typer.Option("--ray-address", metavar="ADDRESS", help="The Ray cluster to join.", show_default="one started here"),
]


def check_ray_address(pool: str, ray_address: str | None) -> None:
    """Raises Refused where a cluster is named that nothing would join."""
    if ray_address is not None and pool != "ray":
        raise Refused(f"--pool {pool} takes no --ray-address; --pool ray does")


def parse_dims(texts: Iterable[str] | None, bind_texts: Iterable[str] | None = None) -> dict[str, int]:
    """Dimensions by name, from "NAME=1" and so on, and inputs by name and "=", from "INPUT=1". Raises Refused."""
    dims = {f"{name}{BOUND_MARK}": number for name, number in parse_bind(bind_texts).items()}
    for text in texts or ():
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value:
            raise Refused(f"--dim {text!r} is not NAME=NUMBER")
        size = _size("--dim", name, value)
        if dims.setdefault(name, size) != size:
            raise Refused(f"--dim gives {name!r} two values, {dims[name]} and {size}")
    return dims


def parse_sizes(texts: Iterable[str] | None) -> dict[str, SizeRange | tuple[int, ...]]:
    """Sizes to tune for by dimension, from "NAME=1..64" or "NAME=1,8,64". Raises Refused."""
    from ..search.sizes import SizeRange

    choices: dict[str, SizeRange | tuple[int, ...]] = {}
    for text in texts or ():
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise Refused(f"--sizes {text!r} is not NAME=SIZES, such as batch=1..64 or batch=1,8,64")
        if name in choices:
            raise Refused(f"--sizes gives sizes of {name!r} twice")
        least, dots, most = value.partition("..")
        sizes = [_size("--sizes", name, part) for part in ((least, most) if dots else value.split(","))]
        if dots and sizes[0] > sizes[1]:
            raise Refused(f"--sizes {name}: {value} ends before it begins")
        choices[name] = SizeRange(*sizes) if dots else tuple(dict.fromkeys(sizes))
    return choices


def _size(option: str, name: str, value: str) -> int:
    is_short = len(value) <= len(str(MOST_SIZE))  # Python refuses to read numbers of thousands of digits
    size = int(value) if is_short and value.isdecimal() and value.isascii() else 0
    if not 1 <= size <= MOST_SIZE:
        value = shorten(value, LONGEST_VALUE)
        raise Refused(
            f"{option} {name}: {value!r} is no size; give a whole number from 1 to {MOST_SIZE:,}, "
            f"as in {option} {name}=1"
        )
    return size


def parse_bind(texts: Iterable[str] | None) -> dict[str, int]:
    """Values by the names of inputs, from "NAME=1" and so on. Raises Refused."""
    bound: dict[str, int] = {}
    for text in texts or ():
        name, equals, value = text.rpartition("=")
        if not equals or not name or not value:
            raise Refused(f"--bind {text!r} is not INPUT=VALUE")
        digits = value.removeprefix("-")
        is_number = digits.isdecimal() and digits.isascii() and len(digits) <= len(str(MOST_SIZE))
        number = {"true": 1, "false": 0}.get(value, int(value) if is_number else MOST_SIZE + 1)
        if abs(number) > MOST_SIZE:
            value = shorten(value, LONGEST_VALUE)
            raise Refused(
                f"--bind {name}: {value!r} is no value; give true, false or a whole number from {-MOST_SIZE:,} to "
                f"{MOST_SIZE:,}, as in --bind {name}=1"
            )
        if bound.setdefault(name, number) != number:
            raise Refused(f"--bind gives {name!r} two values, {bound[name]} and {number}")
    return bound


def parse_share(option: str, text: str | None) -> float | None:
    """The share that a percentage is, from "2%" or "0.5"; None where the option is not given. Raises Refused."""
    if text is None:
        return None
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not isfinite(percent) or not 0 < percent < 100:
        raise Refused(f"{option} {text!r} is not a percentage above 0 and below 100, such as 2% or 0.5%")
    return percent / 100


def parse_names(option: str, text: str) -> list[str]:
    """Names from "a,b". Raises Refused where there are none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise Refused(f"{option} names nothing")
    return list(dict.fromkeys(names))
