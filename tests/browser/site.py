"""The service that browsers look at: its processes, a tuner process, and jobs in every state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tunewright.api.dashboard.links import make_link
from tunewright.codegen.host import detect
from tunewright.db.job import JobState
from tunewright.db.store import Store, open_store

from ..api.compared import Confirmed, finished, slower
from ..api.examples import product
from ..service.service import Service

LEASE_S = 10.0

HOSTILE = "<img src=x onerror=alert(1)>\u202e{{ 7*7 }}'\"&.onnx"
"""A label that is nothing but text."""


def model(*sizes: int) -> bytes:
    """Products of 32 rows, one behind the other, with their activations: a task for each."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for n, (depth, columns) in enumerate(pairwise(sizes)):
        weights.append(numpy_helper.from_array(rng.standard_normal((depth, columns)).astype(np.float32), f"w{n}"))
        nodes += [
            helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"p{n}"]),
            helper.make_node("Relu", [f"p{n}"], [f"x{n + 1}"]),
        ]
    ends = [("x0", sizes[0]), (f"x{len(sizes) - 1}", sizes[-1])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [32, size]) for name, size in ends]
    graph = helper.make_graph(nodes, "products", values[:1], values[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


class Site:
    """A service in a process of its own on SQLite, and a tuner process that takes little time for each trial."""

    def __init__(self, folder: Path) -> None:
        self.service = Service(f"sqlite:///{folder}/site.db", folder, LEASE_S)
        self.service.start_api("api")
        self.service.start_tuner("tuner")
        self.service.await_api("api")
        self.url = self.service.addresses["api"]
        self.store = open_store(self.service.url)

    def link(self) -> str:
        """A link that opens the dashboard, once."""
        return make_link(self.store, self.url).url

    def submit(self, data: bytes, label: str, **settings: Any) -> int:
        """A job's number."""
        sent = self.service.ask("POST", "/v1/models", content=data, params={"label": label})
        assert sent.status_code in (200, 201), sent.text
        answer = self.service.ask("POST", "/v1/jobs", json={"model": sent.json()["sha256"], **settings})
        assert answer.status_code == 202, answer.text
        job_id: int = answer.json()["id"]
        return job_id

    def view(self, path: str, **query: Any) -> dict[str, Any]:
        """What a page says."""
        answer = self.service.ask("GET", f"/v1/pages{path}", params=query)
        assert answer.status_code == 200, answer.text
        data: dict[str, Any] = answer.json()
        return data

    def steer(self, job_id: int, what: str) -> None:
        answer = self.service.ask("POST", f"/v1/jobs/{job_id}:{what}")
        assert answer.status_code == 200, answer.text

    def await_job(self, job_id: int, is_there: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until a job, as the API shows it, is as wanted."""
        while True:
            since = self.store.jobs.changes()
            job: dict[str, Any] = self.service.ask("GET", f"/v1/jobs/{job_id}").json()
            if is_there(job):
                return job
            assert job["state"] != JobState.FAILED, job
            assert self.store.jobs.wait(60.0, since), job

    def await_tuner(self) -> None:
        """Wait until the tuner process has said which machine it is for."""
        while True:
            since = self.store.jobs.changes()
            if self.store.fleet.targets():
                return
            assert self.store.jobs.wait(60.0, since), self.service.log("tuner")

    def stop(self) -> None:
        """As if its machine had lost its power."""
        self.service.kill("api")

    def start(self) -> None:
        """Again, at the same address."""
        self.service.start_api("api", int(self.url.rpartition(":")[2]))
        self.service.await_api("api")

    def close(self) -> None:
        self.store.close()
        self.service.close()


def compared_jobs(store: Store) -> tuple[list[int], str]:
    """Two jobs of six tasks, the fourth of which is slower in the second for certain; with its key."""
    tasks = [product(8 * (n + 1)) for n in range(6)]
    before = {task: Confirmed(0.99 + n, 1.01 + n) for n, task in enumerate(tasks)}
    again = {task: slower(confirmed, 1.2 if task is tasks[3] else 1.001) for task, confirmed in before.items()}
    jobs = [
        finished(store, before, label="compared.onnx"),
        finished(store, again, label="compared.onnx", run=(5.4, 5.5)),
    ]
    return jobs, tasks[3].key


class Shown:
    """Jobs in every state, and where the pages are that show them."""

    def __init__(self, site: Site) -> None:
        here = detect(1)
        self.elsewhere = replace(here, cpu="atom")  # nobody has one
        for target in (here, self.elsewhere):
            site.store.add_target(target)
        self.job = site.submit(model(48, 64, 40), "small-net.onnx", trials=32, target=here.key)
        self.long = site.submit(model(256, 192, 128), "long-net.onnx", trials=100_000, target=here.key)
        for label in ("broken.onnx", "unwanted.onnx", HOSTILE):
            queued = site.submit(model(24, 32), label, trials=8, target=self.elsewhere.key)
            if label == "broken.onnx":
                lease = site.store.jobs.lease([self.elsewhere.key], "atom-1/123")
                assert lease is not None
                site.store.jobs.finish(lease, JobState.FAILED, error=HOSTILE)
            elif label == "unwanted.onnx":
                site.steer(queued, "cancel")
        site.await_job(self.job, lambda job: job["state"] == JobState.SUCCEEDED)
        site.await_job(self.long, lambda job: (job["progress"] or {}).get("trials", 0) >= 20)
        site.steer(self.long, "pause")
        site.await_job(self.long, lambda job: job["state"] == JobState.PAUSED)
        self.compared, self.slower_task = compared_jobs(site.store)
        task = site.view(f"/jobs/{self.job}")["tasks"][0]["key"]
        at = f"target={here.key}"
        best = site.view(f"/tasks/{task}", target=here.key)["best"]["schedule"]["key"]
        self.paths = {
            "jobs": "/",
            "narrowed": "/?state=queued&state=paused&sort=gain&model=onnx",
            "job": f"/jobs/{self.job}?x=seconds",
            "model": f"/jobs/{self.job}?tab=model",
            "unfinished": f"/jobs/{self.long}",
            "job-tasks": f"/jobs/{self.job}?tab=tasks",
            "job-trials": f"/jobs/{self.job}?tab=trials&status=ok",
            "job-cost-model": f"/jobs/{self.job}?tab=cost_model",
            "job-events": f"/jobs/{self.job}?tab=events",
            "job-settings": f"/jobs/{self.job}?tab=settings",
            "compare": f"/compare?job={self.compared[0]}&job={self.compared[1]}",
            "compared-tasks": f"/compare?job={self.compared[0]}&job={self.compared[1]}&tab=tasks",
            "task": f"/tasks/{task}?{at}",
            "task-loops": f"/tasks/{task}?{at}&tab=loops",
            "task-roofline": f"/tasks/{task}?{at}&tab=roofline",
            "task-trials": f"/tasks/{task}?{at}&tab=trials",
            "task-about": f"/tasks/{task}?{at}&tab=about&job={self.job}",
            "trials": f"/tasks/{task}/trials?{at}&status=ok&x=predicted",
            "candidate": f"/tasks/{task}/schedules/{best}?{at}",
            "candidate-loops": f"/tasks/{task}/schedules/{best}?{at}&tab=loops",
            "candidate-text": f"/tasks/{task}/schedules/{best}?{at}&text=assembly",
            "difference": f"/tasks/{task}/schedules/{best}?{at}&text=ir&against=default",
            "candidate-measured": f"/tasks/{task}/schedules/{best}?{at}&tab=measured",
            "candidate-model": f"/tasks/{task}/schedules/{best}?{at}&tab=model",
            "records": f"/records?op=matmul&task={task}&on={here.key}",
            "cost-model": "/cost-model",
            "cost-model-snapshots": "/cost-model?tab=snapshots",
            "cost-model-training": "/cost-model?tab=training",
            "cost-model-features": "/cost-model?tab=features",
            "fleet": "/fleet",
            "search": "/search?q=net",
        }
