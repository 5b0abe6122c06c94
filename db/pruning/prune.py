"""Pruning: removes what a policy does not keep, in transactions of some thousand rows.

A process may be killed at any moment: what its transactions removed is removed, and the next one goes on. Several may
prune at once; they take turns at a job, a task or a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlalchemy.orm import Session

from ..database import (
    KEYS_AT_ONCE,
    REMOVED_AT_ONCE,
    Database,
    DatabasePart,
    batches,
    read_session,
    retry,
    write_session,
)
from ..fleet import FORGET_S
from ..keys import Keys
from ..logs.sweep import SweptLog, sweep, swept
from ..tables import IS_UNFINISHED, DeliveryRow, JobRow, TunerRow, UploadRow
from ..uploads import remove_upload
from .policy import Pruned, RetentionPolicy
from .progress import ProgressPruning
from .trials import TrialPruning


class Pruning(DatabasePart):
    """Removes what a policy does not keep. Every method may raise StoreError."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._progress = ProgressPruning(database)
        self._trials = TrialPruning(database)

    def prune(
        self, policy: RetentionPolicy, *, dry_run: bool = False, goes_on: Callable[[], bool] = lambda: True
    ) -> Pruned:
        """Remove what the policy does not keep, in many transactions; how much that was.

        With `dry_run` nothing is removed, and it is told what would be. It ends early where it is not to go on, which
        is asked after each transaction. Where it raises, what was removed until then stays removed.
        """
        total = Pruned()
        for pruned in self._parts(policy, self._now(), dry_run, goes_on):
            total += pruned
            if not goes_on():
                break
        return total

    def _parts(
        self, policy: RetentionPolicy, now: datetime, dry_run: bool, goes_on: Callable[[], bool]
    ) -> Iterator[Pruned]:
        """What each transaction removes."""

        def moment(days: float) -> datetime:
            return now - timedelta(days=days)

        if policy.events_days is not None:
            yield from self._progress.prune(moment(policy.events_days), dry_run)
        if policy.deliveries_days is not None:
            yield from self._deliveries(moment(policy.deliveries_days), dry_run)
        yield Pruned(sessions=self._sessions(dry_run), tuners=self._tuners(now, dry_run))
        log = self._swept() if dry_run else sweep(self.database, goes_on)
        yield Pruned(log_entries=log.entries, environments=log.environments)
        if policy.models_days is not None:
            yield from self._models(moment(policy.models_days), dry_run)
        if policy.best is not None and policy.trials_days is not None:
            yield from self._trials.prune(moment(policy.trials_days), policy.best, dry_run)

    def _deliveries(self, before: datetime, dry_run: bool) -> Iterator[Pruned]:
        if dry_run:
            yield Pruned(deliveries=self._count_deliveries(before))
            return
        while count := self._delete_deliveries(before):
            yield Pruned(deliveries=count)

    @read_session
    def _count_deliveries(self, session: Session, before: datetime) -> int:
        return session.scalar(select(func.count()).select_from(DeliveryRow).where(*_are_over(before))) or 0

    @write_session
    def _delete_deliveries(self, session: Session, before: datetime) -> int:
        query = select(DeliveryRow.id).where(*_are_over(before)).order_by(DeliveryRow.id).limit(REMOVED_AT_ONCE)
        ids = session.scalars(query.with_for_update(skip_locked=True)).all()
        for some in batches(ids, KEYS_AT_ONCE):
            session.execute(delete(DeliveryRow).where(DeliveryRow.id.in_(some)))
        return len(ids)

    def _sessions(self, dry_run: bool) -> int:
        keys = Keys(self.database)
        return keys.expired() if dry_run else keys.remove_expired()

    @retry
    def _tuners(self, now: datetime, dry_run: bool) -> int:
        """Remove tuners that were silent for long; how many."""
        is_silent = TunerRow.seen_at < now - timedelta(seconds=FORGET_S)
        if dry_run:
            with self.database.read() as session:
                return session.scalar(select(func.count()).select_from(TunerRow).where(is_silent)) or 0
        with self.database.write_core() as connection:
            return connection.execute(delete(TunerRow).where(is_silent)).rowcount

    @read_session
    def _swept(self, session: Session) -> SweptLog:
        return swept(session)

    def _models(self, before: datetime, dry_run: bool) -> Iterator[Pruned]:
        for sha256, size_bytes in self._unused_models(before):
            if dry_run or self._delete_model(sha256, before):
                yield Pruned(models=1, model_bytes=size_bytes)

    @read_session
    def _unused_models(self, session: Session, before: datetime) -> list[tuple[str, int]]:
        """The models that nobody has used since a moment, and their sizes in bytes."""
        used = select(JobRow.model_sha256).where(_is_use(before))
        conditions = UploadRow.used_at < before, UploadRow.sha256.not_in(used)
        query = select(UploadRow.sha256, UploadRow.size_bytes).where(*conditions).order_by(UploadRow.sha256)
        return [(sha256, size_bytes) for sha256, size_bytes in session.execute(query)]

    @write_session
    def _delete_model(self, session: Session, sha256: str, before: datetime) -> bool:
        """Delete a model that is still unused. Whether it was there."""
        used_at = session.scalar(select(UploadRow.used_at).where(UploadRow.sha256 == sha256).with_for_update())
        used = select(JobRow.id).where(JobRow.model_sha256 == sha256, _is_use(before)).limit(1)
        if used_at is None or used_at >= before or session.scalar(used) is not None:
            return False
        remove_upload(session, sha256)
        return True

    @read_session
    def _now(self, session: Session) -> datetime:
        return self.database.now(session)


def _are_over(before: datetime) -> tuple[ColumnElement[bool], ...]:
    """Conditions on deliveries that were made, or given up, and stored before a moment."""
    return DeliveryRow.due_at.is_(None), DeliveryRow.created_at < before


def _is_use(since: datetime) -> ColumnElement[bool]:
    """Condition on a job: it is a use of its model since a moment, or may be one."""
    return or_(IS_UNFINISHED, JobRow.updated_at >= since)
