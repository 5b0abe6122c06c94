"""Voids: the contract of taking records back, which keeps them, and of lifting that.

What is taken back is a schedule of a task on a target: all that is stored of it, and all that comes later, from whoever
measures or imports it. None of that is offered any more; jobs take it for a failure, so they don't try it again.
"""

from __future__ import annotations

from typing import Protocol

from tunewright.search_space.schedule import Schedule


class Voids(Protocol):
    """Each method is one transaction, and may raise StoreError."""

    def schedules(self, task_key: str, target_key: str) -> list[Schedule]:
        """The schedules that anything is stored of, taken back or not, by key."""
        ...

    def void(self, task_key: str, target_key: str, schedule_key: str, reason: str) -> int:
        """Take a schedule back; how many records of it there are. `reason` is for people.

        Where it is taken back already, the first reason stays. Raises NotFound where nothing is stored of it.
        """
        ...

    def lift(self, task_key: str, target_key: str, schedule_key: str) -> int:
        """Let what was taken back here count as before; how many records of it do.

        What another database took back stays so. Raises NotFound where it is not taken back here.
        """
        ...
