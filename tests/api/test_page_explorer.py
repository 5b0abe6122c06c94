"""The trials of a task explored: which knob matters, a sample to draw, ranges that filter the table."""

import json
import random
from dataclasses import replace

import pytest

from tunewright.api.dashboard.drawing.choices import CutScale
from tunewright.api.dashboard.task import explorer
from tunewright.api.dashboard.task.columns import GFLOPS, PREDICTED, TIME, ValueRange, knob_column
from tunewright.api.http import descriptions
from tunewright.db.job import JobSpec, SearchBudget, SpecTask
from tunewright.search_space.measurement import NOISE, Record
from tunewright.search_space.schedule import Schedule

from .examples import HOSTILE, failed, good, product, record_line, tried
from .page import Page

pytestmark = pytest.mark.usefixtures("prompt_pages")


@pytest.fixture
def filled(one, kit):
    """`filled(values, time_s, count)` stores so many trials of made-up knobs, and tells the path of their page."""
    task, target = product(), kit.target()
    one.store.add_task(task)

    def fill(count=80, time_s=lambda values: 1e-3, sketch="tiled", seed=0, fails=0, busy=0, unrolls=(1, 4)):
        rng = random.Random(seed)
        spec = JobSpec("ab" * 32, target.key, (SpecTask(task.key, 1 + seed),), {})
        one.store.jobs.submit(spec, "net.onnx", SearchBudget(10_000))
        lease = one.store.jobs.lease([target.key], "host-1:1")
        for number in range(count):
            values = {"tile": rng.choice([1, 2, 4, 8]), "block": rng.randrange(2, 300), "unroll": rng.choice(unrolls)}
            values |= {"number": number}  # so that no two are the same
            measured = (
                failed(error="signal 11") if number < fails else good(time_s(values) * rng.lognormvariate(0, 0.05))
            )
            if number >= count - busy:  # on a busy machine, where the knobs make no difference
                busy_s = rng.lognormvariate(-5, 1)
                measured = replace(good(busy_s), provenance={NOISE: "others took 40% of the processors"})
            schedule = Schedule(sketch, 1, tuple(values.items()))
            assert one.store.record(Record(task.key, target.key, schedule, measured), lease)
        return f"/tasks/{task.key}/trials"

    return fill


def by_tile(values):
    return 1e-3 * values["tile"]


def test_it_says_which_knob_matters(filled, look):
    page, view = look(filled(200, by_tile))
    assert "tile matters most (extent of a tile across the lanes): by itself it explains 9" in page.words
    assert "of the differences between the times of 200 trials. It is best at 1;" in page.words
    assert "No other matters for certain." in page.words
    first, *rest = view["importance"]["knobs"]
    assert (first["name"], first["matters"], first["best"]) == ("tile", True, "1")
    assert not [knob for knob in rest if knob["matters"]]
    assert 0.9 < view["importance"]["explained"] <= 1.0
    assert "There is no cost model to ask." in page.words and first["model_share"] is None


def test_it_says_where_none_does(filled, look):
    page, view = look(filled(100))
    assert "No knob matters for certain by itself." in page.words
    assert view["importance"]["knobs"][0]["low"] < 0.02


def test_it_says_where_it_cannot_tell(filled, look):
    page, view = look(filled(60, by_tile, fails=11))
    assert "That can't be told yet: 49 trials of those looked at worked, and it takes 50." in page.words
    assert view["importance"]["explained"] is None and view["importance"]["knobs"] == []


def test_it_is_of_the_job_that_one_came_from(filled, look, small_sample):
    """Whatever other jobs find meanwhile, what is said and drawn of a job that has finished stays as it is."""
    path = filled(100, by_tile)
    before = look(path, job=1)
    filled(150, lambda values: 1e-3 * values["unroll"], seed=1)
    page, view = look(path, job=1)
    told, told_before = (one.words.partition("Trials within the ranges")[0] for one in (page, before[0]))
    assert told == told_before and "job 1's 100 trials" in told
    for part in ("importance", "marks", "trials", "sampled", "counts", "columns", "rows"):
        assert view[part] == before[1][part]
    assert view["trials"] == 100 and {row["job"] for row in view["rows"]} == {1}
    assert look(path, job=2)[1]["trials"] == 150 and look(path)[1]["trials"] == 250


def test_its_sentences_say_whose_trials_they_are_of(filled, look):
    path = filled(100, by_tile)
    filled(60, lambda values: 1e-3 * values["unroll"], seed=1)
    page, view = look(path, job=1)
    assert "the differences between the times of job 1's 100 trials." in page.words
    assert "All of job 1's 100 trials are looked at." in page.words and "100 of job 1's 100 trials." in page.words
    assert view["importance"]["knobs"][0]["name"] == "tile" and view["importance"]["trials"] == 100
    page, view = look(path, job=2)
    assert view["importance"]["knobs"][0]["name"] == "unroll" and "unroll matters most" in page.words
    page, view = look(path)
    assert view["importance"]["trials"] == 160 and "of the differences between the times of 160 trials." in page.words


def test_it_stands_among_the_parts_of_its_task(filled, look):
    path = filled(9)
    page, view = look(path, job=1)
    assert view["job"]["id"] == 1 and "Of job 1 (net.onnx)" in page.words and "/jobs/1" in page.links()
    [current] = [tag["href"] for tag in page.of("a", **{"aria-current": "page"}) if "trials?" in tag["href"]]
    assert "job=1" in current
    task_page, _ = look(path.removesuffix("/trials"), job=1)
    assert current in task_page.links() and "Overview Loops Roofline Trials Knobs About" in task_page.words
    page, view = look(path)
    assert view["job"] is None and "Of job" not in page.words


def test_times_that_cannot_be_relied_on_are_left_out(filled, look):
    page, view = look(filled(200, by_tile, busy=140))
    assert (view["importance"]["trials"], view["importance"]["busy"], view["importance"]["is_calm"]) == (60, 140, True)
    assert "tile matters most" in page.words and "the times of 60 of 200 trials." in page.words
    assert "Below each share by the trials is its 95% interval." in page.words
    assert "Left out are 140 that were taken while the machine was too busy to rely on their times." in page.words


def test_where_too_few_would_be_left_they_are_among_the_others(filled, look):
    page, view = look(filled(100, by_tile, busy=60))
    assert (view["importance"]["trials"], view["importance"]["busy"], view["importance"]["is_calm"]) == (100, 60, False)
    assert "60 of these were taken while the machine was too busy to rely on their times;" in page.words
    page, _ = look(filled(10, by_tile, sketch="other", busy=1), sketch="other.1")
    assert "too busy" not in page.words.partition("What each knob explains")[0]  # nothing is said of so few


def test_what_the_fastest_share(filled, look):
    """A combination: no knob does it by itself, and the picture shows it."""
    page, view = look(filled(300, lambda values: 1e-3 if values["tile"] == 2 and values["unroll"] == 4 else 2e-3))
    shared = {one["name"]: one for one in view["importance"]["shared"]}
    assert view["importance"]["fastest"] == 20 and shared.keys() == {"tile", "unroll"}
    assert (shared["tile"]["value"], shared["tile"]["fastest"]) == ("2", 20)
    others = list(zip(*(view["marks"]["columns"][f"knob.{name}"][20:] for name in shared), strict=True))
    for place, (name, value) in enumerate([(name, float(one["value"])) for name, one in shared.items()]):
        part = sum(row[place] == value for row in others) / len(others)
        assert shared[name]["others"] == pytest.approx(part)
    assert "The 20 fastest share what most others lack: tile 2 (all of them, " in page.words
    assert " and unroll 4 (all of them, " in page.words


def test_what_nearly_all_trials_have_is_told_apart(filled, look):
    """The fastest share it as well, which the picture shows and which says nothing."""
    page, view = look(filled(300, unrolls=[1] + 39 * [4]))
    [one] = view["importance"]["common"]
    assert (one["name"], one["value"]) == ("unroll", "4") and one["others"] > 0.9
    assert "Nearly all trials have unroll 4, the fastest too: little else was tried" in page.words


def test_nothing_is_shared_where_it_is_by_chance(filled, look):
    page, view = look(filled(300))
    assert view["importance"]["shared"] == [] and "fastest share" not in page.words
    _, view = look(filled(60, by_tile, sketch="few"), sketch="few.1")
    assert view["importance"]["fastest"] == 6 and view["importance"]["shared"] == []


def test_the_best_values_are_told_where_one_is_certain(filled, look):
    page, _ = look(filled(200, by_tile))
    assert "Best at" in page.words and page.words.count("not certain") == 3
    page, _ = look(filled(100, sketch="flat", seed=3), sketch="flat.1")
    assert "Best at" not in page.words and "not certain" not in page.words


def test_what_is_chosen_is_taken_back_one_by_one(filled, look):
    path = filled(20, by_tile, fails=2)
    page, _ = look(path, job=1, status="ok", time="1..3", **{"knob.tile": "2"})
    assert "time 1..3 ms ✕" in page.words and "tile 2 ✕" in page.words and "ok ✕" in page.words
    links = {tag["aria-label"]: tag["href"] for tag in page.of("a") if "aria-label" in tag}
    of_job, of_status = links["Trials of all jobs"], links["No more only ok"]
    assert "job=" not in of_job and "time=1..3" in of_job and "status=ok" in of_job
    assert "job=1" in of_status and "time=1..3" in of_status and "status=" not in of_status
    assert "job=1" in links["Take back the range of time"]
    assert "Clear the ranges" in page.words
    kept = [link for link in page.links() if "job=1" in link and "status=ok" in link]
    assert [link for link in kept if "time=" not in link and "knob." not in link]
    assert "Drag along an axis" in page.words and "Tap a value" in page.words  # whatever is chosen
    page, _ = look(path, job=1)
    assert "Clear the ranges" not in page.words and "Drag along an axis" in page.words


def test_an_axis_of_times_ends_before_the_slowest_few():
    times_s = [1e-3 * (1 + 0.001 * n) for n in range(99)] + [1.0]
    for column, values in ((TIME, times_s), (PREDICTED, times_s), (GFLOPS, [1e6 / value for value in times_s])):
        axis = column.axis(values, None)
        assert isinstance(axis.scale, CutScale) and axis.scale.is_log
        places = [axis.scale.place(value) for value in values]
        assert max(places[:99]) - min(places[:99]) > 0.9  # one that is far off takes no room from them
        assert places[99] == (0.0 if column is GFLOPS else 1.0)
        for ticks in (axis.scale.ticks(8), axis.scale.ticks_within(33)):
            [word] = [tick for tick in ticks if tick.text == "slower"]
            assert word.place == places[99] and len(ticks) > 2
    for near in (times_s[:99], times_s[60:], [None, *times_s[:70]]):
        assert not isinstance(TIME.axis(near, None).scale, CutScale)
    assert not isinstance(knob_column("tile").axis(times_s, None).scale, CutScale)


def test_moments_are_no_ranges(filled, look, client, kit):
    path = filled(9)
    page, view = look(path, x="created", sort="created")
    assert not page.of("input", name="created") and "1970" not in page.words
    [column] = [column for column in view["columns"] if column["name"] == "created"]
    assert not column["is_brushable"]
    query = {"target": kit.target().key, "created": "1.."}
    kit.problem(client.get("/v1/pages" + path, params=query), "invalid-request", 422)


@pytest.mark.parametrize(("count", "fails"), [(0, 0), (1, 0), (1, 1), (9, 9)])
def test_odd_tasks(filled, look, count, fails):
    page, view = look(filled(count, fails=fails))
    assert (view["trials"], view["sampled"], view["shown"]) == (count, count, count)
    assert "can't be told yet" in page.words
    assert ("No trials yet." in page.words) == (not count)
    assert not view["is_of_sample"]
    assert page.words.count("crash") >= fails


def test_what_is_drawn(filled, look):
    page, view = look(filled(60, by_tile, fails=6))
    assert view["marks"]["axes"] == ["knob.tile", "knob.block", "knob.unroll", "knob.number", "time"]
    assert [(band["kind"], band["count"]) for band in view["marks"]["bands"]] == [
        ("best", 6), ("fast", 16), ("middle", 16), ("slow", 16), ("failed", 6),
    ]  # fmt: skip
    times = view["marks"]["columns"]["time"]
    assert times[:54] == sorted(times[:54]) and times[54:] == [None] * 6
    assert "All 60 trials are looked at." in page.words
    assert len(page.of("g", **{"class": "pick"})) == 5 + 2
    assert page.source.count('class="line failed kept"') == 1


def test_ranges_filter_marks_and_table(filled, look):
    path = filled(60, by_tile, fails=6)
    query = {"knob.tile": "2..4", "knob.unroll": "4", "time": "..3"}
    page, view = look(path, **query)
    wanted = [
        number
        for number, (tile, unroll, time_ms) in enumerate(
            zip(*(view["marks"]["columns"][f"{name}"] for name in ("knob.tile", "knob.unroll", "time")), strict=True)
        )
        if 2 <= tile <= 4 and unroll == 4 and time_ms is not None and time_ms <= 3
    ]
    kept: list[int] = []
    first = 0
    for band in view["marks"]["bands"]:
        kept += range(first, first + band["count"]) if band["is_kept"] else []
        first += band["count"]
    assert kept == wanted and 0 < len(wanted) < 30
    assert view["shown"] == len(wanted) and not view["is_of_sample"]
    assert all(row["schedule"]["values"]["unroll"] == 4 and row["median_ms"] <= 3 for row in view["rows"])
    assert [row["mark"] for row in view["rows"]] == wanted[: explorer.ROWS]
    assert "tile 2..4" in page.words and "time ..3" in page.words
    (link,) = [tag["href"] for tag in page.of("a") if tag.get("aria-label") == "Take back the range of time"]
    assert "time=" not in link and "knob.tile=2..4" in link
    (field,) = page.of("input", name="knob.tile")
    assert (field["value"], field["placeholder"]) == ("2..4", "1..8")


@pytest.mark.slow
def test_the_table_is_sorted_by_any_column_page_by_page(filled, look, client):
    path = filled(40, by_tile, fails=4)
    for sort in ("time", "knob.block", "created", "gflops", "trial"):
        for desc in (False, True):
            rows, cursor = [], None
            while True:
                query = {"sort": sort, "desc": desc} | ({"cursor": cursor} if cursor else {})
                _, view = look(path, **query)
                rows += view["rows"]
                cursor = view["next"]
                if cursor is None:
                    break
            assert len(rows) == len({row["schedule"]["key"] for row in rows}) == 40
            values = [row["schedule"]["values"]["block"] for row in rows]
            if sort == "knob.block":
                assert values == sorted(values, reverse=desc)
            if sort == "time":
                assert [row["status"] for row in rows[-4:]] == ["crash"] * 4


@pytest.fixture
def small_sample(monkeypatch):
    monkeypatch.setattr(explorer, "DRAWN_AT_RANDOM", 20)
    monkeypatch.setattr(explorer, "DRAWN_FASTEST", 5)


def test_a_sample_of_many_is_the_same_each_time(filled, look, small_sample):
    path = filled(100, by_tile, fails=10)
    page, view = look(path)
    assert (view["trials"], view["shown"]) == (100, 100)
    assert 20 <= view["sampled"] <= 25 and len(view["marks"]["ids"]) == view["sampled"]
    assert f"Drawn are {view['sampled']} of 100 trials: the fastest, and others by chance." in page.words
    assert view["counts"] == {"ok": 90, "crash": 10}
    fastest = [row["mark"] for row in view["rows"][:5]]
    assert None not in fastest  # they are drawn, whatever chance would have
    assert look(path)[1]["marks"] == view["marks"]


def test_what_an_index_tells_is_counted_of_all(filled, look, small_sample):
    path = filled(100, by_tile, fails=10)
    everything = []
    cursor = None
    while True:
        _, view = look(path, **({"cursor": cursor} if cursor else {}))
        everything += view["rows"]
        cursor = view["next"]
        if cursor is None:
            break
    assert len(everything) == 100
    within = [row for row in everything if row["median_ms"] and 1.5 <= row["median_ms"] <= 3]
    page, view = look(path, time="1.5..3")
    assert (view["shown"], view["is_of_sample"]) == (len(within), False)
    assert f"{len(within)} of 100 trials." in page.words
    assert [row["schedule"]["key"] for row in view["rows"]] == [row["schedule"]["key"] for row in within][
        : explorer.ROWS
    ]
    speeds = sorted(row["gflops"] for row in everything if row["gflops"])
    _, view = look(path, gflops=f"{speeds[10]}..{speeds[20]}", time="..80")
    assert (view["shown"], view["is_of_sample"]) == (11, False)
    _, view = look(path, status="crash", sort="created", desc=True)
    assert (view["shown"], view["is_of_sample"]) == (10, False)
    assert look(path, job=1)[1]["shown"] == 100


@pytest.mark.slow
def test_what_no_index_tells_is_said_to_be_of_the_sample(filled, look, small_sample):
    path = filled(100, by_tile)
    page, view = look(path, **{"knob.tile": "8"})
    assert view["is_of_sample"] and 0 < view["shown"] <= view["sampled"]
    assert f"{view['shown']} of a sample of {view['sampled']} of 100 trials" in page.words
    for query in ({"sort": "knob.block"}, {"sort": "created", "time": "1..2"}, {"sketch": "tiled.1"}):
        assert look(path, **query)[1]["is_of_sample"], query


def test_sketches_have_knobs_of_their_own(filled, look, one, kit):
    path = filled(30, by_tile)
    schedule = Schedule("other", 2, (("tile", 4), ("width", 3)))
    one.store.record(Record(product().key, kit.target().key, schedule, good(1e-3)))
    page, view = look(path)
    assert [(sketch["name"], sketch["sampled"]) for sketch in view["sketches"]] == [("other.2", 1), ("tiled.1", 30)]
    names = [column["name"] for column in view["columns"]]
    assert "knob.tile" in names and "knob.width" not in names and "knob.block" not in names
    assert "all sketches" in page.words
    _, view = look(path, sketch="other.2", x="knob.width")
    assert view["shown"] == 1 and "knob.width" in [column["name"] for column in view["columns"]]
    assert look(path, sketch="nowhere.1")[1]["shown"] == 0


def test_several_sketches_are_compared(filled, look):
    filled(60, lambda values: 1e-3, seed=1)
    _, view = look(filled(60, lambda values: 4e-3, sketch="slower", seed=2))
    assert view["importance"]["knobs"][0]["name"] == "sketch"
    assert view["importance"]["knobs"][0]["best"] == "tiled.1"


def test_imported_trials_are_left_out_and_told(filled, look, client, kit):
    path = filled(20)
    task, target = product(), kit.target()
    line = record_line(task, target, Schedule("tiled", 1, (("tile", 9),)), good(1e-6))
    assert client.post(
        "/v1/records", content=json.dumps(line), headers={"Content-Type": "application/jsonl"}
    ).is_success
    page, view = look(path)
    assert (view["trials"], view["imported"], view["shown"]) == (20, 1, 20)
    assert "1 trial that was imported is left out." in page.words


def test_hostile_names_are_text(one, look, kit):
    task, target = product(), kit.target()
    one.store.add_task(task)
    for number in range(60):
        values = ((HOSTILE, number % 7), ("a b&c=d", number % 3), ("n", number))
        schedule = Schedule(HOSTILE, 1, values)
        one.store.record(Record(task.key, target.key, schedule, good(1e-3 * (1 + number % 7))))
    path = f"/tasks/{task.key}/trials"
    query = {f"knob.{HOSTILE}": "2..5", "knob.a b&c=d": "1", "x": f"knob.{HOSTILE}", "sketch": f"{HOSTILE}.1"}
    page, view = look(path, **query)
    assert "<script>alert" not in page.source and "\u202e" not in page.source
    assert 0 < view["shown"] < 60
    assert view["importance"]["knobs"][0]["name"].startswith("</title>")
    (taken_back,) = [tag["href"] for tag in page.of("a") if tag.get("aria-label", "").endswith("a b&c=d")]
    assert "a+b%26c%3Dd" not in taken_back and "script%3E" in taken_back


def test_absurd_values_are_drawn_or_left_out(one, look, kit):
    task, target = product(), kit.target()
    one.store.add_task(task)
    for number, value in enumerate([2**70, -(2**70), 0, -5, 10**15, 3]):
        one.store.record(Record(task.key, target.key, Schedule("s", 1, (("k", value),)), good(1e-3 * (1 + number))))
    _, view = look(f"/tasks/{task.key}/trials", x="knob.k")
    assert view["marks"]["columns"]["knob.k"][:2] == [None, None]


BAD = {
    "time": ["x", "8..2", "1e999", "1...2", "--1", "1..2..3", "٣", "1" * 19],
    "x": ["nowhere", "knob.nowhere", "knob."],
    "sort": ["median_s"],
    "cursor": ["sample x", "sample 999999", "x"],
    "knob.tile": ["8..2", "x", "1" * 61],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_what_is_no_range_or_column_is_refused(filled, client, kit, name, value):
    path = filled(3)
    query = {"target": kit.target().key, name: value}
    told = kit.problem(client.get("/v1/pages" + path, params=query), "invalid-request", 422)
    assert told["errors"][0]["pointer"] == f"#/{name}"
    assert client.get(path, params=query).status_code == 422


def test_too_many_ranges_are_refused(filled, client, kit):
    query = {"target": kit.target().key} | {f"knob.k{n}": "1" for n in range(101)}
    path = filled(1)
    assert "at most 100" in kit.problem(client.get("/v1/pages" + path, params=query), "invalid-request", 422)["detail"]
    query = {"target": kit.target().key, "knob." + "k" * 301: "1"}
    kit.problem(client.get("/v1/pages" + path, params=query), "invalid-request", 422)


def test_a_range_of_a_knob_is_given_once_and_by_its_prefix(filled, client, kit):
    path, target = "/v1/pages" + filled(3), kit.target().key
    told = kit.problem(client.get(f"{path}?target={target}&knob.tile=1&knob.tile=2"), "invalid-request", 422)
    assert told["errors"] == [{"in": "query", "pointer": "#/knob.tile", "detail": "it is given 2 times; give it once"}]
    kit.problem(client.get(f"{path}?target={target}&nob.tile=1"), "invalid-request", 422)
    kit.problem(client.get("/v1/pages/fleet?knob.tile=1"), "invalid-request", 422)


def test_what_a_form_sends_empty_chooses_nothing(filled, look):
    path = filled(9)
    empty = dict.fromkeys(("job", "time", "gflops", "trial", "knob.tile", "sketch"), "")
    page, view = look(path, **empty)
    assert view["shown"] == 9 and view["asked"]["knobs"] == {} and view["asked"]["job"] is None
    assert "Clear the ranges" not in page.words


def test_what_is_not_known(filled, client, kit):
    target = kit.target().key
    kit.problem(client.get(f"/v1/pages/tasks/{'0' * 64}/trials", params={"target": target}), "no-such-task", 404)
    path = "/v1/pages" + filled(1)
    kit.problem(client.get(path, params={"target": "0" * 64}), "no-such-target", 404)
    kit.problem(client.get(path, params={"target": target, "job": 99}), "no-such-job", 404)


def test_a_page_that_is_full_is_not_too_large(one, kit, look, monkeypatch):
    """As many marks as there may be, of as many knobs as there may be axes, with long names."""
    monkeypatch.setattr(explorer, "DRAWN_AT_RANDOM", 1990)
    task, target = product(), kit.target()
    one.store.add_task(task)
    rng = random.Random(0)
    for _ in range(2000):
        values = tuple((f"a_knob_of_a_long_name_{n}", rng.randrange(10_000)) for n in range(14))
        one.store.record(Record(task.key, target.key, Schedule("tiled", 1, values), good(1e-3 * (1 + rng.random()))))
    page, view = look(f"/tasks/{task.key}/trials")  # which checks both sizes
    assert len(view["marks"]["ids"]) >= 1990 and len(view["marks"]["axes"]) == explorer.MOST_AXES + 1
    assert len(page.source) > 100_000


def test_the_analysis_may_take_a_while(filled, shown_client, kit, monkeypatch):
    path = filled(60, by_tile)
    monkeypatch.setattr(descriptions, "PATIENCE_S", 0.0)
    page = Page(shown_client.get(path, params={"target": kit.target().key}).text)
    assert "The trials are being looked at." in page.words
    assert len(page.of("g", **{"class": "pick"})) == 5 + 2  # what is drawn needs none
    assert "60 of 60 trials." in page.words


def test_predictions_are_those_of_the_newest_model(one, kit, shown_client, monkeypatch):
    made = tried(one.store, kit.target(), 60)
    from tunewright.api.dashboard.task import importance
    from tunewright.tuner.explain.calibration import Predictions

    def predictions(store, task, target, lines):
        return Predictions("snapshot 7", {line.id: 2 * (line.median_s or 1.0) for line in lines})

    monkeypatch.setattr(importance, "predictions", predictions)
    answer = shown_client.get(f"/v1/pages/tasks/{made.task.key}/trials", params={"target": made.target.key})
    view = answer.json()
    assert view["rows"][0]["predicted_ms"] == pytest.approx(2 * view["rows"][0]["median_ms"])
    assert view["importance"]["model"] == "snapshot 7"
    for knob in view["importance"]["knobs"]:
        assert knob["model_share"] == pytest.approx(knob["share"])  # the same but for a factor


def test_it_says_where_the_cost_model_sees_far_more(filled, look, monkeypatch):
    from tunewright.api.dashboard.task import importance
    from tunewright.tuner.explain.calibration import Predictions

    def predictions(store, task, target, lines):
        return Predictions("snapshot 7", {line.id: 1e-3 * dict(line.schedule.values)["unroll"] for line in lines})

    monkeypatch.setattr(importance, "predictions", predictions)
    page, _ = look(filled(200, by_tile))
    assert "By the cost model unroll explains far more, 9" in page.words and "or the model is wrong here." in page.words
    monkeypatch.setattr(importance, "FAR_ABOVE", 1.0)
    page, _ = look(filled(100, by_tile, sketch="other"), sketch="other.1")
    assert "explains far more" not in page.words


@pytest.mark.parametrize(
    ("text", "low", "high", "again"),
    [("8..32", 8, 32, "8..32"), ("8..", 8, float("inf"), "8.."), (" ..0.5 ", float("-inf"), 0.5, "..0.5"),
     ("7", 7, 7, "7"), ("-2 .. 1e-3", -2, 0.001, "-2..0.001")],
)  # fmt: skip
def test_ranges_as_text(text, low, high, again):
    found = ValueRange.of(text)
    assert (found.low, found.high, str(found)) == (low, high, again)
    assert found.holds(low if abs(low) < 1e9 else 0.0) and not found.holds(None)
