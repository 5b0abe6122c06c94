"""`tunewright report --compare`: what the page that compares jobs says, in the file and on the terminal."""

import json

import pytest

from tunewright.api import program
from tunewright.db.store import open_store

from .compared import Confirmed, finished, slower
from .examples import product
from .page import Page
from .test_report import check

pytestmark = pytest.mark.usefixtures("plain_shower")

TASKS = [product(8 * (n + 1)) for n in range(4)]


@pytest.fixture
def jobs(tmp_path):
    """Three jobs: of the last, one task is slower."""
    times = {task: Confirmed(0.99 + n, 1.01 + n) for n, task in enumerate(TASKS)}
    with open_store(f"sqlite:///{tmp_path}/tuning.db") as store:
        first, second = (finished(store, {task: slower(t, n) for task, t in times.items()}) for n in (1, 1.001))
        planted = {task: slower(t, 1.2 if task is TASKS[2] else 1.002) for task, t in times.items()}
        return first, second, finished(store, planted, run=(5.5, 5.6))


@pytest.fixture
def run(tmp_path, capfd):
    def report(job, *arguments):
        capfd.readouterr()
        given = ["report", str(job), "--db", f"sqlite:///{tmp_path}/tuning.db", "-o", str(tmp_path / "out"), *arguments]
        return program.execute(given), *capfd.readouterr()

    return report


def test_the_file_and_the_terminal_say_what_became_slower(jobs, run, tmp_path):
    code, out, err = run(jobs[2], "--compare", str(jobs[0]))
    assert code == 0, err
    source = (tmp_path / "out" / f"job-{jobs[2]}.html").read_text()
    check(source)
    words = Page(source).words
    sentences = out[out.index(f"job {jobs[2]} since job {jobs[0]}:") :].splitlines()[1:]
    assert sentences[0].strip().startswith("A run of the whole model is slower: 5.55 ms (5.50 ms to 5.60 ms), was")
    assert sentences[1].strip().startswith("1 of 4 tasks is slower: MatMul 24x64")
    assert all(sentence.strip() in words for sentence in sentences)
    assert f"Job {jobs[2]} since job {jobs[0]}" in words and "Take as baseline" not in words
    assert "Settings, versions and machines" in words and "What differs" in words  # all tabs


def test_the_first_of_several_is_the_baseline(jobs, run):
    code, out, err = run(jobs[0], "--compare", str(jobs[2]), "--compare", str(jobs[1]), "--json")
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])["compared"]
    assert (told["baseline"], [one["job"] for one in told["jobs"]]) == (jobs[2], [jobs[0], jobs[1]])
    assert [(one["run"], one["slower"], one["faster"]) for one in told["jobs"]] == [("faster", 0, 1)] * 2


def test_without_it_nothing_is_compared(jobs, run, tmp_path):
    code, out, err = run(jobs[2], "--json")
    assert code == 0, err
    assert "compared" not in json.loads(out.splitlines()[-1])
    assert "since job" not in Page((tmp_path / "out" / f"job-{jobs[2]}.html").read_text()).words


@pytest.mark.parametrize(
    ("others", "words"),
    [([3], "is compared with itself; name another one"), ([99], "job 99"), (range(10, 18), "8 other jobs; at most 7")],
)
def test_what_can_not_be_compared_is_refused(jobs, run, tmp_path, others, words):
    code, out, err = run(3, *[argument for other in others for argument in ("--compare", str(other))])
    assert code != 0 and words in err + out and "Traceback" not in err
    assert not (tmp_path / "out").exists()
