"""FlashInfer's managed cache of tactics (`autotune_v2`): a folder for each environment, a file for each operation.

    v2/<environment hash>/manifest.json             {"flashinfer_version": "0.7.4", "gpu": "NVIDIA H200", ...}
    v2/<environment hash>/entries/<operation hash>.json     {"key": "...", "runner": "...", "tactic": ...}

The hashes are those of the manifest and of the key. So each file tells its own place, and what tells another one is
refused. The manifest is an entry too: some of its texts are longer than those of an environment may be.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tunewright.db.logs.entry import LINE, LONGEST_TEXT, LogEntry, LogEnvironment

from .folder_format import TunedFile, read_object
from .tuned_folder import Place, TunedFolder

SCHEMA = "v2"

ENVIRONMENT, OPERATION = "[0-9a-f]{16}", r"[0-9a-f]{24}\.json"
"""Patterns of the names of folders and of entries."""

MANIFEST, ENTRIES = "manifest.json", "entries"

HASH = "environment_hash"
"""The name under which an environment of the log has FlashInfer's own hash."""

DEVICE = "gpu"
"""The field of a manifest that is the device."""


class FlashInfer:
    """`FLASHINFER_AUTOTUNE_CACHE_DIR`."""

    name = "flashinfer"

    def files(self, folder: TunedFolder) -> Iterator[TunedFile]:
        """The manifests, and the entries beside a manifest."""
        for place in folder.folders(SCHEMA, ENVIRONMENT):
            manifest = folder.read(*place, MANIFEST)
            try:
                if manifest is None:
                    raise ValueError(f"it has no {MANIFEST}")
                environment = environment_of(manifest, place[-1])
            except ValueError as error:
                folder.left_out[place] = str(error)
                continue
            yield TunedFile((*place, MANIFEST), LogEntry(MANIFEST, manifest, environment))
            yield from self._entries(folder, place, environment)

    def _entries(self, folder: TunedFolder, above: Place, environment: LogEnvironment) -> Iterator[TunedFile]:
        for place, data in folder.find(*above, ENTRIES, OPERATION):
            try:
                check_entry(data, place[-1])
            except ValueError as error:
                folder.left_out[place] = str(error)
            else:
                yield TunedFile(place, LogEntry(place[-1], data, environment))

    def place(self, entry: LogEntry) -> Place:
        """Where FlashInfer looks for an entry or a manifest."""
        name = entry.environment.versions.get(HASH, "")
        if re.fullmatch(ENVIRONMENT, name) is None:
            raise ValueError("it is of no environment of FlashInfer's")
        if entry.key == MANIFEST:
            environment_of(entry.value, name)
            return SCHEMA, name, MANIFEST
        check_entry(entry.value, entry.key)
        return SCHEMA, name, ENTRIES, entry.key


FLASHINFER = FlashInfer()


def environment_of(manifest: bytes, name: str) -> LogEnvironment:
    """The environment of a folder of this name: what its manifest says in short texts. Raises ValueError."""
    fields = read_object(manifest)
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    if hashlib.sha256(canonical.encode()).hexdigest()[:16] != name:
        raise ValueError("its manifest is of another environment")
    texts = {field: text for field, text in fields.items() if _is_short(field) and _is_short(text)}
    return LogEnvironment(texts.pop(DEVICE, ""), FlashInfer.name, texts | {HASH: name})


def _is_short(text: Any) -> bool:
    """Whether an environment may have it."""
    return isinstance(text, str) and len(text) <= LONGEST_TEXT and re.fullmatch(LINE, text) is not None


def check_entry(data: bytes, name: str) -> Mapping[str, Any]:
    """An entry, if FlashInfer can read it under this name. Raises ValueError."""
    entry = read_object(data)
    key = entry.get("key")
    if not isinstance(key, str) or not isinstance(entry.get("runner"), str) or "tactic" not in entry:
        raise ValueError("it tells no key, runner and tactic")
    if f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json" != name:
        raise ValueError("its key is another one than its name is of")
    return entry
