"""Jobs for a GPU: its schedules searched like any others, by a model that is fitted to what they took."""

from __future__ import annotations

from onnx import parser

from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.db.job import SearchBudget
from tunewright.graph.numerics import Numerics
from tunewright.search_space.sketches import holds
from tunewright.tuner.models.model import open_model
from tunewright.tuner.search.job import TuningJob
from tunewright.tuner.search.lease_keeper import LeaseKeeper

from .fake_pool import LEASE_S, FakePool, by_key, spec_of

GPU = Target.of_gpu(KNOWN["sm_90a"])

TEXT = """<ir_version: 10, opset_import: ["" : 20]> m (float16[64, 96] x, float16[96, 80] w, float[64, 256] z)
    => (float16 y, float s) { t = MatMul(x, w) y = Relu(t) s = Softmax(z) }"""

TRIALS = 40

SKETCHES = {"specialized_tiles", "warpgroup_tiles", "warp_tiles", "product_tiles", "row_blocks"}
"""For these tasks."""


def test_a_search_for_a_gpu(store):
    model = open_model(parser.parse_model(TEXT).SerializeToString(), numerics=Numerics(widen=False))
    assert not model.fallbacks
    lease = store.jobs.open(spec_of(model, store, target=GPU), model.label, SearchBudget(TRIALS), "me", LEASE_S)
    with LeaseKeeper(store.jobs, lease, LEASE_S) as keeper:
        job = store.jobs.get(lease.job_id)
        report = TuningJob(job, list(model.tasks.values()), GPU, store, FakePool(by_key), keeper).run()
    assert report.trials == TRIALS
    tasks = {key: task for key, (task, _) in model.tasks.items()}
    tried = [trial.record for trial in store.jobs.trials(lease.job_id)]
    assert {record.schedule.sketch for record in tried} == SKETCHES
    assert all(holds(tasks[record.task_key], GPU, record.schedule) for record in tried)
    assert len({(record.task_key, record.schedule.key) for record in tried}) == TRIALS
