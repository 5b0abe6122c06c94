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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from PIL import Image

from tunewright.api.links import make_link
from tunewright.bench.browser import ADVICE, browsing, find_browser
from tunewright.bench.files import ROOT, write_whole
from tunewright.bench.service import Service, serving
from tunewright.bench.suite import MODELS
from tunewright.db.jobs import JobState
from tunewright.db.sql_store import SqlStore, open_store
from tunewright.tuner.insight.gain import Gain
from tunewright.tuner.jobs.report import Outcome

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = ROOT / "docs" / "pictures"

DONE, RUNNING, PAUSED, WAITING = "squeezenet", "mobilenet_v2", "unet_small", "vit_tiny"
"""Models by what comes of their jobs."""

TRIALS, BEGUN = 400, 30
"""How many trials a job has; after how many of them it is looked at, or paused."""

WIDE, PHONE = {"width": 1280, "height": 1500}, {"width": 390, "height": 1300}
"""Of what is taken of a page, at most, in pixels."""

KINDS: dict[str, dict[str, Any]] = {
    "": {"viewport": WIDE, "color_scheme": "light"},
    "-dark": {"viewport": WIDE, "color_scheme": "dark"},
    "-phone": {"viewport": PHONE, "color_scheme": "light", "has_touch": True},
}
"""How the names of files end, and what the browser is then."""

COLOURS = 256
"""Of a picture: enough for flat ones, and a third of the bytes."""

PATIENCE_MS = 30_000


def main() -> int:
    """Tune, look, and keep what is seen."""
    parser = argparse.ArgumentParser(prog="./dev pictures", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=0.5, help="how long the finished job searches")
    chosen = parser.parse_args()
    program = find_browser()
    if program is None:
        raise SystemExit(f"there is no browser: {ADVICE}")
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        url = f"sqlite:///{folder}/pictures.db"
        with open_store(url) as store, serving(url, Path(folder)) as service, tuner(url, Path(folder)):
            paths = made(store, service, chosen.minutes)
            with browsing(program) as browser:
                taken(browser, service, make_link(store, service.url).url, paths)
    return 0


@contextmanager
def tuner(url: str, home: Path) -> Iterator[None]:
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


# What is on them


def made(store: SqlStore, service: Service, minutes: float) -> dict[str, str]:
    """Jobs of all kinds, and where the pages are."""
    while not store.fleet.targets():
        awaited(store)
    target = store.fleet.targets()[0].key
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60.0, trust_env=False) as client:
        paused = submitted(client, PAUSED, trials=TRIALS)
        until(store, paused, lambda trials, _: trials >= BEGUN)
        client.post(f"/v1/jobs/{paused}:pause").raise_for_status()
        job = submitted(client, DONE, trials=TRIALS, minutes=minutes)
        until(store, job, lambda _, state: state is JobState.SUCCEEDED)
        refuse_noise(store.jobs.get(job).result or {})
        running = submitted(client, RUNNING, trials=25 * TRIALS, minutes=60)
        submitted(client, WAITING, trials=TRIALS)
        until(store, running, lambda trials, _: trials >= BEGUN)
        task = viewed(client, f"/jobs/{job}?sort=saved")["tasks"][0]["key"]
        best = viewed(client, f"/tasks/{task}?target={target}")["best"]["schedule"]["key"]
    return {
        "jobs": "/",
        "job": f"/jobs/{job}",
        "task": f"/tasks/{task}?target={target}",
        "candidate": f"/tasks/{task}/schedules/{best}?target={target}&text=ir&against=default",
        "records": f"/records?op=pool&task={task}&on={target}",
        "cost-model": "/cost-model",
        "fleet": "/fleet",
    }


def refuse_noise(result: Mapping[str, Any]) -> None:
    """Raises SystemExit where the job that is shown was timed on a busy machine, or came to nothing."""
    found = Gain.told(None, result)
    if found.noise or found.outcome is not Outcome.FASTER:
        raise SystemExit(
            f"no pictures: {found.noise or 'the model became no faster'}; try again when nothing else runs"
        )


def submitted(client: httpx.Client, model: str, **settings: Any) -> int:
    """The number of a job."""
    data = MODELS[model]()
    digest = hashlib.sha256(data).hexdigest()
    client.put(f"/v1/models/{digest}", content=data, params={"label": f"{model}.onnx"}).raise_for_status()
    answer = client.post("/v1/jobs", json={"model": digest, **settings})
    answer.raise_for_status()
    return int(answer.json()["id"])


def viewed(client: httpx.Client, path: str) -> dict[str, Any]:
    """What a page says."""
    answer = client.get(f"/v1/pages{path}")
    answer.raise_for_status()
    data: dict[str, Any] = answer.json()
    return data


def until(store: SqlStore, job_id: int, is_there: Callable[[int, JobState], bool]) -> None:
    """Wait until a job has so many trials, or is in that state."""
    while True:
        job = store.jobs.get(job_id)
        if job.state is JobState.FAILED:
            raise SystemExit(f"job {job_id} failed: {job.error}")
        if is_there(int((job.progress or {}).get("trials", 0)), job.state):
            return
        awaited(store)


def awaited(store: SqlStore) -> None:
    """Wait until something changes."""
    if not store.jobs.wait(300.0):
        raise SystemExit("nothing happens")


# How they are taken


def taken(browser: Browser, service: Service, link: str, paths: dict[str, str]) -> None:
    """Keep each page, as each kind of browser shows it."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(link)
    page.wait_for_url(f"{service.url}/")
    session = context.storage_state()
    for kind, settings in KINDS.items():
        context = browser.new_context(base_url=service.url, storage_state=session, **settings)
        page = context.new_page()
        for name, path in paths.items():
            page.goto(path)
            page.locator("[data-again]").first.wait_for(state="detached", timeout=PATIENCE_MS)
            height = min(page.evaluate("document.body.offsetHeight"), settings["viewport"]["height"])
            content = reduced(page.screenshot(clip=settings["viewport"] | {"x": 0, "y": 0, "height": height}))
            write_whole(FOLDER / f"{name}{kind}.png", content)
            print(f"{name}{kind}.png: {len(content) / 1000:.0f} kB", flush=True)
        context.close()


def reduced(content: bytes) -> bytes:
    """A picture with its most frequent colours alone: what is flat stays as it is."""
    whole = Image.open(io.BytesIO(content)).convert("RGB")
    found = sorted(whole.getcolors(whole.width * whole.height) or [], reverse=True)[:COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in found for part in colour])  # type: ignore[attr-defined]
    written = io.BytesIO()
    whole.quantize(palette=palette, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return written.getvalue()


if __name__ == "__main__":
    sys.exit(main())
