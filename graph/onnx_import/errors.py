"""What a model that can't be imported raises, and how names out of a model are shown."""

from __future__ import annotations

MAX_SHOWN = 80
"""Most characters of a name out of a model in a message."""


class ModelError(ValueError):
    """A model that can't be used: one clear line with the value, the limit, the place and what to do."""


class MisfitError(ModelError):
    """A node whose operands don't fit: no fault of a model in a body that never runs."""


def shown(text: object) -> str:
    """Hostile text for people: quoted, on one line, every unprintable character escaped, cut to MAX_SHOWN."""
    content = str(text)
    return repr(content if len(content) <= MAX_SHOWN else content[: MAX_SHOWN - 3] + "...")


def one_line(text: object, limit: int = 240) -> str:
    """A message of a library, which may quote a model's names, as one printable line."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."
