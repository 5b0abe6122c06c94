"""The base model: the part of the package by which schedules are ranked before anything is measured.

In the folder base_model, `cpu.xz` is the model and `cpu.json` its data card: what it learned from, how, and how well it
does on tasks that it has not seen. `./dev bench base_model` makes both.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from .layered_model import LayeredModel, UnreadableModel

_log = logging.getLogger("tunewright")


@dataclass(frozen=True, slots=True)
class Base:
    """A base model and its data card. Snapshots above it name `sha256`."""

    learned: LayeredModel
    sha256: str
    card: dict[str, Any]


@cache
def base(target_kind: str) -> Base | None:
    """The base model for a kind of target; None where there is none that can be read and knows these features.

    A card has `file_sha256` where the file was written in another form since the model got its `sha256`. Raises
    ValueError where the file isn't the one that its card describes.
    """
    folder = files(__package__) / "base_model"
    card_file, model_file = folder / f"{target_kind}.json", folder / f"{target_kind}.xz"
    if not card_file.is_file():
        return None
    card = json.loads(card_file.read_text())
    try:
        learned = LayeredModel.read(model_file.read_bytes(), card.get("file_sha256", card["sha256"]), target_kind)
    except UnreadableModel as error:
        _log.warning("no base model: %s", error)
        return None
    return Base(learned, card["sha256"], card)
