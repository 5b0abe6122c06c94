"""The migrations: they lead to the models, from every schema that was ever released."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tunewright.db import schema
from tunewright.db.cost_models import NewSnapshot
from tunewright.db.engine import WRITES, make_engine, parse_url
from tunewright.db.errors import StoreError
from tunewright.db.jobs import UNFINISHED, Budget, EventKind, Idempotency, JobState
from tunewright.db.models import IS_UNFINISHED, Row, TaskRow
from tunewright.db.sql_store import open_store

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
    with engine.connect().execution_options(**{WRITES: True}) as connection, connection.begin():
        schema.migrate(connection)
        yield connection
    engine.dispose()


def test_migrations_make_what_the_models_say(migrated):
    context = MigrationContext.configure(migrated, opts={"compare_type": True, "compare_server_default": True})
    assert compare_metadata(context, Row.metadata) == []


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


def row_family(store, task_key):
    with store.database.read() as session:
        return session.get(TaskRow, task_key).family


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
            assert trial.record.schedule.key in store.measured(task.key, target.key)
        assert store.best(task.key, target.key) == trials[1].record
        assert store.confirmed_many([task.key], target.key) == {task.key: trials[1].record}
        assert len(list(store.export())) == len(trials) + 1
        assert all(store.task(key).family == row_family(store, key) for key in store.task_keys())
        lease = store.jobs.open(job.spec, "", Budget(1), "h")
        assert lease is not None and lease.job_id != job.id


@pytest.mark.parametrize("path", [path for path in FROZEN if path.stem >= "0002"], ids=lambda path: path.stem)
def test_a_frozen_service_is_upgraded_and_goes_on(path, tmp_path):
    shutil.copy(path, tmp_path / "old.sqlite")
    with open_store(f"sqlite:///{tmp_path}/old.sqlite") as store:
        (job,) = store.jobs.list([JobState.RUNNING])
        (key,) = store.keys.list()
        (upload,) = store.uploads.list()
        (tuner,) = store.fleet.tuners(silent_s=1e9)
        assert (job.label, job.budget, job.priority, job.owner) == ("sent.onnx", Budget(9), 2, key.id)
        assert (job.spec.model_sha256, upload.owner) == (upload.sha256, key.id)
        assert b"".join(store.uploads.read(upload.sha256)) == b"a model"
        assert (tuner.job_id, tuner.devices[0].target_key) == (job.id, job.spec.target_key)
        kinds = [event.kind for event in store.jobs.events(job.id)]
        assert kinds == [EventKind.QUEUED, EventKind.STARTED, EventKind.STAGE]
        again = store.jobs.submit(job.spec, "", Budget(1), idempotency=Idempotency(key.id, "once", "ef" * 32))
        assert again.job.id == job.id
        lease = store.jobs.lease([job.spec.target_key], "h")
        assert lease is not None and store.jobs.claim(lease, job.spec.tasks[0].task_key)


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_database_keeps_cost_models(path, tmp_path):
    shutil.copy(path, tmp_path / "old.sqlite")
    with open_store(f"sqlite:///{tmp_path}/old.sqlite") as store:
        (job,) = store.jobs.list([JobState.SUCCEEDED])
        trials = [trial.record.measurement for trial in store.jobs.trials(job.id)]
        (kept,) = store.costs.list() or [store.costs.keep(NewSnapshot("cpu", "1", b"a cost model", 3, 3, {}))]
        [snapshot] = store.costs.list("cpu")
        newest = store.costs.newest("cpu", "1", snapshot.parent_sha256)
        assert newest is not None
        assert (newest.id, newest.content) == (kept.id, b"a cost model")
        if path.stem >= "0003":
            assert (newest.metrics["pairwise"], newest.job_id) == (0.9, job.id)
            assert [(trial.incumbent_s, trial.warm_s) for trial in trials] == [
                (None, None),
                (2e-6, 1.2e-6),
                (None, None),
            ]


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_database_gets_the_tables_of_a_new_one(path, tmp_path):
    shutil.copy(path, tmp_path / "old.sqlite")
    with (
        open_store(f"sqlite:///{tmp_path}/old.sqlite") as old,
        open_store(f"sqlite:///{tmp_path}/new.sqlite") as new,
        old.database.engine.connect() as ours,
        new.database.engine.connect() as theirs,
    ):
        assert described(ours) == described(theirs)


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


def test_processes_that_start_at_once_migrate_once(shared_url):
    code = "import sys; from tunewright.db.sql_store import open_store; print(open_store(sys.argv[1]).schema_before)"
    runs = [
        subprocess.Popen([sys.executable, "-c", code, shared_url], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    found = [run.communicate()[0].strip() for run in runs]
    assert [run.returncode for run in runs] == [0] * 4
    assert set(found) <= {"None", schema.HEAD}
    with open_store(shared_url) as store:
        assert store.schema_before == schema.HEAD


def test_a_new_revision_can_be_written(tmp_path):
    """In a copy of the folder, with a column more than the newest revision has."""
    root = Path(schema.__file__).parents[1]
    for folder in ("db", "codegen", "graph", "search_space"):
        shutil.copytree(root / folder, tmp_path / "tunewright" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    models = tmp_path / "tunewright/db/models.py"
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
