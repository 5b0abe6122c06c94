"""The pictures of the pages in docs/pictures: `./dev pictures`.

Tunes small models by a service of its own, and takes each page as a browser shows it: light, dark, and on a phone. What
is on them was measured on this machine, so they differ from run to run.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from PIL import Image

from tunewright.api.dashboard.job.view import JobTab
from tunewright.bench.browser import open_browser, require_browser
from tunewright.bench.files import ROOT, write_whole
from tunewright.bench.service import ServiceProcess, run_service
from tunewright.bench.suite import MODELS
from tunewright.db.job import JobState
from tunewright.db.store import Store, open_store
from tunewright.tuner.explain.gain import ModelGain
from tunewright.tuner.search.report import JobOutcome

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = ROOT / "docs" / "pictures"

DONE, RUNNING, PAUSED, WAITING = "squeezenet", "mobilenet_v2", "unet_small", "vit_tiny"
"""Models by the states of their jobs."""

TRIALS, EARLY_TRIALS = 400, 30
"""Trials of a job, and trials after which it is shown or paused."""

WIDE, PHONE = {"width": 1280, "height": 1500}, {"width": 390, "height": 1300}
"""The largest pictures, in pixels."""

SCREEN_PX, MOST_SCREENS = 900, 3
"""Pixels of a screen of that width, and the most screens of a page on it."""

KINDS: dict[str, dict[str, Any]] = {
    "": {"viewport": WIDE, "color_scheme": "light"},
    "-dark": {"viewport": WIDE, "color_scheme": "dark"},
    "-phone": {"viewport": PHONE, "color_scheme": "light", "has_touch": True},
}
"""Settings of the browser, by the suffix of the files' names."""

COLOURS = 256
"""Colours of a picture: enough for flat areas, at a third of the bytes."""

PATIENCE_MS = 30_000


def main() -> int:
    """Tune models and take the pictures."""
    parser = argparse.ArgumentParser(prog="./dev pictures", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=0.5, help="how long the finished job searches")
    arguments = parser.parse_args()
    program = require_browser()
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        url = f"sqlite:///{folder}/pictures.db"
        with open_store(url) as store, run_service(url, Path(folder)) as service, run_tuner(url, Path(folder)):
            paths = run_jobs(store, service, arguments.minutes)
            with open_browser(program) as browser:
                take_pictures(browser, service, paths)
    return 0


@contextmanager
def run_tuner(url: str, home: Path) -> Iterator[None]:
    """A tuner process on this machine."""
    command = [sys.executable, "-P", "-m", "tunewright.api.cli", "work", "--pool", "local", "--db", url]
    env = os.environ | {"TUNEWRIGHT_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    with (home / "work.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


# Jobs and pages


def run_jobs(store: Store, service: ServiceProcess, minutes: float) -> dict[str, str]:
    """Run jobs of all states, one of them twice. Returns the paths of the pages."""
    while not store.fleet.targets():
        wait_for_change(store)
    target = store.fleet.targets()[0].key
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60.0, trust_env=False) as client:
        paused = submit(client, PAUSED, trials=TRIALS)
        wait_until(store, paused, lambda trials, _: trials >= EARLY_TRIALS)
        client.post(f"/v1/jobs/{paused}:pause").raise_for_status()
        jobs = [run_job(client, store, minutes, seed) for seed in (0, 1)]
        running = submit(client, RUNNING, trials=25 * TRIALS, minutes=60)
        submit(client, WAITING, trials=TRIALS)
        wait_until(store, running, lambda trials, _: trials >= EARLY_TRIALS)
        task = page_data(client, f"/jobs/{jobs[0]}?sort=saved")["tasks"][0]["key"]
        best = page_data(client, f"/tasks/{task}?target={target}")["best"]["schedule"]["key"]
    return page_paths(jobs, task, target, best)


def run_job(client: httpx.Client, store: Store, minutes: float, seed: int) -> int:
    """Have the model of finished jobs tuned to the end. Returns the job's number."""
    job = submit(client, DONE, trials=TRIALS, minutes=minutes, seed=seed)
    wait_until(store, job, lambda _, state: state is JobState.SUCCEEDED)
    refuse_noise(store.jobs.get(job).result or {})
    return job


def page_paths(jobs: Sequence[int], task: str, target: str, best: str) -> dict[str, str]:
    """The path of each page by its name: those of the first of two jobs, of a task, and of its best schedule."""
    job, on_target = f"/jobs/{jobs[0]}", f"?target={target}"
    candidate = f"/tasks/{task}/schedules/{best}{on_target}"
    tabs = {
        f"job-{tab.value.replace('_', '-')}": f"{job}?tab={tab.value}" for tab in JobTab if tab is not JobTab.OVERVIEW
    }
    return {
        "jobs": "/",
        "search": "/search?q=conv",
        "job": job,
        **tabs,
        "compare": f"/compare?job={jobs[0]}&job={jobs[1]}",
        "task": f"/tasks/{task}{on_target}",
        "task-loops": f"/tasks/{task}{on_target}&tab=loops",
        "task-roofline": f"/tasks/{task}{on_target}&tab=roofline",
        "trials": f"/tasks/{task}/trials{on_target}",
        "candidate": candidate,
        "candidate-code": f"{candidate}&text=assembly&against=default",
        "records": f"/records?op=pool&task={task}&on={target}",
        "cost-model": "/cost-model",
        "fleet": "/fleet",
        "keys": "/keys",
    }


def refuse_noise(result: Mapping[str, Any]) -> None:
    """Raises SystemExit where the finished job was timed on a busy machine, or gained nothing."""
    gain = ModelGain.of_job(None, result)
    if gain.noise or gain.outcome is not JobOutcome.FASTER:
        raise SystemExit(f"no pictures: {gain.noise or 'the model became no faster'}; try again when nothing else runs")


def submit(client: httpx.Client, model: str, **settings: Any) -> int:
    """Submit a job. Returns its number."""
    data = MODELS[model]()
    digest = hashlib.sha256(data).hexdigest()
    client.put(f"/v1/models/{digest}", content=data, params={"label": f"{model}.onnx"}).raise_for_status()
    answer = client.post("/v1/jobs", json={"model": digest, **settings})
    answer.raise_for_status()
    return int(answer.json()["id"])


def page_data(client: httpx.Client, path: str) -> dict[str, Any]:
    """The data of a page."""
    answer = client.get(f"/v1/pages{path}")
    answer.raise_for_status()
    data: dict[str, Any] = answer.json()
    return data


def wait_until(store: Store, job_id: int, is_there: Callable[[int, JobState], bool]) -> None:
    """Wait until `is_there` of a job's trials and state."""
    while True:
        job = store.jobs.get(job_id)
        if job.state is JobState.FAILED:
            raise SystemExit(f"job {job_id} failed: {job.error}")
        if is_there(int((job.progress or {}).get("trials", 0)), job.state):
            return
        wait_for_change(store)


def wait_for_change(store: Store) -> None:
    """Wait until some job changes."""
    if not store.jobs.wait(300.0):
        raise SystemExit("nothing happens")


# Pictures


def take_pictures(browser: Browser, service: ServiceProcess, paths: Mapping[str, str]) -> None:
    """Save pictures of each page in each of `KINDS`."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{service.url}/login")
    page.get_by_label("API key").fill(service.key)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{service.url}/")
    session, heights = context.storage_state(), {}
    for kind, settings in KINDS.items():
        context = browser.new_context(base_url=service.url, storage_state=session, **settings)
        page = context.new_page()
        for name, path in paths.items():
            page.goto(path)
            page.locator("[data-again]").first.wait_for(state="detached", timeout=PATIENCE_MS)
            heights[name + kind] = page.evaluate("document.body.offsetHeight")
            height = min(heights[name + kind], settings["viewport"]["height"])
            content = reduce_colours(page.screenshot(clip=settings["viewport"] | {"x": 0, "y": 0, "height": height}))
            write_whole(FOLDER / f"{name}{kind}.png", content)
            print(f"{name}{kind}.png: {len(content) / 1000:.0f} kB of {heights[name + kind]} px", flush=True)
        context.close()
    if long := [name for name in paths if heights[name] > MOST_SCREENS * SCREEN_PX]:
        raise SystemExit(f"pages longer than {MOST_SCREENS} screens: {', '.join(long)}")


def reduce_colours(content: bytes) -> bytes:
    """A picture in its most frequent colours. Flat areas stay as they are."""
    whole = Image.open(io.BytesIO(content)).convert("RGB")
    colours = sorted(whole.getcolors(whole.width * whole.height) or [], reverse=True)[:COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in colours for part in colour])  # type: ignore[attr-defined]
    buffer = io.BytesIO()
    whole.quantize(palette=palette, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
