"""The migrations: they lead to the models, from every schema that was ever released."""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tunewright.db import schema, translate
from tunewright.db.choice import update_bests
from tunewright.db.engine import WRITE_OPTION, make_engine, parse_url
from tunewright.db.errors import StoreError
from tunewright.db.job import UNFINISHED, EventKind, Idempotency, JobState, SearchBudget
from tunewright.db.snapshot import NewSnapshot
from tunewright.db.store import open_store
from tunewright.db.tables import (
    IS_UNFINISHED,
    BestRow,
    ConfirmationRow,
    DeviceOrderRow,
    TaskRow,
    TrialRow,
    UploadRow,
)
from tunewright.db.trial import TrialOrder

from .conftest import FROZEN


@pytest.fixture
def scripts():
    with open_store("sqlite://") as store, store.database.engine.connect() as connection:
        yield ScriptDirectory.from_config(schema.migration_config(connection))


def test_there_is_one_head_and_the_code_knows_it(scripts):
    assert scripts.get_heads() == [schema.HEAD]


def test_revisions_are_numbered_in_one_line(scripts):
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert revisions[::-1] == [f"{number:04}" for number in range(1, len(revisions) + 1)]


def test_there_is_a_frozen_database_of_every_schema(scripts):
    assert [path.stem for path in FROZEN] == sorted(script.revision for script in scripts.walk_revisions())


@pytest.fixture
def migrated(url):
    """A connection to a database that the migrations made from nothing."""
    engine = make_engine(parse_url(url), wait_s=10)
    with engine.connect().execution_options(**{WRITE_OPTION: True}) as connection, connection.begin():
        schema.migrate(connection)
        yield connection
    engine.dispose()


def test_migrations_make_what_the_models_say(migrated):
    context = MigrationContext.configure(migrated, opts={"compare_type": True, "compare_server_default": True})
    assert compare_metadata(context, schema.METADATA) == []


def described(connection):
    """All of the tables, with the conditions of partial indexes, which Alembic does not compare."""
    inspector = sa.inspect(connection)
    return {
        name: (
            [{**column, "type": str(column["type"]), "default": None} for column in inspector.get_columns(name)],
            inspector.get_pk_constraint(name),
            sorted(inspector.get_foreign_keys(name), key=lambda key: key["name"]),
            sorted(inspector.get_unique_constraints(name), key=lambda constraint: constraint["name"]),
            [
                {**index, "dialect_options": {option: str(value) for option, value in index["dialect_options"].items()}}
                for index in sorted(inspector.get_indexes(name), key=lambda index: index["name"])
            ],
        )
        for name in inspector.get_table_names()
    }


def test_migrations_make_the_same_tables_as_the_models(migrated, make_url):
    is_sqlite = migrated.dialect.name == "sqlite"
    with (
        open_store(make_url("memory" if is_sqlite else "postgres")) as store,
        store.database.engine.connect() as connection,
    ):
        assert described(connection) == described(migrated)


def test_the_models_know_the_unfinished_states():
    assert str(IS_UNFINISHED) == f"state IN ({', '.join(repr(state.value) for state in UNFINISHED)})"
    assert set(UNFINISHED) == set(JobState) - {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}


def row_texts(store, task_key):
    with store.database.read() as session:
        row = session.get(TaskRow, task_key)
        return row.family, row.shape


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_database_is_upgraded_and_read(path, tmp_path, look):
    shutil.copy(path, tmp_path / "old.sqlite")
    with open_store(f"sqlite:///{tmp_path}/old.sqlite") as store:
        assert store.schema_before == path.stem
        assert look(f"sqlite:///{tmp_path}/old.sqlite").damage == ""
        (job,) = store.jobs.list([JobState.SUCCEEDED])
        trials = store.jobs.trials(job.id)
        assert (job.state, job.label, job.result) == (JobState.SUCCEEDED, "frozen.onnx", {"tuned_ms": 1.5})
        assert [trial.record.measurement.status.value for trial in trials] == ["ok", "ok", "wrong_result"]
        for trial in trials:
            task, target = store.task(trial.record.task_key), store.target(trial.record.target_key)
            assert (task.key, target.key) == (trial.record.task_key, trial.record.target_key)
            assert trial.record.schedule.key in store.schedule_keys(task.key, target.key)
        assert store.best(task.key, target.key) == trials[1].record
        assert store.confirmations([task.key], target.key) == {task.key: trials[1].record}
        assert len(list(store.export())) == len(trials) + 1
        for key in store.task_keys():
            assert row_texts(store, key) == (store.task(key).family, store.task(key).shape)
        lease = store.jobs.open(job.spec, "", SearchBudget(1), "h")
        assert lease is not None and lease.job_id != job.id


@pytest.mark.parametrize("path", [path for path in FROZEN if path.stem >= "0002"], ids=lambda path: path.stem)
def test_a_frozen_service_is_upgraded_and_goes_on(path, tmp_path):
    shutil.copy(path, tmp_path / "old.sqlite")
    with open_store(f"sqlite:///{tmp_path}/old.sqlite") as store:
        (job,) = store.jobs.list([JobState.RUNNING])
        (key,) = store.keys.list()
        (upload,) = store.uploads.list()
        (tuner,) = store.fleet.tuners(silent_s=1e9)
        assert (job.label, job.budget, job.priority, job.owner) == ("sent.onnx", SearchBudget(9), 2, key.id)
        assert (job.spec.model_sha256, upload.owner) == (upload.sha256, key.id)
        assert b"".join(store.uploads.read(upload.sha256)) == b"a model"
        assert (tuner.job_id, tuner.devices[0].target_key) == (job.id, job.spec.target_key)
        kinds = [event.kind for event in store.jobs.events(job.id)]
        assert kinds == [EventKind.QUEUED, EventKind.STARTED, EventKind.STAGE]
        again = store.jobs.submit(job.spec, "", SearchBudget(1), idempotency=Idempotency(key.id, "once", "ef" * 32))
        assert again.job.id == job.id
        lease = store.jobs.lease([job.spec.target_key], "h")
        assert lease is not None and store.jobs.claim(lease, job.spec.tasks[0].task_key)


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_database_keeps_cost_models(path, tmp_path):
    shutil.copy(path, tmp_path / "old.sqlite")
    with open_store(f"sqlite:///{tmp_path}/old.sqlite") as store:
        (job,) = store.jobs.list([JobState.SUCCEEDED])
        trials = [trial.record.measurement for trial in store.jobs.trials(job.id)]
        (cost_model,) = store.snapshots.list() or [
            store.snapshots.keep(NewSnapshot("cpu", "1", b"a cost model", 3, 3, {}))
        ]
        [snapshot] = store.snapshots.list("cpu")
        newest = store.snapshots.newest("cpu", "1", snapshot.parent_sha256)
        assert newest is not None
        assert (newest.id, newest.content) == (cost_model.id, b"a cost model")
        if path.stem >= "0003":
            assert (newest.metrics["pairwise"], newest.job_id) == (0.9, job.id)
            assert [(trial.incumbent_s, trial.warm_s) for trial in trials] == [
                (None, None),
                (2e-6, 1.2e-6),
                (None, None),
            ]


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_database_says_when_the_best_was_created(path, tmp_path):
    shutil.copy(path, tmp_path / "old.sqlite")
    with open_store(f"sqlite:///{tmp_path}/old.sqlite") as store:
        (hit,) = store.catalog.search(op="relu", shape="8 -> 8")
        confirmed = [line for line in store.export() if line["kind"] == "confirmation"]
        assert [line["created_at"] for line in confirmed] == [hit.created_at.isoformat()]
        (job,) = store.jobs.list([JobState.SUCCEEDED])
        page = store.trials.page(hit.best.task_key, hit.best.target_key, job_id=job.id, order=TrialOrder.FASTEST)
        assert [line.ordinal for line in page.trials] == [1, 0, 2]


BEFORE_TRUST = ";".join(
    [
        "DROP TABLE device_orders",
        "DROP TABLE log_promotions",
        "DROP TABLE log_release_entries",
        "DROP TABLE log_releases",
        "DROP TABLE deliveries",
        "DROP TABLE webhooks",
        "DROP TABLE job_tags",
        "DROP INDEX ix_jobs_owner_id",
        "ALTER TABLE jobs DROP COLUMN notes",
        "ALTER TABLE tuners DROP COLUMN owner",
        "ALTER TABLE tuners DROP COLUMN wish",
        "ALTER TABLE uploads DROP COLUMN used_at",
        "DROP TABLE log_entries",
        "DROP TABLE log_environments",
        "DROP TABLE log_namespaces",
        "ALTER TABLE api_keys DROP COLUMN namespaces",
        "DROP INDEX ix_job_tasks_task_key",
        "ALTER TABLE bests DROP COLUMN samples",
        "DROP TABLE voids",
        *(
            f"ALTER TABLE {table} DROP COLUMN {column}"
            for table in ("trials", "repeats", "confirmations")
            for column in ("is_imported", "voided_at", "void_reason", "measured_status")
        ),
        "ALTER TABLE bests DROP COLUMN is_imported",
        "UPDATE alembic_version SET version_num = '0004'",
    ]
)
"""Back to the schema before 0005, which did not tell what was timed here from what was imported."""

BEFORE_PAGES = """
DROP INDEX ix_bests_created_at_target_key_task_key;
DROP INDEX ix_trials_job_id_task_key_status_created_at;
DROP INDEX ix_trials_task_key_target_key_status_median_s_id_job_id;
CREATE INDEX ix_trials_task_key_target_key_status_median_s ON trials (task_key, target_key, status, median_s);
ALTER TABLE bests DROP COLUMN created_at;
ALTER TABLE tasks DROP COLUMN shape;
UPDATE alembic_version SET version_num = '0003'
"""
"""Back to the schema before 0004, which knew neither shapes nor when what is best was created."""


@pytest.mark.slow
def test_a_migration_finds_shapes_and_moments(shared_url, samples, make_clock):
    with open_store(shared_url) as store:
        store.database.clock = clock = make_clock()
        samples.fill(store)
        store.add_tasks(samples.task(extent) for extent in range(10, 540))  # more than it reads at once
        for extent in range(10, 26):  # of each task some of: a trial, a confirmation, trials behind it, repeats
            steps = ((store.record, 2e-3), (store.confirm, 1e-3), (store.record, 5e-4), (store.record, 5e-4))
            for number, (do, median_s) in enumerate(steps):
                clock.advance(1)
                if extent >> number & 1:
                    do(samples.record(number, samples.measurement(median_s), extent=extent))
        for line in [line for line in store.export() if line["kind"] == "trial"][::3]:
            for factor in (1, 0.5, 0.5):
                clock.advance(1)
                times = {name: line[name] * factor for name in ("low_s", "median_s", "high_s")}
                times["samples_s"] = [sample_s * factor for sample_s in line["samples_s"]]
                changed = {"created_at": clock.now.isoformat()} | times
                store.import_([json.dumps(line | changed)])
        with store.database.write() as session:  # as older schemas have it: no job has measured anything of this
            for row in (TrialRow, ConfirmationRow):
                session.execute(sa.update(row).values(is_imported=True))
            update_bests(store.database, session, [(samples.target().key, key) for key in store.task_keys()])
        before = store.catalog.search()
        assert len(before) == 15 and len({hit.created_at for hit in before}) > 12
        with store.database.engine.begin() as connection:
            for statement in (*BEFORE_TRUST.split(";"), *BEFORE_PAGES.split(";")):
                connection.exec_driver_sql(statement)
    with open_store(shared_url) as store, store.database.read() as session:
        assert store.schema_before == "0003"
        assert store.catalog.search() == before
        shapes = dict(session.execute(sa.select(TaskRow.key, TaskRow.shape)).all())
        assert shapes == {samples.task(extent).key: f"{extent} -> {extent}" for extent in range(8, 540)}


def test_a_migration_tells_what_was_timed_here(shared_url, samples):
    record, key = samples.record, (samples.task().key, samples.target().key)
    with open_store(shared_url) as store, open_store("sqlite://") as elsewhere:
        for reader in (store, elsewhere):
            samples.fill(reader)
        lease = store.jobs.open(samples.spec(), "", SearchBudget(9), "h")
        store.record(record(1, samples.measurement(2e-3)), lease)
        elsewhere.record(record(2, samples.measurement(1e-6)))
        elsewhere.record(record(1, samples.measurement(1e-6)))
        elsewhere.record(record(3, samples.measurement(3e-6), extent=9, threads=4))
        elsewhere.confirm(record(4, samples.measurement(4e-6), extent=9, threads=4))
        store.import_([json.dumps(line) for line in elsewhere.export()])
        own_best, other_key = store.best(*key), (samples.task(9).key, samples.target(4).key)
        before = store.catalog.search()
        with store.database.engine.begin() as connection:
            for statement in BEFORE_TRUST.split(";"):
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql("UPDATE bests SET median_s = 1e-6, is_confirmed = is_confirmed")
    with open_store(shared_url) as store:
        assert (store.schema_before, own_best, store.best(*key)) == (
            "0004",
            record(1, samples.measurement(2e-3)),
            own_best,
        )
        assert store.catalog.search() == before
        assert [store.catalog.best([task], [on])[task, on].is_imported for task, on in (key, other_key)] == [
            False,
            True,
        ]
        assert store.hints(*key) == [samples.schedule(2)]
        assert store.records(*other_key) == []


def test_what_an_older_version_stores_meanwhile_is_found(filled, samples):
    filled.record(samples.record(1))
    task_values = translate.task_values(samples.task(10))
    with filled.database.write_core() as connection:
        (best,) = connection.execute(sa.select(BestRow.__table__)).mappings()
        del task_values["shape"]
        connection.execute(sa.insert(TaskRow), task_values)
        values = {name: value for name, value in best.items() if name not in ("created_at", "is_imported", "samples")}
        connection.execute(sa.insert(BestRow), values | {"task_key": task_values["key"]})
    known, unknown = filled.catalog.search()
    assert (known.shape, unknown.shape, unknown.created_at) == ("8 -> 8", "", datetime(1970, 1, 1, tzinfo=UTC))
    assert filled.catalog.search(after=known.place) == [unknown]
    assert filled.catalog.search(after=unknown.place) == []


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_database_gets_the_tables_of_a_new_one(path, tmp_path):
    shutil.copy(path, tmp_path / "old.sqlite")
    with (
        open_store(f"sqlite:///{tmp_path}/old.sqlite") as old,
        open_store(f"sqlite:///{tmp_path}/new.sqlite") as new,
        old.database.engine.connect() as old_connection,
        new.database.engine.connect() as new_connection,
    ):
        assert described(old_connection) == described(new_connection)


def test_an_empty_database_says_so(make_url):
    url = make_url("sqlite")
    with open_store(url) as store:
        assert store.schema_before is None
    with open_store(url) as store:
        assert store.schema_before == schema.HEAD


def test_a_newer_schema_is_refused_and_left_alone(shared_url):
    with open_store(shared_url) as store, store.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="schema 9999 is newer than this version of tunewright, which knows up to"):
        open_store(shared_url)


def test_tables_of_another_program_are_left_alone(shared_url):
    with open_store(shared_url) as store, store.database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE alembic_version")
    with pytest.raises(StoreError, match="its table api_keys belongs to another program"):
        open_store(shared_url)


def test_a_failed_migration_changes_nothing(shared_url, monkeypatch):
    monkeypatch.setattr(schema, "_check_references", lambda engine, connection: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_store(shared_url)
    monkeypatch.undo()
    with open_store(shared_url) as store:
        assert store.schema_before is None
        assert store.database.engine.dialect.name == "postgresql" or store._pragma("foreign_keys") == "1"


@pytest.mark.slow
def test_processes_that_start_at_once_migrate_once(shared_url):
    code = "import sys; from tunewright.db.store import open_store; print(open_store(sys.argv[1]).schema_before)"
    runs = [
        subprocess.Popen([sys.executable, "-c", code, shared_url], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    outputs = [run.communicate()[0].strip() for run in runs]
    assert [run.returncode for run in runs] == [0] * 4
    assert set(outputs) <= {"None", schema.HEAD}
    with open_store(shared_url) as store:
        assert store.schema_before == schema.HEAD


@pytest.mark.slow
def test_a_new_revision_can_be_written(tmp_path):
    """In a copy of the folder, with a column more than the newest revision has."""
    root = Path(schema.__file__).parents[1]
    for folder in ("db", "codegen", "graph", "search_space"):
        shutil.copytree(root / folder, tmp_path / "tunewright" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    models = tmp_path / "tunewright/db/tables.py"
    text = models.read_text().replace(
        "    op: Mapped[str]", "    extra: Mapped[str | None] = mapped_column(Text)\n    op: Mapped[str]"
    )
    models.write_text(text)
    command = [sys.executable, "-m", "tunewright.db.migrations", "Add extra"]
    run = subprocess.run(
        command, check=False, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    (written,) = (tmp_path / "tunewright/db/migrations/versions").glob(f"{int(schema.HEAD) + 1:04}_*.py")
    assert written.read_text().startswith('"""Add extra."""')
    assert "batch_op.add_column(sa.Column('extra'" in written.read_text()
    compile(written.read_text(), str(written), "exec")


def test_models_of_older_databases_were_used_when_they_were_sent(tmp_path):
    shutil.copy(next(path for path in FROZEN if path.stem == "0008"), tmp_path / "old.db")
    with open_store(f"sqlite:///{tmp_path / 'old.db'}") as store, store.database.read() as session:
        [row] = session.scalars(sa.select(UploadRow))
        assert row.used_at == row.created_at


def test_orders_for_devices_are_kept(tmp_path):
    """They were among the devices of each tuner; of two of one device the newer is in force."""
    shutil.copy(next(path for path in FROZEN if path.stem == "0009"), tmp_path / "old.db")
    orders = [
        ["order", "gpu", "2099-01-01T00:00:00+00:00", "hot", "2026-11-29T10:00:00+00:00"],
        ["order", "cpu", None, "", "2026-11-29T12:00:00+00:00"],
    ]
    older = [["order", "cpu", "2099-01-01T00:00:00+00:00", "its fan", "2026-11-29T11:00:00+00:00"]]
    with closing(sqlite3.connect(tmp_path / "old.db")) as old, old:
        [(data,)] = old.execute("SELECT devices FROM tuners").fetchall()
        old.execute("UPDATE tuners SET devices = ?", [json.dumps(json.loads(data) + orders)])
        old.execute(
            "INSERT INTO tuners SELECT 'other', host, pid, version, pool, started_at, seen_at, ?, NULL, "
            "draining, owner, wish FROM tuners",
            [json.dumps(older)],
        )
    with open_store(f"sqlite:///{tmp_path / 'old.db'}") as store, store.database.read() as session:
        rows = session.scalars(sa.select(DeviceOrderRow).order_by(DeviceOrderRow.device))
        assert [(row.device, row.until and row.until.year, row.reason, row.given_at.hour) for row in rows] == [
            ("cpu", None, "", 12),
            ("gpu", 2099, "hot", 10),
        ]
