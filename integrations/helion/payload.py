"""Payload: what Helion keeps of a search, the bytes of a `.best_config` file, checked before anybody gets it.

    {"config": "<JSON of an object>", "key": {"type": "...", "fields": {...}}, "flat_config": "<JSON of a list>", ...}

Helion reads a remote payload outside of its guard: one that can't be read would end the build, and not be a miss.
"""

from __future__ import annotations

import json
from typing import Any

FLAT, POLICY = "flat_config", "cute_structural_policy"
"""Fields that may be left out: the config as a search has it, and the policy that it was found under."""


def is_payload(text: str) -> bool:
    """Whether Helion can read it, as far as can be told without Helion."""
    record = _read(text)
    if not isinstance(record, dict) or not isinstance(record.get("key"), dict):
        return False
    fields = record["key"].get("fields")
    if not isinstance(fields, dict) or not all(isinstance(field, str) for field in fields.values()):
        return False
    return _is_config(record.get("config")) and _is_flat(record.get(FLAT)) and isinstance(record.get(POLICY, {}), dict)


def _is_config(config: Any) -> bool:
    return isinstance(config, str) and isinstance(_read(config), dict)


def _is_flat(flat: Any) -> bool:
    return flat is None or isinstance(_read(flat) if isinstance(flat, str) else flat, list)


def _read(text: str) -> Any:
    """The JSON data; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
