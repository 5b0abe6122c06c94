"""Client: submit models to a server, follow jobs, look schedules up.

    client = Client("http://127.0.0.1:8433")
    job = client.submit("model.onnx", trials=400)
    for event in client.events(job.id):
        print(event.kind, event.data)

Importing it takes httpx; reading a model takes ONNX, when one is submitted. LLVM, XGBoost, a database and Ray are for
the server.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import httpx

from tunewright.codegen.closeable import Closeable
from tunewright.codegen.codec import from_json
from tunewright.db.bounds import LARGEST_ID
from tunewright.graph.numerics import Precision
from tunewright.tuner.arguments import (
    StrategyName,
    check_flag,
    check_minutes,
    check_precision,
    check_priority,
    check_retimed,
    check_seed,
    check_text,
    check_threads,
    check_trials,
    check_until,
    check_words,
    whole_number,
)
from tunewright.tuner.errors import Refused
from tunewright.tuner.text import printable, short

from .address import normal
from .connection import PASSING, PATIENCE_S, Pauses, ServerConnection, ServiceError, key_for
from .job import FINAL_STATES, Job, JobEvent
from .sent_model import PIECE_BYTES, SentModel, read_model

if TYPE_CHECKING:
    from tunewright.codegen.cuda.launchable import Launchable
    from tunewright.codegen.llvm.linkable import Linkable
    from tunewright.codegen.target import Target
    from tunewright.graph.task import Task
    from tunewright.search_space.outline import LoopOutline
    from tunewright.tuner.lookup.result import LookupResult

    from .tiers import Lookups

Result = TypeVar("Result")

READING_S = 150.0
"""How long the server may take to read a model: it waits for its turn, then reads."""

KEY_DIGITS = 64
"""Length of a target's key."""

LONGEST_LABEL = 200
"""Longest label that a server accepts, in characters."""

SILENT_S = 45.0
"""A stream of events that says nothing for this long is dead: the server speaks every 15 s."""

PAGE = 100
"""Jobs asked for at once."""


class Client(Closeable):
    """A server's jobs and lookups.

    `key` is the API key; None: TUNEWRIGHT_API_KEY, or for a server on this machine the one that it left in the data
    folder. `timeout_s` is how long an answer may take to begin, `patience_s` how long requests are repeated where none
    comes, and `waits` hears why. Every method raises ServiceError, which is one line for people. Not for two threads at
    once.
    """

    def __init__(
        self,
        server: str,
        key: str | None = None,
        timeout_s: float = 10.0,
        patience_s: float = PATIENCE_S,
        waits: Callable[[ServiceError], None] = lambda error: None,
    ) -> None:
        """Raises Refused where `server` is no address."""
        self.server = normal(server)
        self._own_key = key
        api_key = key_for(self.server) if key is None else key
        self._connection = ServerConnection(self.server, api_key, timeout_s, patience_s, waits)
        self._lookups: Lookups | None = None

    def close(self) -> None:
        """End all connections."""
        self._connection.close()

    # Jobs

    def submit(
        self,
        model: Path | str | bytes,
        *,
        with_weights: bool = False,
        dims: Mapping[str, int] | None = None,
        bind: Mapping[str, int] | None = None,
        trials: int | None = None,
        minutes: float | None = None,
        until: float | None = None,
        target: str | None = None,
        threads: int | None = None,
        seed: int = 0,
        strategy: StrategyName = "evolutionary",
        vendor: bool = False,
        precision: str = Precision.AS_GIVEN,
        priority: int = 0,
        label: str | None = None,
        tags: Iterable[str] = (),
        notes: str | None = None,
        retime: int | None = None,
    ) -> Job:
        """Have a model tuned: send its structure, or with its weights, and queue a job.

        An unfinished job of the same model, target and settings is answered as it is. `target` is a key, or the begin
        of it, or the name of a target at work; None: the one that tuner processes are at work for, or where none is,
        that of the first that comes. `dims` binds open dimensions by name, `bind` gives inputs of one number their
        values. The search ends after so many `trials` or `minutes`, or once another minute is expected to make the
        model's tasks, all together, faster by less than the share `until`, whichever comes first; where none of them is
        given, after 200 trials. With `vendor` the whole model, sent with its weights, is timed in ONNX Runtime too,
        which is taken where it is faster: as it is given, so not with another `precision`, what products may be
        computed in. With `retime` nothing is searched: the fastest so many schedules of each task that other versions
        had tuned are timed again, as after an upgrade of the server. `tags` are words to find the job by, `notes` what
        else people are to know of it. Raises ModelError for a model that can't be read, and OSError.
        """
        with_weights, vendor = check_flag("with_weights", with_weights), check_flag("vendor", vendor)
        if vendor and not with_weights:
            raise Refused("vendor needs the whole model: send it with its weights (with_weights, --with-weights)")
        check_text("label", label, "net.onnx")
        fields = _job_fields(
            dims=dims,
            bind=bind,
            trials=trials,
            minutes=minutes,
            until=until,
            threads=threads,
            seed=seed,
            strategy=strategy,
            vendor=vendor,
            precision=precision,
            priority=priority,
            tags=tags,
            notes=notes,
            retime=retime,
        )
        fields["target"] = self.target_key(target)
        name = label if label is not None else "" if isinstance(model, bytes) else Path(model).name
        fields |= {"label": name[:LONGEST_LABEL]} if name else {}
        sent = read_model(model, with_weights)
        self._send(sent, name)
        return self._queue(fields | {"model": sent.sha256})

    def _queue(self, body: Mapping[str, Any]) -> Job:
        """The job that is asked for; sent again after a fault, it is the same one."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        answer = self._connection.request("POST", "/v1/jobs", json=body, headers=headers, timeout_s=READING_S)
        return self._job(answer.data)

    def job(self, job_id: int) -> Job:
        """A job as it is now."""
        return self._job(self._connection.request("GET", f"/v1/jobs/{_number(job_id)}").data)

    def machine_words(self, job_id: int) -> str:
        """Whether a job's times can be trusted, by what its machine did meanwhile, as its page says."""
        page = self._connection.request("GET", f"/v1/pages/jobs/{_number(job_id)}").data
        match page:
            case {"machine": {"verdict": str(words)}}:
                return words
        return ""  # the server is of an older version

    def jobs(
        self,
        state: str | None = None,
        *,
        model: str | None = None,
        target: str | None = None,
        tags: Iterable[str] = (),
        owner: str | None = None,
        search: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Jobs, the newest first: those that meet all conditions, at most `limit`.

        They have all of the `tags`, and the text `search` in their label, tags or notes. `owner` is the id of a key,
        or `me`: the key of this client.
        """
        conditions = {"state": state, "model": model, "target": target, "owner": owner, "search": search}
        params: dict[str, Any] = {name: value for name, value in conditions.items() if value is not None}
        params |= {"tag": words} if (words := check_words("tags", tags)) else {}
        remaining = limit
        while remaining is None or remaining > 0:
            page = self._connection.request(
                "GET", "/v1/jobs", params=params | {"limit": PAGE if remaining is None else min(remaining, PAGE)}
            ).data
            items, following = self._decode(_page, page)
            for item in items:
                yield self._job(item)
            if remaining is not None:
                remaining -= len(items)
            if following is None or not items:
                return
            params["cursor"] = following

    def cancel(self, job_id: int) -> Job:
        """Ask for the end of a job."""
        return self._steer(job_id, "cancel")

    def pause(self, job_id: int) -> Job:
        """Ask for a pause."""
        return self._steer(job_id, "pause")

    def resume(self, job_id: int) -> Job:
        """Let a paused job go on."""
        return self._steer(job_id, "resume")

    def prioritise(self, job_id: int, priority: int) -> Job:
        """Change the priority: the higher goes first."""
        answer = self._connection.request(
            "PATCH", f"/v1/jobs/{_number(job_id)}", json={"priority": check_priority(priority)}
        )
        return self._job(answer.data)

    def change(
        self,
        job_id: int,
        *,
        label: str | None = None,
        tags: Iterable[str] | None = None,
        add_tags: Iterable[str] = (),
        remove_tags: Iterable[str] = (),
        notes: str | None = None,
    ) -> Job:
        """Change what people call a job, also a finished one: what is not given stays as it is.

        `tags` are all of its tags, in place of those that it has; `add_tags` and `remove_tags` are single ones.
        """
        check_text("label", label, "net.onnx")
        check_text("notes", notes, "for the release")
        body = {
            "label": label,
            "tags": None if tags is None else check_words("tags", tags),
            "add_tags": check_words("add_tags", add_tags),
            "remove_tags": check_words("remove_tags", remove_tags),
            "notes": notes,
        }
        return self._job(self._connection.request("PATCH", f"/v1/jobs/{_number(job_id)}", json=body).data)

    def extend(self, job_id: int, *, minutes: float | None = None, trials: int | None = None) -> Job:
        """Have a job go on for so many more minutes or trials, or both; the job that does.

        That is another one, whose `is_new` is true, where the job is finished: it goes on from its trials.
        """
        body = {"minutes": check_minutes(minutes), "trials": check_trials(trials)}
        if minutes is None and trials is None:
            raise Refused("neither minutes nor trials are given: how much longer is the job to go on?")
        headers = {"Idempotency-Key": uuid.uuid4().hex}  # sent again after a fault, it counts once
        path = f"/v1/jobs/{_number(job_id)}:extend"
        return self._job(self._connection.request("POST", path, json=body, headers=headers).data)

    def delete(self, job_id: int) -> None:
        """Delete a finished job. What it has measured stays, and is found as before."""
        self._connection.request("DELETE", f"/v1/jobs/{_number(job_id)}")

    def delete_model(self, sha256: str) -> None:
        """Delete a model that was sent, by the digest that jobs have as `model`; no unfinished job may need it."""
        self._connection.request("DELETE", f"/v1/models/{quote(sha256, safe='')}")

    def _steer(self, job_id: int, verb: str) -> Job:
        return self._job(self._connection.request("POST", f"/v1/jobs/{_number(job_id)}:{verb}").data)

    def targets(self) -> dict[str, str]:
        """Key -> name of the targets at work. The key needs the scope records:read."""
        answer = self._connection.request("GET", "/v1/targets").data
        return self._decode(lambda data: {str(target["key"]): str(target["name"]) for target in _page(data)[0]}, answer)

    def target_key(self, target: str | None, option: str = "target") -> str | None:
        """The key of a target given by its key, the start of it, or its name; None for None.

        Raises Refused where it names no target at work, or several; `option` is what messages call the argument.
        """
        if target is None or len(target) == KEY_DIGITS:
            return target
        targets = self.targets()
        keys = [key for key, name in targets.items() if name == target] or [
            key for key in targets if key.startswith(target)
        ]
        if target and len(keys) == 1:
            return keys[0]
        listing = ", ".join(f"{printable(name)} ({short(key)})" for key, name in targets.items()) or "none"
        what = "several targets begin so" if target and keys else "no such target is at work"
        mend = "" if targets else f"; without {option}, or with a whole key, the job waits for a device"
        raise Refused(f"{option} {printable(target)}: {what}; at work: {listing}{mend}")

    def launchable(self, task_key: str, target_key: str) -> Launchable:
        """The best record of a task on a GPU as code, and how it is launched, to run it without this package.

        A server that is asked for it first builds it, which is waited for. The key needs the scope records:read.
        """
        from tunewright.codegen.cuda.launchable import Launchable

        return self._of_record(task_key, target_key, "launchable", Launchable.from_json)

    def linkable(self, task_key: str, target_key: str) -> Linkable:
        """The best record of a task on a processor as code, and how it is called: as `launchable`."""
        from tunewright.codegen.llvm.linkable import Linkable

        return self._of_record(task_key, target_key, "linkable", Linkable.from_json)

    def outline(self, task_key: str, target_key: str) -> LoopOutline:
        """The best record of a task as loops, to build it by other means: as `launchable`."""
        from tunewright.search_space.outline import LoopOutline

        return self._of_record(task_key, target_key, "outline", LoopOutline.from_json)

    def _of_record(self, task_key: str, target_key: str, what: str, decode: Callable[[Any], Result]) -> Result:
        path = f"/v1/records/{quote(task_key, safe='')}/{what}"
        return self._decode(decode, self._connection.request("GET", path, params={"target": target_key}).data)

    # Events

    def events(self, job_id: int, after: int = 0) -> Iterator[JobEvent]:
        """The events of a job after number `after`, until its end.

        Where the connection breaks it is made again, and nothing is missed or told twice. Raises ServiceError where the
        server refuses, or nothing was heard of it for `patience_s`.
        """
        path, last_number, pauses = f"/v1/jobs/{_number(job_id)}/events", after, Pauses()
        heard_s = time.monotonic()
        while True:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(last_number)} if last_number else {})
            try:
                with self._connection.stream(path, SILENT_S, headers=headers) as lines:
                    if lines is None:
                        return
                    heard_s = time.monotonic()
                    for event in self._read_events(lines):
                        heard_s, pauses = time.monotonic(), Pauses()
                        if event.number > last_number:
                            last_number = event.number
                            yield event
                        if event.kind in FINAL_STATES:
                            return
                error = ServiceError(f"{self.server} ended the stream of events")
            except ServiceError as refusal:
                if refusal.status not in PASSING:
                    raise
                error = refusal
            except (httpx.HTTPError, OSError) as fault:
                error = self._connection.unreachable(fault)
            pause_s = pauses.next_s()
            if time.monotonic() + pause_s - heard_s > self._connection.patience_s:
                raise error
            self._connection.waits(error)
            time.sleep(pause_s)

    def _read_events(self, lines: Iterable[bytes]) -> Iterator[JobEvent]:
        """Server-sent events: fields of lines, an event a paragraph. What has no data is a sign of life."""
        data = bytearray()
        for line in lines:
            if line.startswith(b"data:"):
                data += line[5:].removeprefix(b" ") + b"\n"
            elif not line and data:
                yield self._decode(lambda text: from_json(JobEvent, json.loads(text)), bytes(data))
                data.clear()

    def wait(self, job_id: int) -> Job:
        """The job when it is finished."""
        for _ in self.events(job_id):
            pass
        return self.job(job_id)

    # Lookup

    def lookup(
        self, tasks: Iterable[Task | Mapping[str, Any]], target: Target | Mapping[str, Any]
    ) -> dict[str, LookupResult]:
        """Task key -> the schedule to use, and where it is from. Never fails for the server's sake: see `tiers`."""
        from . import tiers

        if self._own_key is None:
            return tiers.lookups(self.server).lookup(tasks, target)  # whose memory is that of the process
        if self._lookups is None:
            self._lookups = tiers.Lookups(self.server, self._own_key)
        return self._lookups.lookup(tasks, target)

    # Requests

    def _send(self, sent: SentModel, label: str) -> None:
        """Put a model on the server; one that it has is not sent again."""
        path = f"/v1/models/{sent.sha256}"
        if sent.size_bytes > PIECE_BYTES and self._has_model(path):
            return
        self._connection.request(
            "PUT",
            path,
            content=sent.pieces,
            params={"label": label[:LONGEST_LABEL]},
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(sent.size_bytes)},
            timeout_s=READING_S,
        )

    def _has_model(self, path: str) -> bool:
        try:
            self._connection.request("GET", path)
        except ServiceError as error:
            if error.status in (403, 404):  # or the key may not look
                return False
            raise
        return True

    def _job(self, data: Any) -> Job:
        return self._decode(partial(from_json, Job), data)

    def _decode(self, make: Callable[[Any], Result], data: Any) -> Result:
        """Checked data of an answer. Raises ServiceError."""
        try:
            return make(data)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServiceError(f"{self.server} answers what was not asked for ({error})") from error


def _number(job_id: int) -> int:
    """The number of a job. Raises Refused where it is none."""
    number = whole_number(job_id)
    if number is None or not 1 <= number <= LARGEST_ID:
        raise Refused(f"the number of a job is {job_id!r}; it must be a whole number from 1 to {LARGEST_ID:,}")
    return number


def _job_fields(
    *,
    dims: Mapping[str, int] | None,
    bind: Mapping[str, int] | None,
    trials: int | None,
    minutes: float | None,
    until: float | None,
    threads: int | None,
    seed: int,
    strategy: StrategyName,
    vendor: bool,
    precision: str,
    priority: int,
    tags: Iterable[str],
    notes: str | None,
    retime: int | None,
) -> dict[str, Any]:
    """What a request for a job says besides model, target and label. Raises Refused for what no server takes."""
    check_text("notes", notes, "for the release")
    numerics = check_precision(precision)
    options = {
        "bind": dict(bind) if bind else None,
        "trials": check_trials(trials),
        "until": check_until(until),
        "vendor": vendor or None,
        "retime": None if retime is None else check_retimed(retime),
        "precision": numerics.value if numerics is not Precision.AS_GIVEN else None,  # older servers have none
        "tags": check_words("tags", tags) or None,
        "notes": notes or None,
    }
    return {
        "threads": check_threads(threads),
        "minutes": check_minutes(minutes),
        "dims": dict(dims or {}),
        "seed": check_seed(seed),
        "strategy": strategy,
        "priority": check_priority(priority),
    } | {name: value for name, value in options.items() if value is not None}


def _page(data: Any) -> tuple[list[Any], str | None]:
    if not isinstance(data, dict) or not isinstance(data.get("items"), list):
        raise ValueError("no list")
    following = data.get("next")
    return data["items"], None if following is None else str(following)
