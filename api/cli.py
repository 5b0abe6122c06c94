"""The program `tunewright`: the commands of `tunewright.tuner.cli`, and those that need the service."""

from __future__ import annotations

from tunewright.tuner.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
