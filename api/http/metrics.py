"""Metrics for Prometheus, on a registry of this service's own.

What happens in this process is counted as it happens. What all processes share is read from the database when it is
asked for, at most every `FRESH_S`: each process tells the same of it, so take the maximum, not the sum.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter as Counts
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tunewright.db.errors import StoreError
from tunewright.db.job import JobState
from tunewright.db.store import Store, TrialChanges
from tunewright.search_space.measurement import Status

from .fleet import FleetCounts

FRESH_S = 10.0
"""How long what was read from the database is told again."""

LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)

FIGURES = ("pairwise", "peak_1", "peak_5")
"""What is told of a cost model, of all that `costmodel.validation.Quality` has."""

UNSETTLED = 10_000
"""How many of the newest ids of trials, and of what made others give way, are counted anew each time.

A transaction may commit after others with higher ids. The largest beside others, a page of an import, has a thousand.
"""

RECOUNT_S = 3600.0
"""How often all trials are counted anew: nothing tells of those that were pruned."""

_log = logging.getLogger("tunewright.api")


class Metrics:
    """The numbers of one service."""

    def __init__(self, store: Store) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tunewright_http_requests",
            "Requests answered, by route, method and status.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "tunewright_http_request_seconds",
            "Time from a request to the end of its answer; event streams are left out.",
            ("method", "route"),
            buckets=LATENCIES_S,
            registry=self.registry,
        )
        self.log_lookups = Counter(
            "tunewright_log_lookups",
            "Keys of the log looked up, by how near the answer is.",
            ("match",),
            registry=self.registry,
        )
        self.lookups = Counter(
            "tunewright_lookups", "Tasks looked up, by the rung that answered.", ("match",), registry=self.registry
        )
        self.uploads = Counter(
            "tunewright_uploads", "Models sent, by what came of them.", ("outcome",), registry=self.registry
        )
        self.upload_bytes = Counter("tunewright_upload_bytes", "Bytes of models received.", registry=self.registry)
        self.refused = Counter(
            "tunewright_refused", "Requests that got a problem, by its kind.", ("kind",), registry=self.registry
        )
        self.deliveries = Counter(
            "tunewright_webhook_deliveries",
            "Attempts to tell a webhook, by where the delivery stands then.",
            ("state",),
            registry=self.registry,
        )
        self.pruned = Counter(
            "tunewright_pruned",
            "Rows removed that the policy does not keep, by what they were.",
            ("what",),
            registry=self.registry,
        )
        self.streams = Gauge("tunewright_event_streams", "Event streams that are open.", registry=self.registry)
        self.lag = Gauge(
            "tunewright_event_loop_lag_seconds", "How late the event loop was when last looked.", registry=self.registry
        )
        self.registry.register(SharedMetrics(store))


class SharedMetrics(Collector):
    """Metrics of the database, which all processes share."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: list[Metric] = []
        self._read_at_s = -FRESH_S
        self._trials = TrialCounts(store)

    def describe(self) -> Iterable[Metric]:
        """No metrics, so that the database is not read when the service starts."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The numbers, not older than `FRESH_S`; only that the database is away where it is."""
        with self._lock:
            if time.monotonic() - self._read_at_s >= FRESH_S:
                self._known = self._read()
                self._read_at_s = time.monotonic()
            return list(self._known)

    def _read(self) -> list[Metric]:
        reachable = GaugeMetricFamily("tunewright_database_up", "Whether the database could be read.")
        try:
            metrics = [*self._jobs(), *self._work(), *self._webhooks(), *self._fleet(), *self._cost_model()]
        except StoreError as error:
            _log.warning("no metrics of the database", extra={"reason": str(error)})
            reachable.add_metric([], 0)
            return [reachable]
        reachable.add_metric([], 1)
        return [reachable, *metrics]

    def _jobs(self) -> Iterable[Metric]:
        counts = self._store.jobs.counts()
        yield _labelled_gauge(
            "tunewright_jobs", "Jobs, by state.", "state", {str(state): counts.get(state, 0) for state in JobState}
        )
        yield _gauge(
            "tunewright_queue_oldest_seconds",
            "How long the queued job that waits longest has waited.",
            self._store.jobs.oldest_queued_s() or 0.0,
        )

    def _work(self) -> Iterable[Metric]:
        counts = self._trials.read()
        yield _labelled_gauge(
            "tunewright_trials", "Trials stored, by status.", "status", {str(s): n for s, n in counts.items()}
        )

    def _webhooks(self) -> Iterable[Metric]:
        due = self._store.webhooks.count_due()
        yield _gauge("tunewright_webhook_deliveries_due", "Deliveries to webhooks that could be sent now.", due)

    def _fleet(self) -> Iterable[Metric]:
        counts = FleetCounts.of(self._store.fleet.tuners())
        yield _labelled_gauge(
            "tunewright_tuners",
            "Tuner processes heard of, by activity.",
            "activity",
            {"busy": counts.busy, "idle": counts.idle},
        )
        yield _gauge("tunewright_devices", "Devices of the tuner processes that take jobs.", counts.devices)
        yield _gauge(
            "tunewright_devices_quarantined", "Devices that failed too often to be used now.", counts.quarantined
        )

    def _cost_model(self) -> Iterable[Metric]:
        metric = GaugeMetricFamily(
            "tunewright_cost_model_quality",
            "Figures of the newest snapshot for a kind of target on tasks held out, and of what is below it.",
            labels=["target_kind", "model", "figure"],
        )
        for kind in sorted({target.kind for target in self._store.targets()}):
            for newest in self._store.snapshots.list(kind, limit=1):
                for model, name in (("snapshot", "held_out"), ("below", "below")):
                    figures = newest.metrics.get(name) or {}
                    for figure in FIGURES:
                        if (value := figures.get(figure)) is not None:
                            metric.add_metric([kind, model, figure], value)
        yield metric


class TrialCounts:
    """How trials ended. All but the newest are counted once, and again where any may have been changed since."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settled: Counts[Status] = Counts()
        self._settled_through = 0  # the id up to which they are counted
        self._changes: TrialChanges | None = None  # before they were
        self._counted_at_s = 0.0  # when all of them were

    def read(self) -> Counts[Status]:
        """How many ended each way. Not by several threads at once. Raises StoreError."""
        changes = self._store.trial_changes(UNSETTLED)
        if changes != self._changes or time.monotonic() - self._counted_at_s >= RECOUNT_S:
            self._settled, self._settled_through, self._changes = Counts(), 0, changes
            self._counted_at_s = time.monotonic()
        through = self._store.newest_trial() - UNSETTLED
        if through > self._settled_through:
            self._settled += Counts(self._store.statuses(self._settled_through, through))
            self._settled_through = through
        return self._settled + Counts(self._store.statuses(self._settled_through))


def _gauge(name: str, meaning: str, value: float) -> Metric:
    metric = GaugeMetricFamily(name, meaning)
    metric.add_metric([], value)
    return metric


def _labelled_gauge(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    metric = GaugeMetricFamily(name, meaning, labels=[label])
    for word, value in values.items():
        metric.add_metric([word], value)
    return metric
