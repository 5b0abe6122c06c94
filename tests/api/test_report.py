"""`tunewright report`: what the dashboard says of a job, as files that need no service."""

import hashlib
import json
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import dataclass, replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from struct import unpack

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from onnx import TensorProto, helper, numpy_helper

from tunewright.api import program
from tunewright.api.dashboard.job.history import Histories
from tunewright.api.dashboard.job.page import job_page
from tunewright.api.dashboard.job.view import JobPageAsked
from tunewright.api.dashboard.report import command
from tunewright.api.dashboard.report.plots import draw_speedup, draw_time
from tunewright.api.dashboard.task.schedules import Standing
from tunewright.api.http import descriptions
from tunewright.db.job import EventKind, JobSpec, JobState, NewEvent, SearchBudget, SpecTask
from tunewright.db.store import open_store
from tunewright.graph.onnx_import.structure import strip
from tunewright.search_space.measurement import Record
from tunewright.tuner.explain.describer import ScheduleDescriber
from tunewright.tuner.models.graph_of_model import graph_of_model
from tunewright.tuner.models.model import open_for

from .conftest import TARGET
from .examples import HOSTILE, failed, others, product, tried
from .page import Page

pytestmark = pytest.mark.usefixtures("plain_shower")

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"

VOID = {"br", "meta"}


@dataclass
class Searched:
    """A job that was searched for a while, in a database that nobody has open."""

    url: str
    folder: Path
    job_id: int


def searched(url, folder, tasks, label="net.onnx", state=None, trials=4, result=None, settings=None):
    """Each task has `trials` besides its default; the first takes most of a run."""
    with open_store(url) as store:
        made = [tried(store, TARGET, trials, task) for task in tasks]
        uses = tuple(SpecTask(one.task.key, len(made) - n) for n, one in enumerate(made))
        job = store.jobs.submit(
            JobSpec("ab" * 32, TARGET.key, uses, settings or {"seed": 0}), label, SearchBudget(100)
        ).job
        lease = store.jobs.lease([TARGET.key], "host-1:4711")
        assert lease is not None
        tell = partial(store.jobs.renew, lease)
        for one in made:
            about = {"task_key": one.task.key, "op": one.task.op, "default_ms": 2.0}
            tell(events=[NewEvent(EventKind.DEFAULT, about | {"best_ms": 2.0})])
            store.record(Record(one.task.key, TARGET.key, others(one.task, TARGET, trials + 1)[-1], failed()), lease)
            tell(events=[NewEvent(EventKind.IMPROVED, about | {"best_ms": 1.0, "trial": 3})])
        for done, speedup in ((1, 1.0), (5, 2.0)):
            told = {"stage": "searching", "trials": done, "speedup": speedup, "again_gain": 0.02, "spent_s": 90.0}
            tell(progress=told, events=[NewEvent(EventKind.PROGRESS, told)], spent_s=90.0)
        if state is not None:
            result = result or {"default_ms": 11.0, "tuned_ms": 5.0, "ended_by": "trials"}
            if state is JobState.PAUSED:
                store.jobs.pause_leased(lease, result=result)
            else:
                store.jobs.finish(lease, state, result=result)
    return Searched(url, folder, job.id)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/tuning.db"


@pytest.fixture
def job(url, tmp_path):
    return searched(url, tmp_path / "out", [product(), product(32)])


@pytest.fixture
def run(capfd):
    """`run(job, "--json")`: exit code, standard output, standard error."""

    def report(job, *arguments):
        capfd.readouterr()
        given = ["report", str(job.job_id), "--db", job.url, "--output", str(job.folder), *arguments]
        return program.execute(given), *capfd.readouterr()

    return report


@pytest.fixture
def written(run):
    """The HTML of a job."""

    def text(job):
        code, _, err = run(job)
        assert code == 0, err
        return (job.folder / f"job-{job.job_id}.html").read_text()

    return text


class Strict(HTMLParser):
    """Checks that all that is opened is closed, and notes names and what is said to be elsewhere."""

    def __init__(self, source):
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.style = self.csp = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        assert len(found) == len(attrs), (tag, attrs)
        self.tags.append((tag, found))
        self.names += [found["id"]] if "id" in found else []
        if found.get("http-equiv") == "Content-Security-Policy":
            assert not self.style
            self.csp = found["content"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        raise AssertionError(f"<{tag}/>")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data


def check(source):
    """It is well-formed, loads nothing, runs nothing and leads nowhere else."""
    page = Strict(source)
    assert len(set(page.names)) == len(page.names)
    for tag, attrs in page.tags:
        assert tag not in {
            "script",
            "link",
            "img",
            "iframe",
            "object",
            "embed",
            "form",
            "button",
            "input",
            "base",
            "use",
        }
        assert not [name for name in attrs if name in ("style", "src", "srcset") or name.startswith(("on", "data-"))]
        if "href" in attrs:
            assert tag == "a" and (attrs["href"] or "").removeprefix("#") in page.names, attrs
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert set((attrs.get(name) or "").split()) <= set(page.names), attrs
    assert not re.search(r"@import|url\(|https?://", source)
    digest = b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert page.csp == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return page


def test_it_needs_nothing_else(job, written):
    check(written(job))


def test_it_says_what_the_pages_say(job, written):
    words = Page(written(job)).words
    assert "it was not finished yet" in words
    assert words.index("net.onnx") < words.index("Time by task") < words.index("The 2 tasks that take most")
    for said in (
        "As long again, 1:30, would bring 2.0%" if "As long again" in words else "2.0% faster",
        "Speed-up",
        "trials of the job",
        "time at work on the job",
        "crash",
        "2.00x° as fast as by default, at trial 4",
        "The best schedule known takes 1.00 ms",
        "compared with the reference",
        "Roofline",
        "parallel chunk × 4",
        "Four threads share it.",
        "Predicted and measured times",
    ):
        assert said in words
    for served in ("Look again", "This page as JSON", "All about it", "Log out", "Cancel", "curl", " ago"):
        assert served not in words
    assert "host-1" in words


def test_tasks_are_linked_within_it(job, written):
    page = Page(written(job))
    assert {f"#about-{task.key[:12]}" for task in (product(), product(32))} <= set(page.links())


def test_a_finished_job(url, tmp_path, written):
    job = searched(url, tmp_path / "out", [product()], state=JobState.SUCCEEDED)
    source = written(job)
    check(source)
    words = Page(source).words
    assert "2.20x" in words and "all its trials were done" in words and "not finished" not in words
    assert "The task that takes most of a run" in words


def test_all_shares_of_a_peak_are_of_its_own(url, tmp_path, written):
    """Also once a later job has found a higher one; as a task is looked at for no job, it has that."""
    task = product()
    entry = {"key": task.key, "chosen": 1, "default_ms": 2.0, "best_ms": 1.0}
    share = task.flops / 1e-3 / 2e8
    result = {"default_ms": 2.0, "tuned_ms": 1.0, "peak_gflops": 0.2, "tasks": [entry | {"fraction_of_peak": share}]}
    job = searched(url, tmp_path / "out", [task], state=JobState.SUCCEEDED, result=result)
    with open_store(url) as store:
        later = store.jobs.submit(
            JobSpec("cd" * 32, TARGET.key, (SpecTask(task.key, 1),), {"seed": 1}), "net.onnx", SearchBudget(100)
        ).job
        lease = store.jobs.lease([TARGET.key], "host-1:4712")
        assert lease is not None
        store.jobs.finish(lease, JobState.SUCCEEDED, result=result | {"peak_gflops": 0.25})
        of_job, of_later, of_none = (
            Standing.load(store, task.key, TARGET.key, one).peak_gflops
            for one in (store.jobs.get(job.job_id), store.jobs.get(later.id), None)
        )
        assert (of_job, of_later, of_none) == (0.2, 0.25, 0.25)
    words = Page(written(job)).words
    assert "measured peak 200 MFLOP/s" in words and "250 MFLOP/s" not in words
    assert words.count(f"{share:.1%}") >= 3  # in the table, in words, and at a glance


def test_a_report_is_called_by_the_sizes_too(url, tmp_path, written):
    job = searched(url, tmp_path / "out", [product()], settings={"dims": {"n": 2, "sr=": 16000}})
    source = written(job)
    assert "<title>net.onnx, n=2, sr=16000 - Tunewright</title>" in source
    assert source.count("(net.onnx, n=2, sr=16000)") == 1  # on the page of its task


def test_a_job_that_is_out_of_time(url, tmp_path, run):
    result = {"default_ms": 11.0, "tuned_ms": 5.0, "ended_by": "minutes", "outcome": "too_noisy", "noise": "busy"}
    job = searched(url, tmp_path / "out", [product()], state=JobState.PAUSED, result=result)
    assert "job 1, paused, minutes over: too noisy to tell, " in run(job)[1]
    words = Page((job.folder / f"job-{job.job_id}.html").read_text()).words
    assert "paused, minutes over: too noisy to tell" in words and "not finished" not in words


def test_a_job_that_nobody_began(url, tmp_path, run, written):
    with open_store(url) as store:
        store.add_task(product())
        store.add_target(TARGET)
        spec = JobSpec("ab" * 32, TARGET.key, (SpecTask(product().key, 1),), {})
        job = Searched(url, tmp_path / "out", store.jobs.submit(spec, "m", SearchBudget(10)).job.id)
    assert json.loads(run(job, "--json")[1])["plots"] == []
    source = written(job)
    check(source)
    assert "There are no trials yet" in Page(source).words


@pytest.mark.parametrize("label", [HOSTILE, "{{ 7 * 7 }}$x^{", "</style><script>alert(1)</script>", "ラベル 🦙"])
def test_texts_of_strangers(label, url, tmp_path, written):
    job = searched(url, tmp_path / "out", [product(label=label)], label)
    source = written(job)
    page = check(source)
    assert "script" not in [tag for tag, _ in page.tags] and "\u202e" not in source
    assert label.partition("\u202e")[0] in Page(source).words
    assert len(list(job.folder.glob("*.png"))) == 2


def test_a_job_of_many_tasks(url, tmp_path, written):
    source = written(searched(url, tmp_path / "out", [product(rows) for rows in range(8, 68)], trials=1))
    page = check(source)
    assert len([tag for tag, _ in page.tags if tag == "article"]) == command.MOST_TASKS
    assert len(source) < 500_000
    assert "54 more tasks" in Page(source).words


def test_a_task_of_many_trials(url, tmp_path, written):
    source = written(searched(url, tmp_path / "out", [product()], trials=400))
    assert source.count("<article") == 1 and len(source) < 300_000


def test_with_a_real_child(job, monkeypatch, written):
    monkeypatch.setattr(descriptions, "_describer", ScheduleDescriber)
    words = Page(written(job)).words
    assert "can't be shown" not in words and "vector" in words


class TestPlots:
    def test_they_are_pictures(self, job, run):
        data = json.loads(run(job, "--json")[1])
        assert [Path(path).name for path in data["plots"]] == [
            f"job-{job.job_id}-{name}.png" for name in ("speedup", "time")
        ]
        for path in data["plots"]:
            content = Path(path).read_bytes()
            assert content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82")
            width, height = unpack(">II", content[16:24])
            assert 800 < width < 3000 and 200 < height < 2000 and len(content) < 300_000

    @pytest.mark.parametrize("kept", [False, True])
    def test_figures_in_them_are_marked(self, url, tmp_path, kept):
        """And nothing is written where the numbers of an axis are."""
        task = {"key": product().key, "chosen": 1, "default_ms": 3.0, "best_ms": 2.0, "noise": "it was busy"}
        result = {"default_ms": 2.0, "tuned_ms": 2.0 if kept else 1.0, "tasks": [task], "noise": "it was busy"}
        result |= {"outcome": "defaults_kept"} if kept else {"outcome": "faster", "speedup_interval": [1.9, 2.1]}
        job = searched(url, tmp_path / "out", [product()], state=JobState.SUCCEEDED, result=result)
        with open_store(url) as store:
            view = job_page(store, Histories(), job.job_id, JobPageAsked())
        words, ends = {}, {}
        for name, draw in (("speedup", draw_speedup), ("time", draw_time)):
            figure = Figure()
            draw(figure, view)
            words[name] = [text.get_text() for text in figure.findobj(Text)]
            ends[name] = [text.get_text() for axes in figure.axes for text in axes.texts]
        said = "timed: defaults kept" if kept else "timed: ~2.00x (1.90x to 2.10x)"
        assert {"sum of its tasks: 2.00x°", said} <= set(words["speedup"]) and ends["speedup"] == []
        assert any("it keeps its defaults" in text for text in words["speedup"]) is kept
        assert {"~3.00 ms", "~3.00 ms" if kept else "~2.00 ms"} <= set(ends["time"])
        assert "by default, its tasks one by one" in words["time"]

    def test_alike_gives_the_same(self, job, run):
        def files():
            assert run(job)[0] == 0
            return [path.read_bytes() for path in sorted(job.folder.glob("*-time.png"))]

        assert files() == files()

    def test_where_matplotlib_is_missing(self, job, run, monkeypatch):
        monkeypatch.setattr(command, "is_installed", lambda: False)
        code, out, err = run(job)
        assert code == 0 and not list(job.folder.glob("*.png"))
        [line] = err.splitlines()
        assert "pip install matplotlib" in line and "job-1.html" in out
        assert len(json.loads(run(job, "--json")[1])["notes"]) == 1


class TestFiles:
    def test_a_file_by_its_name(self, job, run, tmp_path):
        code, out, _ = run(job, "-o", str(tmp_path / "deep" / "net.html"))
        assert code == 0 and "net.html" in out and "net-time.png" in out
        assert {path.name for path in (tmp_path / "deep").iterdir()} == {"net.html", "net-speedup.png", "net-time.png"}

    def test_here(self, job, capfd, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert program.execute(["report", "1", "--db", job.url]) == 0
        assert (tmp_path / "job-1.html").exists()

    def test_it_is_written_anew(self, job, run):
        run(job)
        before = {path.name for path in job.folder.iterdir()}
        assert run(job)[0] == 0 and {path.name for path in job.folder.iterdir()} == before

    @pytest.mark.slow
    def test_the_docs_have_every_key_of_its_json(self, job, run):
        section = DOCS.read_text().split("\n## report\n")[1].split("\n## ")[0]
        said = re.sub(r"\([^()]*\)", "", section.split("\nJSON: ")[1].split("\n\n")[0])
        assert json.loads(run(job, "--json")[1]).keys() == set(re.findall(r"`(\w+)`", said))


class TestRefused:
    def test_no_such_job(self, job, run):
        job.job_id = 77
        code, out, err = run(job)
        assert (code, out) == (2, "") and "there is no job 77" in err and err.count("\n") == 1
        assert not job.folder.exists()

    def test_no_database(self, tmp_path, run):
        code, _, err = run(Searched(f"sqlite:///{tmp_path}/none.db", tmp_path, 1))
        assert code == 2 and "there is no such database" in err and err.count("\n") == 1
        assert not (tmp_path / "none.db").exists()

    def test_a_place_that_is_none(self, job, run, tmp_path):
        (tmp_path / "file").write_text("")
        job.folder = tmp_path / "file" / "out"
        code, _, err = run(job)
        assert code == 2 and err.count("\n") == 1

    def test_packages_that_are_missing(self, job, run, monkeypatch):
        monkeypatch.setattr("tunewright.api.command_options.find_spec", lambda name: None)
        code, _, err = run(job)
        assert code == 2 and "report needs more packages" in err and "tunewright[serve]" in err


def test_other_commands_import_none_of_it():
    heavy = "{'fastapi', 'jinja2', 'matplotlib', 'sqlalchemy', 'tunewright.api.dashboard.report.command'}"
    script = f"import sys, tunewright.api.program; sys.exit(str(sorted({heavy} & sys.modules.keys()) or '') or 0)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, ""), found.stderr


# Names from the user's file


def named_model(name="conv1", seed=0, columns=16):
    """A product with an activation, and a name for both."""
    rng = np.random.default_rng(seed)
    weight = numpy_helper.from_array(rng.standard_normal((8, columns)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name=name),
        helper.make_node("Relu", ["p"], ["y"], name=f"{name}/relu"),
    ]
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [4, n]) for end, n in (("x", 8), ("y", columns))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


@pytest.fixture
def job_of_model(url, tmp_path):
    """A job of `named_model`, as a local command has it."""
    network = open_for(TARGET, named_model())
    with open_store(url) as store:
        store.add_target(TARGET)
        store.add_tasks([task for task, _ in network.tasks.values()])
        uses = tuple(SpecTask(key, count) for key, (_, count) in network.tasks.items())
        spec = JobSpec(network.sha256, TARGET.key, uses, {"seed": 0})
        graph = graph_of_model(network).to_json()
        job = store.jobs.submit(spec, "net.onnx", SearchBudget(10), graph=graph).job
    return Searched(url, tmp_path / "out", job.id)


@pytest.fixture
def put(tmp_path):
    """The path of a model's file."""

    def write(data):
        path = tmp_path / "model.onnx"
        path.write_bytes(data)
        return str(path)

    return write


def report_text(job):
    return (job.folder / f"job-{job.job_id}.html").read_text()


def test_without_names_a_report_has_ops_and_shapes(job_of_model, run):
    assert run(job_of_model)[0] == 0
    source = report_text(job_of_model)
    check(source)
    words = Page(source).words
    assert "MatMul+Relu" in words and "float32[4, 16]" in words and "conv1" not in source
    assert "tunewright report 1 --names MODEL.onnx" in words


@pytest.mark.parametrize("data", [named_model(), named_model(seed=1), strip(named_model()).data])
def test_names_are_those_of_the_file(data, job_of_model, run, put):
    assert run(job_of_model, "--names", put(data))[0] == 0
    source = report_text(job_of_model)
    check(source)
    words = Page(source).words
    assert "are not kept here" not in words
    is_named = data != strip(named_model()).data
    assert ("conv1, conv1/relu" in words) == is_named
    assert ("MatMul+Relu (conv1)" in words) == is_named  # in the list of tasks


def test_names_draw_the_graph_of_a_job_from_before_there_were_any(url, tmp_path, job_of_model, run, put):
    with open_store(url) as store:
        spec = store.jobs.get(job_of_model.job_id).spec
        older = store.jobs.submit(replace(spec, model_sha256="ab" * 32), "old.onnx", SearchBudget(10)).job
    old = Searched(url, tmp_path / "old", older.id)
    assert run(old)[0] == 0 and "came without the graph" in Page(report_text(old)).words
    assert run(old, "--names", put(named_model()))[0] == 0 and "conv1, conv1/relu" in Page(report_text(old)).words


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (named_model(columns=24), "model.onnx is not the model of job 1 (net.onnx): it has other tasks"),
        (b"no model", "model.onnx"),
    ],
)
def test_another_model_is_refused_in_a_line(data, words, job_of_model, run, put):
    code, out, err = run(job_of_model, "--names", put(data))
    assert code == 2 and words in err and len(err.strip().splitlines()) == 1 and not out
    assert not job_of_model.folder.exists()


def test_the_model_itself_is_refused_where_it_is_cut_otherwise_by_now(url, tmp_path, job_of_model, run, put):
    with open_store(url) as store:
        spec = store.jobs.get(job_of_model.job_id).spec
        more = tuple(replace(task, occurrences=task.occurrences + 1) for task in spec.tasks)
        jobs = [
            store.jobs.submit(replace(spec, tasks=more, model_sha256=sha256), "net.onnx", SearchBudget(10)).job.id
            for sha256 in (spec.model_sha256, strip(named_model()).sha256)
        ]
    for job_id in jobs:
        code, _, err = run(Searched(url, tmp_path / "out", job_id), "--names", put(named_model()))
        assert code == 2 and f"is the model of job {job_id}, but this version cuts it into other tasks" in err


def test_a_job_of_tasks_alone_has_no_names(url, tmp_path, run, put):
    with open_store(url) as store:
        store.add_task(product())
        store.add_target(TARGET)
        spec = JobSpec("", TARGET.key, (SpecTask(product().key, 1),), {})
        job = Searched(url, tmp_path / "out", store.jobs.submit(spec, "m", SearchBudget(10)).job.id)
    code, _, err = run(job, "--names", put(named_model()))
    assert code == 2 and "is of tasks alone, without a model: leave --names out" in err


@pytest.mark.parametrize("name", [HOSTILE, "{{ 7 * 7 }}", "\u202egnp.exe", "x" * 10_000, "ラベル 🦙", "a\0b"])
def test_names_of_strangers_are_texts(name, job_of_model, run, put):
    assert run(job_of_model, "--names", put(named_model(name)))[0] == 0
    source = report_text(job_of_model)
    check(source)
    assert "\u202e" not in source and "\0" not in source and "<script" not in source
    assert "x" * 201 not in source
