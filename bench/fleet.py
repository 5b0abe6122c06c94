"""A fleet on a large database: `./dev bench fleet [--records N] [--workers N]`. Results: bench/results/fleet.json.

Fills a PostgreSQL database with made records, serves it by a real process, and measures single lookups. Then
simulated tuner processes do by HTTP what `tunewright work --server` does: they take jobs, claim tasks, read what is
known, store a trial after each second or so, renew their leases and finish. More and more of them tell what breaks
first. Exit code 1 where a bound is missed, or anything that a tuner process asked failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import text

from tunewright.api.client.work.call_form import to_json
from tunewright.api.client.work.operations import FORM
from tunewright.api.client.work.remote_store import RemoteJobs
from tunewright.bench.files import RESULTS, write_whole
from tunewright.bench.lookup import (
    HttpConnection,
    LatencyFigure,
    figure,
    fill_database,
    log,
    lookup_body,
    make_database,
    show,
)
from tunewright.bench.service import ServiceProcess, run_service
from tunewright.bench.synthetic_records import SyntheticRecords
from tunewright.codegen.host import detect, machine
from tunewright.codegen.target import Target
from tunewright.db.database import new_write_id
from tunewright.db.job import JobSpec, SearchBudget, SpecTask
from tunewright.db.store import open_store
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

MADE = 1_000_000
"""Records that are made one by one. Where more are asked for, these are copied under other keys of schedules."""

SINGLE_MS = 10.0
"""Bound of the 99th percentile of single lookups."""

LOOKUPS = 3000

TRIAL_S = 1.0
"""Mean seconds between two trials of a tuner process: building, checking and timing one takes so long."""

ROUND = 4
"""Trials between two claims."""

RENEW_S = 10.0
"""How often a tuner process renews its lease."""

LINES = 2
"""Connections of a tuner process: it works on one thread, and renews its lease on another."""

PROVENANCE = machine()

FLEETS = (100, 250, 500)
"""Smaller fleets that are measured before the whole one."""

COPY = """
INSERT INTO trials (task_key, target_key, schedule_key, schedule, sketch, sketch_version, status, median_s, low_s,
    high_s, samples_s, max_rel_err, error, build_s, object_sha256, provenance, created_at)
SELECT task_key, target_key, md5(schedule_key || %(copy)s) || md5(%(copy)s || schedule_key), schedule, sketch,
    sketch_version, status, median_s * %(slower)s, low_s * %(slower)s, high_s * %(slower)s, samples_s, max_rel_err,
    error, build_s, object_sha256, provenance, created_at
FROM trials WHERE id <= %(last)s
"""


@dataclass(slots=True)
class FleetLoad:
    """What simulated tuner processes did."""

    times_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # of calls by operation
    failures: list[str] = field(default_factory=list)

    def calls(self) -> int:
        return sum(map(len, self.times_s.values()))


class CallError(Exception):
    """A call failed, which is among the failures."""


class SimulatedTuner:
    """A tuner process that measures nothing: it waits, and stores an invented time."""

    def __init__(self, service: ServiceProcess, target: Target, load: FleetLoad, number: int) -> None:
        self._service, self._target, self._load = service, target, load
        self._rng = random.Random(number)
        self._lines = [HttpConnection(service.url, service.key) for _ in range(LINES)]
        self._idle = asyncio.Queue[HttpConnection]()
        for line in self._lines:
            self._idle.put_nowait(line)
        self._name = f"{number:016x}"
        self._lease: Any = None

    async def call(self, operation: str, write: bool = False, **arguments: Any) -> Any:
        """The result of a call."""
        request = {"form": FORM, "arguments": arguments} | ({"write": new_write_id()} if write else {})
        body, line = json.dumps(request).encode(), await self._idle.get()
        start_s = time.perf_counter()
        try:
            answer = await self._ask(line, body, f"/v1/work/{operation}")
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            self._load.failures.append(f"{operation}: {error!r}"[:300])
            raise CallError from error
        finally:
            self._idle.put_nowait(line)
        self._load.times_s[operation].append(time.perf_counter() - start_s)
        return json.loads(answer)["result"]

    async def _ask(self, line: HttpConnection, body: bytes, path: str) -> bytes:
        """The answer; asked again, as clients do, where the connection had rested for so long that it was closed."""
        try:
            return await line.ask(body, path)
        except (ConnectionError, asyncio.IncompleteReadError):
            line.close()
            return await line.ask(body, path)

    async def run(self, until_s: float) -> None:
        """Work on jobs until a moment."""
        await asyncio.sleep(self._rng.uniform(0.0, TRIAL_S))
        await self.call("fleet.enlist", tuner_id=self._name, host=self._name, pid=1, version="0", pool="local")
        while time.monotonic() < until_s:
            keys = [self._target.key]
            self._lease = await self.call("jobs.lease", target_keys=keys, holder=self._name, lease_s=60.0)
            if self._lease is None:
                await asyncio.sleep(1.0)
                continue
            heartbeat = asyncio.create_task(self._keep())
            try:
                await self._search(until_s)
            finally:
                heartbeat.cancel()
                await asyncio.gather(heartbeat, return_exceptions=True)
            await self.call("jobs.finish", True, lease=self._lease, state="succeeded", result={"trials": 1})
        for line in self._lines:
            line.close()

    async def _keep(self) -> None:
        renewed_s = time.monotonic()
        while True:
            await asyncio.sleep(RemoteJobs.look_s)
            if time.monotonic() - renewed_s >= RENEW_S:
                await self.call("jobs.renew", True, lease=self._lease, progress={"trials": 1}, spent_s=RENEW_S)
                renewed_s = time.monotonic()
            else:
                await self.call("jobs.orders", job_id=self._lease["job_id"])

    async def _search(self, until_s: float) -> None:
        """Trials of the job's task, in rounds."""
        job = await self.call("jobs.get", job_id=self._lease["job_id"])
        task = job["spec"]["tasks"][0]["task_key"]
        while time.monotonic() < until_s:
            await self.call("jobs.claim", True, lease=self._lease, task_key=task)
            await self.call("store.schedule_keys", task_key=task, target_key=self._target.key)
            await self.call("store.standings", task_keys=[task], target_key=self._target.key)
            for _ in range(ROUND):
                await asyncio.sleep(self._rng.uniform(0.5, 1.5) * TRIAL_S)
                record = to_json(Record(task, self._target.key, self._schedule(), self._measurement()))
                await self.call("store.record", True, record=record, lease=self._lease)
            await self.call("jobs.release_claims", True, lease=self._lease)

    def _schedule(self) -> Schedule:
        return Schedule("tiled", 1, (("trial", self._rng.getrandbits(50)),))

    def _measurement(self) -> Measurement:
        time_s = self._rng.uniform(1e-3, 2e-3)
        return Measurement(Status.OK, (time_s,) * 9, time_s, time_s, time_s, 1e-7, "", 0.1, "ab" * 32, PROVENANCE)


def main() -> int:
    """Measure everything, print it, and say whether all bounds hold."""
    parser = argparse.ArgumentParser(prog="./dev bench fleet", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000_000, help="trials in the database (%(default)s)")
    parser.add_argument("--workers", type=int, default=1000, help="simulated tuner processes (%(default)s)")
    parser.add_argument("--seconds", type=float, default=40.0, help="for which each fleet works (%(default)s)")
    arguments = parser.parse_args()
    target = detect()
    with tempfile.TemporaryDirectory(prefix="tw-") as folder, make_database("postgres", Path(folder)) as url:
        made, filling = fill_many(url, arguments.records, target)
        submit_jobs(url, made, target, 2 * arguments.workers)
        with run_service(url, Path(folder)) as service:
            single = measure_lookups(service, made, target)
            show([single])
            sizes = [*(size for size in FLEETS if size < arguments.workers), arguments.workers]
            fleets = [measure_fleet(service, url, target, size, arguments.seconds) for size in sizes]
    results = {
        "lookup": asdict(single) | {"holds": single.holds},
        "filling": filling,
        "fleets": fleets,
        "trial_s": TRIAL_S,
        "cores": os.cpu_count(),
        "machine": machine(),
        "versions": {name: version(name) for name in ("fastapi", "uvicorn", "sqlalchemy", "psycopg")},
    }
    write_whole(RESULTS / "fleet.json", f"{json.dumps(results, indent=1)}\n".encode())
    return 0 if single.holds and not any(fleet["failures"] for fleet in fleets) else 1


def fill_many(url: str, records: int, target: Target) -> tuple[SyntheticRecords, dict[str, Any]]:
    """Put so many trials into a database."""
    made, made_s = fill_database("postgres", url, min(records, MADE), target)
    start_s, connection = time.monotonic(), psycopg.connect(url, autocommit=True)
    with connection, connection.cursor() as cursor:
        [(last,)] = cursor.execute("SELECT max(id) FROM trials").fetchall()
        for copy in range(1, records // made.trials):
            cursor.execute(COPY, {"copy": str(copy), "slower": 1 + copy / 100, "last": last})
            log(f"{(copy + 1) * made.trials:,} trials after {made_s + time.monotonic() - start_s:.0f} s")
        cursor.execute("ANALYZE")
        sizes = {name: cursor.execute(f"SELECT {query}").fetchall()[0][0] for name, query in SIZES.items()}
    filled_s = made_s + time.monotonic() - start_s
    return made, {"records": sizes["records"], "seconds": filled_s, **sizes}


SIZES = {
    "records": "count(*) FROM trials",
    "table_bytes": "pg_table_size('trials')",
    "index_bytes": "pg_indexes_size('trials')",
    "database_bytes": "pg_database_size(current_database())",
}
"""What is told of a filled database, as PostgreSQL is asked."""


def submit_jobs(url: str, made: SyntheticRecords, target: Target, count: int) -> None:
    """Queue so many jobs of one task each."""
    with open_store(url) as store:
        for number in range(count):
            task = made.tasks[number % len(made.tasks)]
            spec = JobSpec("", target.key, (SpecTask(task.key, 1),), {"seed": number})
            store.jobs.submit(spec, f"job {number}", SearchBudget(None))


def measure_lookups(service: ServiceProcess, made: SyntheticRecords, target: Target) -> LatencyFigure:
    """Lookups of a task each, one after the other, most of them for the first time."""

    async def send() -> list[float]:
        line, rng, times_s = HttpConnection(service.url, service.key), random.Random(0), []
        for _ in range(LOOKUPS):
            body = lookup_body(target, [rng.choice(made.tasks).key])
            start_s = time.perf_counter()
            [item] = json.loads(await line.ask(body))["items"]
            times_s.append(time.perf_counter() - start_s)
            if item["match"] != "exact":
                raise SystemExit("a task that was measured is not found")
        line.close()
        return times_s

    return figure("a single lookup", asyncio.run(send()), SINGLE_MS)


def measure_fleet(service: ServiceProcess, url: str, target: Target, size: int, seconds: float) -> dict[str, Any]:
    """What so many tuner processes get done, and how long their calls take."""
    load, cpu_s = FleetLoad(), _cpu_s(service.pid)

    async def work() -> None:
        until_s = time.monotonic() + seconds
        tuners = [SimulatedTuner(service, target, load, number) for number in range(size)]
        ended = await asyncio.gather(*(tuner.run(until_s) for tuner in tuners), return_exceptions=True)
        load.failures += [
            repr(error)[:300] for error in ended if error is not None and not isinstance(error, CallError)
        ]

    stored, start_s = _trials(url), time.monotonic()
    asyncio.run(work())
    elapsed_s = time.monotonic() - start_s
    figures = [figure(name, times_s, None) for name, times_s in sorted(load.times_s.items())]
    trials_a_second = (_trials(url) - stored) / elapsed_s
    share = (_cpu_s(service.pid) - cpu_s) / elapsed_s
    log(f"{size} tuner processes: {trials_a_second:.0f} trials, {load.calls() / elapsed_s:.0f} calls a second, ")
    log(f"the service takes {share:.2f} of a core; {len(load.failures)} calls failed")
    for line in load.failures[:3]:
        log(line)
    show(figures)
    return {
        "workers": size,
        "seconds": elapsed_s,
        "trials_a_second": trials_a_second,
        "calls_a_second": load.calls() / elapsed_s,
        "service_cores": share,
        "failures": len(load.failures),
        "first_failure": (load.failures or [""])[0],
        "calls": [asdict(one) for one in figures],
    }


def _trials(url: str) -> int:
    """How many trials of jobs there are."""
    with open_store(url) as store, store.database.read() as session:
        return int(session.scalar(text("SELECT count(*) FROM trials WHERE job_id IS NOT NULL")) or 0)


def _cpu_s(pid: int) -> float:
    """Seconds of a core that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
