"""Synthetic records: any number, of real tasks and legal schedules, with invented times. For load, not for tuning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import numpy as np
import psycopg
from sqlalchemy import insert

from tunewright.codegen.host import machine
from tunewright.codegen.target import Target
from tunewright.db.store import Store, open_store
from tunewright.db.tables import BestRow, ConfirmationRow, Row, TargetRow, TaskRow, TrialRow
from tunewright.db.translate import target_values, task_values
from tunewright.graph.task import Task
from tunewright.search_space.sketches import spaces
from tunewright.tuner.models.model import open_model

NODES = 400
"""Products in a model that tasks are taken from."""

SAMPLES = 9
"""Samples of a synthetic measurement."""

BATCH = 2000
"""Rows written at once to SQLite."""

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SyntheticRecords:
    """The tasks that were stored, and the numbers of trials and confirmations."""

    tasks: list[Task]
    trials: int
    confirmations: int


def make_tasks(count: int) -> list[Task]:
    """Fused products of different sizes, as in models: relu(x w + b)."""
    sizes = iter(
        (rows, 16 * inner, 16 * columns)
        for rows in range(64, 1 << 20)
        for inner in range(1, 9)
        for columns in range(1, 9)
    )
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        for task, _ in open_model(products_model(list(islice(sizes, min(NODES, count - len(tasks)))))).tasks.values():
            tasks[task.key] = task
    return list(tasks.values())


def products_model(sizes: list[tuple[int, int, int]]) -> bytes:
    """An ONNX model with a product for each size."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, inputs, outputs, weights = [], [], [], []
    for number, (rows, inner, columns) in enumerate(sizes):
        inputs.append(helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, [rows, inner]))
        outputs.append(helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, [rows, columns]))
        shapes = ((inner, columns), f"w{number}"), ((columns,), f"b{number}")
        weights += [numpy_helper.from_array(np.full(shape, 0.5, np.float32), name) for shape, name in shapes]
        nodes += [
            helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"p{number}"]),
            helper.make_node("Add", [f"p{number}", f"b{number}"], [f"s{number}"]),
            helper.make_node("Relu", [f"s{number}"], [f"y{number}"]),
        ]
    graph = helper.make_graph(nodes, "products", inputs, outputs, weights)
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())


def fill(url: str, tasks: list[Task], target: Target, trials_a_task: int) -> SyntheticRecords:
    """Fill a database with so many trials of each task. The best of every second task is confirmed."""
    in_order = sorted(tasks, key=lambda task: task.key)  # so that indexes grow at their ends
    with open_store(url) as store:
        sink = _Sqlite(store) if store.database.is_sqlite else _Postgres(url)
        sink.write(TargetRow, iter([target_values(target)]))
        sink.write(TaskRow, map(task_values, in_order))
        best: list[dict[str, Any]] = []
        trials = sink.write(TrialRow, _trials(in_order, target, trials_a_task, best))
        confirmed = best[::2]
        later = MOMENT + timedelta(days=1)
        sink.write(ConfirmationRow, ({**row, "created_at": later} for row in confirmed))
        names = set(BestRow.__table__.columns.keys())
        best_rows = ({**row, "is_confirmed": place % 2 == 0, "samples": SAMPLES} for place, row in enumerate(best))
        sink.write(BestRow, ({name: value for name, value in row.items() if name in names} for row in best_rows))
        sink.close()
    return SyntheticRecords(tasks, trials, len(confirmed))


def _trials(
    tasks: list[Task], target: Target, trials_a_task: int, best: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The columns of the trials of all tasks; the fastest of each is appended to `best`."""
    rng = np.random.default_rng(0)
    shared = {
        "target_key": target.key,
        "status": "ok",
        "max_rel_err": 1e-7,
        "error": "",
        "build_s": 0.02,
        "object_sha256": "ab" * 32,
        "provenance": machine(),
    }
    for task in tasks:
        spread = rng.uniform(1.0, 3.0, (trials_a_task, SAMPLES))
        fastest: dict[str, Any] | None = None
        rows = [space.schedule(row) for space in spaces(task, target) for row in space.sample(trials_a_task, rng)]
        for place, schedule in enumerate(rows[:trials_a_task]):
            samples_s = [float(f"{1e-6 * value:.4g}") for value in np.sort(spread[place] + 0.01 * place)]
            values = shared | {
                "task_key": task.key,
                "schedule_key": schedule.key,
                "schedule": schedule.to_json(),
                "sketch": schedule.sketch,
                "sketch_version": schedule.version,
                "median_s": samples_s[SAMPLES // 2],
                "low_s": samples_s[1],
                "high_s": samples_s[-2],
                "samples_s": samples_s,
                "created_at": MOMENT + timedelta(seconds=place),
            }
            if fastest is None or values["median_s"] < fastest["median_s"]:
                fastest = values
            yield values
        if fastest is not None:
            best.append(fastest)


class _Sqlite:
    """Writes rows in batches, each a transaction."""

    def __init__(self, store: Store) -> None:
        self._database = store.database

    def write(self, row: type[Row], values: Iterator[dict[str, Any]]) -> int:
        count = 0
        while batch := list(islice(values, BATCH)):
            with self._database.write() as session:
                session.connection().execute(insert(row), batch)
            count += len(batch)
        return count

    def close(self) -> None:
        pass


class _Postgres:
    """Writes rows by COPY."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url)

    def write(self, row: type[Row], values: Iterator[dict[str, Any]]) -> int:
        count = 0
        value_row = next(values)
        names = list(value_row)
        statement = psycopg.sql.SQL("COPY {} ({}) FROM STDIN").format(
            psycopg.sql.Identifier(row.__tablename__),
            psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, names)),
        )
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            while True:
                copy.write_row(
                    [
                        json.dumps(value) if isinstance(value, dict | list) else value
                        for value in map(value_row.get, names)
                    ]
                )
                count += 1
                if (next_row := next(values, None)) is None:
                    break
                value_row = next_row
        self._connection.commit()
        return count

    def close(self) -> None:
        self._connection.commit()
        self._connection.autocommit = True
        self._connection.execute("ANALYZE")
        self._connection.close()
