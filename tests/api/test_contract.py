"""The contract: what schemathesis makes of the OpenAPI document is answered as the document says."""

import copy

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tunewright.api.http.service import Options
from tunewright.db.job import JobState
from tunewright.search_space.measurement import Measurement, Record, Status
from tunewright.search_space.schedule import Schedule

EXAMPLES = 25
"""Requests an operation, of each of the kinds that schemathesis makes."""

FUSSY = {
    *("import_records", "send_model", "take_model", "submit_job", "look_up", "login", "explain", "void_records"),
    *("retime_stale", "create_release", "explorer_page", "explorer_view", "compare_page", "compare_view"),
    *("look_up_values", "write_value", "import_entries", "decide", "create_webhook", "change_job", "extend_job"),
}
"""Operations that refuse requests which are well formed: for another digest, a code that is none, a reason with what
can't be printed, an interval without the time in it, an address that nothing is sent to, a limit that a job lacks, one
tag more than it may have, an environment without entries, a column that trials lack or a range that is none, a baseline
that is no such job: no JSON schema tells it."""


@pytest.fixture
def document(serve, kit):
    """The document of a service that knows a model, a job and a trial; cursors are left out, for they are made up."""
    most = 1_000_000
    options = Options(requests_per_minute=most, changes_per_minute=most, failures_per_minute=most, most_unfinished=most)
    with serve(options) as one:
        kit.enlist(one.store, kit.target())
        client = one.client()
        model = kit.send(client, 8)
        job = client.post("/v1/jobs", json={"model": model}).json()
        lease = one.store.jobs.lease([kit.target().key], "h")
        measurement = Measurement(Status.OK, (1e-3,), 1e-3, 1e-3, 1e-3, 0.0)
        one.store.record(
            Record(kit.task(8).key, kit.target().key, Schedule("tiled", 1, (("m", 1),)), measurement), lease
        )
        client.post(f"/v1/jobs/{job['id']}:cancel")
        one.store.jobs.finish(lease, JobState.CANCELLED)  # so that its events end
        described = copy.deepcopy(one.app.openapi())
        del described["paths"]["/v1/changes"]  # its answer has no end: test_changes.py
        described["components"]["schemas"]["Expression"] = {"type": "array"}  # schemathesis makes none inside itself
        for path in described["paths"].values():
            for operation in path.values():
                operation["parameters"] = [p for p in operation.get("parameters", []) if p["name"] != "cursor"]
                del operation["security"]  # test_access.py looks at that
                for answer in operation["responses"].values():
                    for content in answer.get("content", {}).values():
                        if items := content.get("x-item-schema"):  # schemathesis knows the word of OpenAPI 3.2
                            content |= {"itemSchema": items}
                            del content["schema"]
        schemathesis.serializer.alias("application/jsonl", "text/plain")
        schema = schemathesis.openapi.from_dict(described)
        schema.config.update(base_url=one.url)
        yield schema, {"Authorization": f"Bearer {one.token}"}


@pytest.mark.slow
def test_every_operation_answers_as_it_says(document):
    schema, headers = document
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in GenerationMode:
            try_out(operation, mode, headers)


def try_out(operation, mode, headers):
    """Send some requests, and check the answers by all that schemathesis knows to check."""
    excluded = [positive_data_acceptance] if operation.definition.raw["operationId"] in FUSSY else []

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def answers(case):
        case.call_and_validate(excluded_checks=excluded, headers=headers, timeout=60)

    try:
        answers()
    except hypothesis.errors.Unsatisfiable:  # nothing about it could be wrong
        assert mode is GenerationMode.NEGATIVE, operation.label
