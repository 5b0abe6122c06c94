"""The tab Model of a job's page: its graph, with what each task takes of a run."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewright.api.dashboard.html import assets, task_url
from tunewright.api.dashboard.job.history import Times
from tunewright.api.dashboard.job.model import MOST_LINES, GraphRun, _letters, graph_charts, model_graph
from tunewright.api.dashboard.job.tasks import Latency, ModelRun
from tunewright.db.job import EventKind, Job, JobSpec, JobState, SearchBudget, SpecTask
from tunewright.tuner.models.assembly import CallRange
from tunewright.tuner.models.task_graph import ModelStep, PlacedChain, StepKind, TaskGraph
from tunewright.tuner.text import printable

from .page import PAGE_BYTES, Page, whole
from .searched import HOSTILE, searched, twin
from .test_style import TEXT, colours, contrast


def graph_of(client, job_id, **asked):
    return twin(client, job_id, tab="model", **asked)["graph"]


def tab(client, job_id, **asked) -> Page:
    return whole(client.get(f"/jobs/{job_id}", params={"tab": "model"} | asked))


def put_graph(store, search, graph):
    """The number of a job like that of the search, with this graph."""
    spec = store.jobs.get(search.id).spec
    return store.jobs.submit(replace(spec, settings={"seed": 99}), "other.onnx", SearchBudget(10), graph=graph).job.id


def test_the_graph_is_told_on_its_tab_alone(search, client):
    assert twin(client, search.id)["graph"] is None
    found = graph_of(client, search.id)
    assert [line["kind"] for line in found["lines"]] == ["input", "task", "task", "task", "output"]
    assert [line["op"] for line in found["lines"]] == ["input", "Relu", "Relu", "Relu", "output"]
    assert [line["sources"] for line in found["lines"]] == [[], [0], [1], [2], [3]]
    assert (found["nodes"], found["why_none"], found["blocks"]) == (5, "", [])
    assert {line["time_ms"] for line in found["lines"]} == {None}


def test_times_are_those_of_a_run(search, client):
    searched(search)
    tuned, default = graph_of(client, search.id), graph_of(client, search.id, run="default")
    assert [line["time_ms"] for line in tuned["lines"]] == [None, 2.0, 1.0, 1.0, None]
    assert [line["time_ms"] for line in default["lines"]] == [None, 2.0, 4.0, 4.0, None]
    for side in (tuned, default):
        assert sum(line["share"] or 0.0 for line in side["lines"]) == pytest.approx(1.0)
        assert all(line["is_tried"] for line in side["lines"] if line["time_ms"])
    words = tab(client, search.id).words
    assert "1.00 ms\N{DEGREE SIGN} · 25.0%" in words and "4.00 ms" not in words
    assert "4.00 ms\N{DEGREE SIGN} · 40.0%" in tab(client, search.id, run="default").words


def test_one_can_look_at_both_runs(search, client):
    searched(search)
    page = tab(client, search.id)
    assert f"/jobs/{search.id}?tab=model&run=default" in page.links()
    other = tab(client, search.id, run="default")
    assert f"/jobs/{search.id}?tab=model" in other.links()
    assert "on default schedules" in other.words


def test_the_run_that_is_looked_at_stays_so(search, client):
    links = tab(client, search.id, run="default").links()
    assert f"/v1/pages/jobs/{search.id}?tab=model&run=default" in links
    assert f"/jobs/{search.id}?tab=tasks&run=default" in links


def test_boxes_lead_to_tasks_and_so_does_the_list(search, client):
    page = tab(client, search.id)
    urls = [task_url(task.key, search.target.key, job=search.id) for task in search.tasks]
    for url in urls:
        assert len([link for link in page.of("a", href=url) if link.get("tabindex") == "-1"]) >= 1
        assert [link for link in page.of("a", href=url) if "tabindex" not in link]
    assert page.of("div", role="region", **{"aria-label": "The model, as tuned"})[0]["tabindex"] == "0"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"steps": "nonsense"}, "can't be read by this version"),
        ({"steps": [[7, 0]], "others": [], "types": [["", 0]], "chains": [], "left_out": 0}, "can't be read"),
        (TaskGraph((), left_out=7123).to_json(), "The model has 7123 nodes; a graph is kept of 5,000 at most."),
        (TaskGraph(()).to_json(), "The model has no nodes."),
    ],
)
def test_it_says_why_there_is_no_graph(search, client, one, data, words):
    job_id = put_graph(one.store, search, data)
    assert words in graph_of(client, job_id)["why_none"]
    page = tab(client, job_id)
    assert words in page.words and f"tunewright report {job_id} --names MODEL.onnx" in page.words


def test_a_job_of_an_older_version_has_the_graph_of_a_newer_one(search, client, one):
    job_id = put_graph(one.store, search, None)
    assert graph_of(client, job_id)["nodes"] == 5
    spec = replace(one.store.jobs.get(search.id).spec, model_sha256="ab" * 32)
    lonely = one.store.jobs.submit(spec, "old.onnx", SearchBudget(10)).job.id
    assert "came without the graph" in graph_of(client, lonely)["why_none"]
    apart = one.store.jobs.submit(replace(spec, model_sha256=""), "tasks", SearchBudget(10)).job.id
    assert "without a model" in tab(client, apart).words and "--names" not in tab(client, apart).words


def test_the_graph_is_in_no_log_of_events(search, client):
    assert "steps" not in str(twin(client, search.id)["log"])
    [queued] = [event for event in twin(client, search.id)["log"] if event["kind"] == EventKind.QUEUED]
    assert queued["words"] == ""


@pytest.mark.parametrize("text", [*HOSTILE, printable("\u202egnp.exe"), "x" * 200, "ラベル 🦙"])
def test_names_and_ops_of_strangers_are_texts(text, search, client, one):
    steps = (
        ModelStep(StepKind.INPUT, text, type=text),
        ModelStep(StepKind.TASK, task=0, type=text, sources=(0,), names=(text,) * 3),
        ModelStep(StepKind.FALLBACK, text, type=text, size_bytes=9, sources=(1,), names=(text,)),
    )
    job_id = put_graph(one.store, search, TaskGraph(steps).to_json())
    page = tab(client, job_id)
    page.check()
    assert "\u202e" not in page.source and "no kernel of ours" in page.words
    assert graph_of(client, job_id)["lines"][1]["names"] == [text]
    assert "NO_NAMES" not in page.source and "are not kept here" not in page.words


# Without a service


def job_of(tasks: int) -> Job:
    spec = JobSpec("ab" * 32, "cd" * 32, tuple(SpecTask(f"{n:064x}", 1) for n in range(tasks)))
    now = datetime.now(UTC)
    return Job(3, spec, "m", JobState.RUNNING, now, now, SearchBudget(10))


LATENCY = Latency.of_job(job_of(1))


def run_of(times_ms: list[float | None]) -> ModelRun:
    times = [Times(time_ms, time_ms) for time_ms in times_ms]
    return ModelRun(times, [1] * len(times), times_ms, times_ms, LATENCY)


def shown(steps: list[ModelStep], times_ms: list[float | None], chains: tuple[PlacedChain, ...] = ()):
    job = job_of(len(times_ms))
    ops = {task.task_key: f"Op{n}" for n, task in enumerate(job.spec.tasks)}
    graph = TaskGraph(tuple(steps), chains)
    view = model_graph(job, run_of(times_ms), ops, graph, "", GraphRun.TUNED)
    charts = graph_charts(view, 3, job.spec.target_key)
    for chart in charts.values():
        Page(str(chart)).check()
    return view, charts


def chain(tasks: list[int]) -> list[ModelStep]:
    return [ModelStep(StepKind.TASK, task=task, sources=(n - 1,) if n else ()) for n, task in enumerate(tasks)]


def test_what_repeats_is_a_block():
    view, charts = shown(chain([0, *[1, 2, 3] * 12, 4]), [1.0, 2.0, 3.0, 4.0, 5.0])
    assert [(line.kind, line.block, line.repeats, line.nodes) for line in view.lines] == [
        ("task", "", 1, 1),
        ("block", "A", 12, 3),
        ("task", "", 1, 1),
    ]
    assert view.lines[1].time_ms == 12 * 9.0
    [block] = view.blocks
    assert [(line.op, line.time_ms, line.sources) for line in block.lines] == [
        ("Op1", 24.0, []),
        ("Op2", 36.0, [0]),
        ("Op3", 48.0, [1]),
    ]
    assert "Block A ×12" in charts["graph"] and 'href="#in-block-A"' in charts["graph"]
    assert "Op2" in charts["block-A"]


def test_names_of_a_block_are_those_of_its_first_and_last_time():
    steps = [replace(step, names=(f"layer{n // 2}",)) for n, step in enumerate(chain([0, 1] * 5))]
    view, _ = shown(steps, [1.0, 2.0])
    assert [line.name_text for line in view.blocks[0].lines] == ["layer0 … layer4"] * 2


def test_what_is_lighter_is_shown_together():
    times: list[float | None] = [100.0 if n % 500 == 250 else 1.0 + n / 1e6 for n in range(2000)]
    view, _ = shown(chain(list(range(2000))), times)
    assert len(view.lines) <= MOST_LINES
    assert sum(line.nodes * line.repeats for line in view.lines) == 2000
    heavy = [line for line in view.lines if line.kind == "task" and line.time_ms == 100.0]
    assert len(heavy) == 4
    several = [line for line in view.lines if line.kind == "several"]
    assert several and all(line.op.endswith(", ...") for line in several if line.nodes > 3)
    assert sum(line.time_ms for line in view.lines) == pytest.approx(sum(time for time in times if time))


@pytest.mark.parametrize("kind", ["alike", "apart", "wide", "blocks", "random"])
def test_five_thousand_nodes_are_a_small_page(kind, search, client, one):
    choice = random.Random(0)
    tasks = {
        "alike": [0] * 5000,
        "apart": [choice.randrange(2) for _ in range(5000)],
        "wide": [0] * 5000,
        "blocks": [0, 1, 1, 0, 1] * 1000,
        "random": [choice.randrange(2) for _ in range(5000)],
    }[kind]
    sources = {
        "wide": lambda n: (0,) if n else (),
        "random": lambda n: tuple(sorted({choice.randrange(n) for _ in range(3)})) if n else (),
    }.get(kind, lambda n: (n - 1,) if n else ())
    steps = tuple(
        ModelStep(StepKind.TASK, "", task, "float32[1, 128, 56, 56]", 1 << 20, sources(n), ("a long name " * 16,))
        for n, task in enumerate(tasks)
    )
    job_id = put_graph(one.store, search, TaskGraph(steps).to_json())
    assert len(tab(client, job_id).source) < PAGE_BYTES
    assert len(client.get(f"/v1/pages/jobs/{job_id}", params={"tab": "model"}).content) < PAGE_BYTES


def test_what_stands_for_steps_is_in_their_place_once_it_is_faster():
    steps = chain([0, 1, 2])
    chains = (PlacedChain((0, 1), (CallRange(0, 2, 3),)),)
    for time_ms, ops in ((1.0, ["Op3", "Op2"]), (9.0, ["Op0", "Op1", "Op2"]), (None, ["Op0", "Op1", "Op2"])):
        view, _ = shown(steps, [2.0, 3.0, 4.0, time_ms], chains)
        assert [line.op for line in view.lines] == ops
        assert view.lines[-1].sources == [len(ops) - 2]


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_any_graph_is_shown(data):
    count = data.draw(st.integers(0, 150))
    steps = []
    for n in range(count):
        sources = tuple(sorted(set(data.draw(st.lists(st.integers(0, n - 1), max_size=3))))) if n else ()
        task = data.draw(st.integers(-1, 2))
        kind = StepKind.TASK if task >= 0 else StepKind.FALLBACK
        steps.append(ModelStep(kind, "Op", task, sources=sources))
    view, _ = shown(steps, data.draw(st.lists(st.none() | st.floats(1e-6, 1e3), min_size=3, max_size=3)))
    for lines in (view.lines, *(block.lines for block in view.blocks)):
        assert len(lines) <= MOST_LINES
        assert all(source < n for n, line in enumerate(lines) for source in line.sources)
    assert sum(line.nodes * line.repeats for line in view.lines) == count


def test_blocks_have_names_without_end():
    assert [_letters(n) for n in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


@pytest.mark.parametrize("is_dark", [False, True])
def test_words_in_boxes_can_be_read(is_dark):
    sheet, known = assets()["charts.css"].content.decode(), colours(is_dark)
    parts = [
        int(part) for part in re.findall(r"\.heat-\d \.body \{ fill: color-mix\(in srgb, var\(--own\) (\d+)%", sheet)
    ]
    assert len(parts) == 5 and parts == sorted(parts)
    own, paper = (bytes.fromhex(known[name]) for name in ("--series-0", "--paper"))
    for part in parts:
        ground = bytes(round((one * part + other * (100 - part)) / 100) for one, other in zip(own, paper, strict=True))
        assert contrast(known["--ink"], ground.hex()) >= TEXT
    assert contrast(known["--ink"], known["--grid"]) >= TEXT
