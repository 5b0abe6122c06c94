"""Kinds of machine, as pages name them."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from tunewright.codegen.target import Target
from tunewright.db.sql_store import SqlStore

from ..schemas import Answer
from .said import Said


class TargetName(Answer):
    """A kind of machine, by name."""

    key: Said
    name: Said = Field(description="For people.")

    @staticmethod
    def of(target: Target) -> TargetName:
        """That of a target."""
        return TargetName(key=target.key, name=str(target))

    @staticmethod
    def known(key: str, names: Mapping[str, str]) -> TargetName:
        """That of a key, as far as `target_names` has it."""
        return TargetName(key=key, name=names.get(key, ""))


def target_names(store: SqlStore) -> dict[str, str]:
    """The names of all targets, by key. Raises StoreError."""
    return {target.key: str(target) for target in store.targets()}
