"""The entry of the program `tunewright`, and of `python -m tunewright.api.cli`. Its commands are in `program`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunewright.tuner import interrupts


def main() -> None:
    """The program `tunewright`."""
    interrupts.run(_load)


def _load() -> Callable[[Sequence[str]], int]:
    from .program import execute  # takes a while: from here on Ctrl-C is heeded

    return execute


if __name__ == "__main__":
    main()
