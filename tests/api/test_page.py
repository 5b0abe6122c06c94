"""Pages: what people see, with nothing in it that a browser would run."""

import hashlib
import re
from typing import Any

import onnx
import pytest
from fastapi.routing import APIRoute
from markupsafe import escape

from tunewright.api.dashboard import page as page_routes
from tunewright.api.dashboard.html import (
    assets,
    candidate_url,
    explorer_url,
    job_url,
    lookup_url,
    render,
    task_url,
    twin_url,
    url,
)
from tunewright.api.dashboard.routers import ROUTERS
from tunewright.api.http.middleware import POLICY
from tunewright.api.http.paths import is_page
from tunewright.api.http.problems import ProblemKind
from tunewright.db.access import KeyScope
from tunewright.db.job import EventKind, JobEdit, JobSpec, JobState, NewEvent, SearchBudget, SpecTask

from .examples import tried
from .page import Page, whole

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "' onclick='x",
    "</td></table>",
]


@pytest.fixture
def queue(kit):
    """A function that queues jobs which differ: label -> id."""

    def add(store, *labels, budget=100, target=None, **settings):
        target = target or kit.target()
        store.add_target(target)
        store.add_task(kit.task(8))
        tasks = (SpecTask(kit.task(8).key, 1),)
        specs = [
            JobSpec(hashlib.sha256(one.encode()).hexdigest(), target.key, tasks, settings | {"label": one})
            for one in labels
        ]
        return {
            one: store.jobs.submit(spec, one, SearchBudget(budget)).job.id
            for one, spec in zip(labels, specs, strict=True)
        }

    return add


def run(store, label_progress, target_key):
    """Lease the queued jobs in order, and tell of each the progress given. Their leases."""
    leases = [store.jobs.lease([target_key], "host-1:77") for _ in label_progress]
    for lease, progress in zip(leases, label_progress, strict=True):
        store.jobs.renew(lease, progress=progress, events=[NewEvent(EventKind.PROGRESS, progress)])
    return leases


@pytest.mark.parametrize("name", HOSTILE)
def test_names_come_as_text(one, client, kit, name):
    model = kit.send(client, 8, label=name)
    job = client.post("/v1/jobs", json={"model": model}).json()
    lease = one.store.jobs.lease([kit.target().key], holder=name)
    text = client.get("/", params={"model": name}).text
    assert text.count(str(escape(name))) >= 3  # label, holder, what was asked for
    one.store.jobs.finish(lease, JobState.FAILED, error=name)
    failed = whole(client.get("/")).source
    assert str(escape(name)) in failed
    assert name not in failed or name == escape(name)
    assert f'href="/jobs/{job["id"]}"' in failed


def test_what_can_not_be_seen_is_shown(one, client, kit):
    client.post("/v1/jobs", json={"model": kit.send(client, 8, label="a\u202egnp.exe\u0007")})
    text = client.get("/").text
    assert r"a\u202egnp.exe\x07" in text
    assert "\u202e" not in text


def pages():
    """The paths of all routes that have a twin."""
    paths = {route.path for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)}
    return {path for path in paths if twin_url(path) in paths}


def test_every_page_with_a_twin_is_known_as_one():
    assert {"/", "/records"} <= pages()
    assert all(map(is_page, pages()))


def test_no_page_has_anything_that_its_policy_forbids(one, shown_client, kit):
    made = tried(one.store, kit.target())
    job = shown_client.post("/v1/jobs", json={"model": kit.send(shown_client, 8)}).json()["id"]
    addresses = {
        "/": "/",
        "/jobs/{job_id:int}": job_url(job),
        "/compare": f"/compare?job={job}",
        "/tasks/{task_key}": task_url(made.task.key, made.target.key),
        "/tasks/{task_key}/schedules/{schedule_key}": candidate_url(
            made.task.key, made.default.key, made.target.key, text="ir"
        ),
        "/tasks/{task_key}/trials": explorer_url(made.task.key, made.target.key),
        "/records": lookup_url(made.task.key, made.target.key),
        "/cost-model": "/cost-model",
        "/fleet": "/fleet",
        "/search": "/search?q=relu",
        "/keys": "/keys",
    }
    assert addresses.keys() == pages()
    for address in addresses.values():
        assert whole(shown_client.get(address)).of("script")


def test_the_list_of_jobs_comes_in_pages(one, client, kit):
    assert "tunewright submit" in client.get("/").text
    model = kit.send(client, 8, label="net.onnx")
    for seed in range(22):
        client.post("/v1/jobs", json={"model": model, "seed": seed})
    first = client.get("/").text
    assert first.count('<tr id="job-') == 20
    (link,) = [tag["href"] for tag in Page(first).of("a", rel="next")]
    older = client.get(link).text
    assert older.count('<tr id="job-') == 2
    assert ">Newest<" in older
    kit.problem(client.get("/", params={"cursor": "?"}), "invalid-request", 422)


def test_the_twin_says_what_the_page_says(one, client, kit, queue):
    ids = queue(one.store, "a.onnx", "b.onnx")
    told = {"trials": 39, "default_ms": 1.618, "tuned_ms": 1.0, "left_s": 600.0, "remaining_gain": 0.05}
    [lease] = run(one.store, [told], kit.target().key)
    kit.store_trials(one.store, lease, 40)
    answer = client.get("/v1/pages/jobs", params={"state": ["running", "queued"]})
    assert answer.headers["content-type"] == "application/json"
    view = answer.json()
    assert [job["id"] for job in view["jobs"]] == [ids["b.onnx"], ids["a.onnx"]]
    running = view["jobs"][1]
    assert running["trials"] == 40 and running["most_trials"] == 100
    assert (running["speedup"], running["speedup_of"]) == (1.618, "trials")
    assert running["minute_gain"] == pytest.approx(1.05**0.1 - 1)
    assert running["outlook"] == "some"
    assert view["asked"]["state"] == ["running", "queued"]
    assert view["counts"]["queued"] == 1
    text = client.get("/", params={"state": ["running", "queued"]}).text
    for said in ("40 of 100", "1.62x", "about 10 min", "5.0%", "0.49% a minute", "host-1:77"):
        assert said in text, said
    assert 'href="/v1/pages/jobs?state=running&amp;state=queued' in text


@pytest.mark.parametrize(
    ("progress", "outlook"),
    [
        ({"left_s": 600.0, "remaining_gain": 0.2}, "some"),
        ({"left_s": 10.0, "remaining_gain": 0.02}, "some"),
        ({"left_s": 600.0, "remaining_gain": 0.009}, "little"),
        ({"left_s": 86400.0, "remaining_gain": 0.1}, "little"),
        ({"left_s": None, "remaining_gain": 0.1}, "some"),
        ({"left_s": 600.0, "remaining_gain": None}, "unknown"),
        ({"left_s": "soon", "remaining_gain": 1e300, "trials": [], "speedup": True}, "unknown"),
        (None, "unknown"),
    ],
)
def test_the_page_tells_which_job_is_worth_stopping(one, client, kit, queue, progress, outlook):
    queue(one.store, "a.onnx")
    lease = one.store.jobs.lease([kit.target().key], "h")
    if progress is not None:
        one.store.jobs.renew(lease, progress=progress)
    (job,) = client.get("/v1/pages/jobs").json()["jobs"]
    assert job["outlook"] == outlook
    assert ("little more to expect</small>" in client.get("/").text) == (outlook == "little")


def test_nothing_is_expected_of_a_finished_job(one, client, kit, queue):
    queue(one.store, "a.onnx")
    lease = one.store.jobs.lease([kit.target().key], "h")
    one.store.jobs.renew(lease, progress={"left_s": 600.0, "remaining_gain": 0.001, "speedup": 3.0, "trials": 9})
    kit.store_trials(one.store, lease, 10)
    one.store.jobs.finish(lease, JobState.SUCCEEDED, result={"default_ms": 4.0, "tuned_ms": 2.0, "trials": 10})
    (job,) = client.get("/v1/pages/jobs").json()["jobs"]
    assert (job["left_s"], job["remaining_gain"], job["outlook"]) == (None, None, "unknown")
    assert (job["speedup"], job["speedup_of"], job["trials"]) == (2.0, "model", 10)
    text = client.get("/").text
    assert "data-post" not in text.partition('id="jobs"')[2]
    assert "timed" in text


def test_of_less_than_a_minute_there_is_no_gain_a_minute(one, client, kit, queue):
    """The whole rest would be told as that of a minute. It counts where jobs are put in order."""
    ids = queue(one.store, "a", "b", "c")
    forecasts = [
        {"left_s": left_s, "remaining_gain": gain} for left_s, gain in ((20.0, 0.02), (60.0, 0.01), (90.0, 0.1))
    ]
    run(one.store, forecasts, kit.target().key)
    jobs = {job["id"]: job for job in client.get("/v1/pages/jobs", params={"sort": "gain"}).json()["jobs"]}
    assert list(jobs) == [ids["b"], ids["a"], ids["c"]]
    assert [jobs[ids[label]]["minute_gain"] for label in "ab"] == [None, pytest.approx(0.01)]
    assert "of the rest of its budget</small>" in client.get(f"/jobs/{ids['a']}").text


def test_jobs_in_order_of_what_they_bring(one, client, kit, queue):
    ids = queue(one.store, "a", "b", "c", "d")
    run(
        one.store,
        [
            {"left_s": 60.0, "remaining_gain": 0.04},
            {"left_s": 600.0, "remaining_gain": 0.001},
            {"left_s": 6000.0, "remaining_gain": 2.0},
        ],
        kit.target().key,
    )

    def order(sort, **query):
        page = client.get("/v1/pages/jobs", params={"sort": sort} | query).json()
        assert page["next"] is None
        return [job["label"] for job in page["jobs"]]

    assert order("gain") == ["b", "c", "a", "d"]
    assert order("left") == ["c", "b", "a", "d"]
    assert order("left", state="queued") == ["d"]
    assert order("gain", state="succeeded") == []
    one.store.jobs.cancel(ids["d"])
    assert order("gain") == ["b", "c", "a"]
    (current,) = [tag for tag in Page(client.get("/?sort=gain").text).of("th") if "aria-sort" in tag]
    assert current["aria-sort"] == "ascending"


def test_the_address_says_which_jobs(one, client, kit, queue):
    other = kit.target(threads=2)
    ids = queue(one.store, "ResNet50.onnx", "resnet18.onnx", "100%_sure.onnx")
    ids |= queue(one.store, "bert.onnx", target=other)
    one.store.jobs.pause(ids["resnet18.onnx"])

    def labels(**query):
        return [job["label"] for job in client.get("/v1/pages/jobs", params=query).json()["jobs"]]

    assert labels(model="RESNET") == ["resnet18.onnx", "ResNet50.onnx"]
    assert labels(model="resnet", state="paused") == ["resnet18.onnx"]
    assert labels(model="0%_") == ["100%_sure.onnx"]
    assert labels(model="%") == ["100%_sure.onnx"]
    assert labels(model=hashlib.sha256(b"bert.onnx").hexdigest()[:9].upper()) == ["bert.onnx"]
    assert labels(target=other.key) == ["bert.onnx"]
    assert labels(model="", target="", sort="newest") == [
        "bert.onnx",
        "100%_sure.onnx",
        "resnet18.onnx",
        "ResNet50.onnx",
    ]
    assert labels(model="none") == []
    page = client.get("/", params={"model": "resnet", "state": "paused", "target": kit.target().key})
    tags = Page(page.text)
    assert tags.of("input", name="model", value="resnet")
    assert [tag["value"] for tag in tags.of("input", name="state") if "checked" in tag] == ["paused"]
    assert [tag["value"] for tag in tags.of("option") if "selected" in tag] == [kit.target().key, "newest"]
    assert "No job meets these conditions" in client.get("/", params={"model": "none"}).text
    for wrong in ({"state": "odd"}, {"target": "x"}, {"sort": "x"}, {"model": "x" * 201}):
        kit.problem(client.get("/v1/pages/jobs", params=wrong), "invalid-request", 422)


def test_jobs_are_found_by_what_people_say_of_them(one, client, kit, queue, monkeypatch):
    monkeypatch.setattr(page_routes, "KEEP_S", 3600.0)  # what is kept of one's own jobs is not shown to another
    other, model = one.client(one.key()), kit.send(client, 8)
    said: list[dict[str, Any]] = [{"tags": ["a", "b"]}, {"tags": ["a"], "notes": "50_% off"}, {"tags": ["b"]}]
    for seed, (who, asked) in enumerate(zip([client, client, other], said, strict=True)):
        who.post("/v1/jobs", json={"model": model, "label": f"m{seed}", "seed": seed} | asked)

    def labels(client=client, **query):
        return [job["label"] for job in client.get("/v1/pages/jobs", params=query).json()["jobs"]]

    assert labels(tag="a") == ["m1", "m0"] and labels(tag=["a", "b", ""]) == ["m0"] and labels(tag="") == labels()
    assert labels(search="0_% OFF") == ["m1"] and labels(search="") == labels() == ["m2", "m1", "m0"]
    assert labels(owner="me") == ["m1", "m0"] and labels(other, owner="me") == ["m2"]
    assert labels(other, owner=one.token.split("_")[1]) == ["m1", "m0"] and labels(owner="") == labels()
    assert labels(tag="a", sort="left") == ["m1", "m0"]
    shown = Page(client.get("/", params={"tag": ["a", ""], "owner": "me", "search": "'"}).text)
    assert [tag["value"] for tag in shown.of("input", name="tag")] == ["a", ""]
    assert [tag["value"] for tag in shown.of("option") if "selected" in tag] == ["me", "newest"]
    assert shown.of("input", name="search", value="'")
    page = client.get("/?sort=newest").text
    links = {tag["href"]: tag for tag in Page(page).of("a")}
    assert links["/?tag=a"] and links[f"/?owner={one.token.split('_')[1]}"]["title"] == one.token.split("_")[1]
    for secret in (one.token, one.token.split("_", 2)[2]):
        assert secret not in page
    for wrong in ("tag=A", "owner=you", f"search={'s' * 201}"):
        kit.problem(client.get(f"/v1/pages/jobs?{wrong}"), "invalid-request", 422)


@pytest.mark.parametrize("text", HOSTILE)
def test_notes_come_as_text(one, client, queue, text):
    [number] = queue(one.store, "m").values()
    one.store.jobs.edit(number, JobEdit(notes=f"{text}\nline 2"))
    page = whole(client.get(f"/jobs/{number}"))
    assert f"{text} line 2" in page.words
    assert not page.of("img") and not [tag for _, tag in page.tags if "onclick" in tag or "onerror" in tag]


@pytest.mark.parametrize(
    ("budget", "words", "asked"),
    [
        ({"minutes": 5}, "Go on for 10 minutes", {"minutes": 10}),
        ({"trials": 40}, "Go on for 200 trials", {"trials": 200}),
        ({"minutes": 5, "trials": 40}, "Go on for 10 minutes or 200 trials", {"minutes": 10, "trials": 200}),
        ({"until": 0.1}, "", {}),
    ],
)
def test_a_job_may_go_on(one, client, kit, budget, words, asked):
    """A button says for how long, by the limits that the job has; of a finished one it begins another."""
    number = client.post("/v1/jobs", json={"model": kit.send(client, 8)} | budget).json()["id"]

    def offered():
        shown = Page(client.get(f"/jobs/{number}", headers={"Cache-Control": "no-cache"}).text)
        fields = {tag["name"]: int(tag["value"]) for tag in shown.of("input", type="number")}
        return [tag["data-post"] for tag in shown.of("form") if "data-post" in tag], fields, shown.words

    paths, fields, page_words = offered()
    assert (fields, words in page_words, len(paths)) == (asked, True, bool(asked))
    if asked:
        same = {"Origin": one.url, "Sec-Fetch-Site": "same-origin"}
        job = client.post(paths[0], json=fields, headers=same).json()
        assert job["id"] == number and {name: job[name] for name in asked} == {
            name: budget[name] + more for name, more in asked.items()
        }
    client.post(f"/v1/jobs/{number}:cancel")
    paths, fields, page_words = offered()
    assert (fields, "Go on for 10 minutes" in page_words) == ({"minutes": 10}, True)
    assert client.post(paths[0], json=fields).json()["id"] != number


def test_what_may_be_done_to_a_job(one, client, kit, queue):
    ids = queue(one.store, "queued", "paused", "cancelled")
    one.store.jobs.pause(ids["paused"])
    one.store.jobs.cancel(ids["cancelled"])

    def offered(label):
        row = client.get("/").text.partition(f'<tr id="job-{ids[label]}">')[2].partition("</tr>")[0]
        return {tag["data-post"].rpartition(":")[2]: tag.get("data-confirm", "") for tag in Page(row).of("button")}

    assert offered("queued").keys() == {"pause", "cancel"}
    assert offered("paused").keys() == {"resume", "cancel"}
    assert str(ids["paused"]) in offered("paused")["cancel"]
    assert offered("cancelled") == {}
    lease = one.store.jobs.lease([kit.target().key], "h")
    one.store.jobs.pause(lease.job_id)
    assert offered("queued").keys() == {"resume", "cancel"}
    one.store.jobs.cancel(lease.job_id)
    assert "asked to cancel" in client.get("/").text
    for tag in Page(client.get("/").text).of("button"):
        if "data-post" in tag:
            same = {"Origin": one.url, "Sec-Fetch-Site": "same-origin"}
            assert client.post(tag["data-post"], headers=same).status_code == 200


def test_who_may_only_look_is_offered_nothing_else(one, client, queue, monkeypatch):
    looker = one.client(one.key(KeyScope.JOBS_READ))
    assert "Choose a model above" not in looker.get("/").text and "Choose a model above" in client.get("/").text
    ids = queue(one.store, "queued", "paused")
    one.store.jobs.pause(ids["paused"])
    monkeypatch.setattr(page_routes, "KEEP_S", 3600.0)  # what is kept for one is not shown to the other
    for address in ("/?sort=newest", f"/jobs/{ids['paused']}", f"/jobs/{ids['queued']}"):
        for viewer, is_offered in ((client, True), (looker, False), (client, True)):
            shown = whole(viewer.get(address))
            assert bool([tag for _, tag in shown.tags if "data-post" in tag]) == is_offered
            assert ("Tune a model" in shown.words) == (is_offered and "sort" in address)
            assert ("submit.js" in shown.source) == (is_offered and "sort" in address)


def test_who_is_at_work(serve, kit):
    with serve() as one:
        client = one.client()
        assert "tunewright work" in client.get("/").text
        kit.enlist(one.store, kit.target())
        text = client.get("/").text
        assert "0 of 1 tuner process at work" in text and "tunewright work" not in text
        assert client.get("/v1/pages/jobs").json()["at_work"] == [kit.target().key]


# Every page


def test_pages_are_known_again(one, client, queue, monkeypatch):
    first = client.get("/")
    assert first.headers["cache-control"] == "private, no-cache"
    same = client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])
    monkeypatch.setattr(page_routes, "KEEP_S", 3600.0)
    kept = client.get("/").text
    queue(one.store, "new.onnx")
    assert client.get("/").text == kept
    assert "new.onnx" in client.get("/?sort=newest").text
    assert "new.onnx" not in client.get("/", headers={"If-None-Match": first.headers["etag"]}).text
    assert "new.onnx" in client.get("/", headers={"Cache-Control": "no-cache"}).text
    assert "new.onnx" in client.get("/").text


def test_a_kept_page_is_for_those_who_may_see_it(one, client, kit, monkeypatch):
    monkeypatch.setattr(page_routes, "KEEP_S", 3600.0)
    assert client.get("/").status_code == client.get("/v1/pages/jobs").status_code == 200
    for path in ("/", "/v1/pages/jobs"):
        kit.problem(one.client(token="").get(path), "no-key", 401)
        kit.problem(one.client(one.key(KeyScope.METRICS)).get(path), "missing-scope", 403)


def test_what_pages_load(one, shown_client, kit):
    client, made = shown_client, tried(one.store, kit.target())
    pages = [Page(client.get(path).text) for path in ("/", "/keys", explorer_url(made.task.key, made.target.key))]
    pages.append(Page(one.client(token="").get("/", headers={"Accept": "text/html"}).text))  # which asks for a key
    addresses = {tag["href"] for page in pages for tag in page.of("link")}
    addresses |= {tag["src"] for page in pages for tag in page.of("script")}
    loaded = {address.partition("?")[0].rpartition("/")[2] for address in addresses}
    code = b"".join(one.content for one in assets().values() if one.name.endswith(".js"))
    assert loaded | {name.decode() for name in re.findall(rb'^import .* from "\./(.*)";$', code, re.M)} == set(assets())
    for address in addresses:
        answer = client.get(address)
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-type"].partition(";")[0] in ("text/css", "text/javascript", "image/svg+xml")
        assert answer.headers["x-content-type-options"] == "nosniff"
        plain = client.get(address.partition("?")[0])
        assert plain.content == answer.content and plain.headers["cache-control"] == "public, no-cache"
    for name in ("nothing.css", "..%2fapp.py", "%2e%2e%2fapp.py"):
        assert client.get(f"/static/{name}").status_code == 404


def test_scripts_are_small_and_plain():
    scripts = [one.content for one in assets().values() if one.name.endswith(".js")]
    assert max(map(len, scripts)) < 14_000
    for script in scripts:
        plain = script.replace(b'"http://www.w3.org/2000/svg"', b"")  # what SVG is called: nothing is loaded from there
        assert not re.search(rb"\beval\b|innerHTML|document\.write|new Function|insertAdjacentHTML|https?:", plain)


def test_models_are_known_by_the_tags_that_they_begin_with():
    [line] = [line for line in assets()["submit.js"].content.decode().splitlines() if line.startswith("const BEGINS")]
    tags = [int(number, 16) for number in re.findall(r"0x[0-9a-f]+", line)]
    fields = onnx.ModelProto.DESCRIPTOR.fields
    wire_types = {field.number: 0 if field.type == field.TYPE_INT64 else 2 for field in fields}
    keys = [number << 3 | wire_type for number, wire_type in wire_types.items()]
    assert sorted(tags) == sorted(key if key < 0x80 else key & 0x7F | 0x80 for key in keys)


def test_addresses():
    assert url("/") == "/"
    assert (
        url("/a b", x=None, y="", z=False, n=0, many=[1, "ü&"], pair=("a",))
        == "/a%20b?n=0&many=1&many=%C3%BC%26&pair=a"
    )
    assert job_url(7, sort=None) == "/jobs/7"
    assert task_url("ab", "cd", job=7) == "/tasks/ab?target=cd&job=7"
    assert candidate_url("ab", "ef", "cd", text="ir") == "/tasks/ab/schedules/ef?target=cd&text=ir"
    assert lookup_url("ab", "cd") == "/records?task=ab&on=cd#lookup"
    assert twin_url("/?state=queued") == "/v1/pages/jobs?state=queued"
    assert explorer_url("ab", "cd", **{"knob.a": "1..2"}) == "/tasks/ab/trials?target=cd&knob.a=1..2"
    assert twin_url(task_url("ab", "cd")) == "/v1/pages/tasks/ab?target=cd"


def test_a_page_without_a_value_is_a_bug():
    with pytest.raises(Exception, match="undefined"):
        render("problem.html", detail="")


def test_refusals_of_pages_are_pages(one, client):
    browser = {"Accept": "text/html,*/*"}
    for answer, status in (
        (client.get("/", params={"cursor": "?"}, headers=browser), 422),
        (one.client(one.key(KeyScope.METRICS)).get("/", headers=browser), 403),
        (one.client(token="").get("/jobs/7", headers=browser), 401),
    ):
        assert answer.status_code == status
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    elsewhere = browser | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    led = one.client(token="").get("/jobs/7", headers=elsewhere)
    assert led.status_code == 401
    assert Page(led.text).of("a", href="/jobs/7")


@pytest.mark.parametrize("kind", list(ProblemKind))
def test_each_problem_has_a_page(client, kind):
    answer = client.get(kind.type)
    assert answer.status_code == 200
    assert escape(kind.title) in answer.text


def test_problems_that_are_none(client, kit):
    kit.problem(client.get("/problems/<script>"), "not-found", 404)


def test_faults_of_addresses_are_listed_in_words(client):
    for path, said in (
        ("/tasks/zz", ["<code>task_key</code>: Must be 64 hexadecimal digits", "<code>target</code>: It is missing."]),
        ("/records?age=-3", ["<code>age</code>: Must be "]),
    ):
        answer = client.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 422
        text = answer.text
        assert all(words in text for words in said), text
        assert "String should" not in text and "errors" not in text and "more" not in text


def test_a_browser_gets_a_page_where_there_is_none(client, kit):
    answer = client.get("/nope", headers={"Accept": "text/html,*/*"})
    assert answer.status_code == 404 and answer.headers["content-type"].startswith("text/html")
    assert "This service has no page there." in answer.text
    assert answer.headers["content-security-policy"] == POLICY
    for path in ("/v1/nope", "/static/nope"):
        kit.problem(client.get(path, headers={"Accept": "text/html"}), "not-found", 404)
    kit.problem(client.get("/nope"), "not-found", 404)
