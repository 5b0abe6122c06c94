"""`serve` as a process: keys, links, ports, tuner processes, and how it ends."""

import ipaddress
import logging
import os
import platform
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tunewright.api import program
from tunewright.api.http.local_key import local_key
from tunewright.api.http.service import Options
from tunewright.api.serve import ServeOptions, ServiceAddress, _shown_host, _strike_off, serve
from tunewright.api.tuners import Tuners
from tunewright.db.access import LOCAL, KeyScope, new_token
from tunewright.db.errors import Unreachable
from tunewright.db.job import JobSpec, SearchBudget, SpecTask
from tunewright.db.store import open_store
from tunewright.tuner.cli.work import JsonLines
from tunewright.tuner.errors import Refused
from tunewright.tuner.interrupts import DRAINED
from tunewright.tuner.settings import PATIENCE_S

from ..commands import commands
from ..waiting import wait_for
from .conftest import TLS

PROGRAM = """
import sys
from tunewright.api.serve import ServeOptions, serve
from tunewright.api.http.service import Options
serve(ServeOptions(port=0, tuners=int(sys.argv[1]), linger_s=float(sys.argv[2])))
"""


class Process:
    """A service in a process of its own."""

    def __init__(self, home: Path, tuners: int = 0, linger_s: float = 0.0, env: Mapping[str, str] | None = None):
        here = {"TUNEWRIGHT_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2] / ".types")}
        env = {**os.environ, **here, **(env or {})}
        command = [sys.executable, "-c", PROGRAM, str(tuners), str(linger_s)]
        with (home / "log").open("ab") as log:
            self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env, text=True)
        assert self.popen.stdout is not None
        said = [self.popen.stdout.readline() for _ in range(3)]
        self.popen.stdout.close()
        self.url, self.login = re.findall(r"http://\S+", "".join(said))
        self.key = (home / "local_key").read_text().strip()

    def client(self):
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, verify=TLS)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Its exit code, and how long it took to end."""
        started_s = time.monotonic()
        self.popen.send_signal(number)
        try:
            return self.popen.wait(60), time.monotonic() - started_s
        finally:
            self.popen.kill()
            self.popen.wait()


@pytest.fixture
def process(tmp_path):
    made = []

    def start(**settings):
        made.append(Process(tmp_path, **settings))
        return made[-1]

    yield start
    for one in made:
        if one.popen.poll() is None:
            one.end(signal.SIGKILL)


def test_a_service_starts_and_ends(process, tmp_path):
    one = process()
    assert one.url.startswith("http://127.0.0.1:") and not one.url.endswith(":0")
    assert stat.S_IMODE((tmp_path / "local_key").stat().st_mode) == 0o600
    with one.client() as client, httpx.Client(trust_env=False, verify=TLS) as browser:
        assert client.get("/v1/jobs").json() == {"items": [], "next": None}
        assert client.get("/metrics").status_code == 200
        assert "server" not in client.get("/livez").headers
        assert browser.get(one.login).status_code == 200
        assert browser.get(one.url + "/", headers={"Accept": "text/html"}).status_code == 200
    code, seconds = one.end()
    assert code == 0
    assert seconds < 5
    again = process()
    assert again.key == one.key
    assert again.login != one.login
    assert again.end(signal.SIGINT)[0] == 0


@pytest.mark.slow
@pytest.mark.postgres
def test_a_database_that_starts_with_it_is_waited_for(process, own_server):
    own_server.stop()
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(process, env={"TUNEWRIGHT_DB": own_server.url})
        own_server.await_knock()
        own_server.start()
        with starting.result().client() as client:
            assert client.get("/v1/jobs").status_code == 200
            own_server.stop()
            started_s = time.monotonic()
            assert client.get("/v1/jobs").status_code == 503
            assert time.monotonic() - started_s < PATIENCE_S / 2


@pytest.mark.slow
def test_it_drains_before_it_ends(process, tmp_path, kit):
    one = process(linger_s=5.0)
    with open_store(f"sqlite:///{tmp_path}/tuning.db") as store:
        store.add_target(kit.target())
        store.add_task(kit.task(8))
        spec = JobSpec("", kit.target().key, (SpecTask(kit.task(8).key, 1),))
        job = store.jobs.submit(spec, "x", SearchBudget(1)).job
    ended_s, following = [], threading.Event()

    def follow():
        with one.client() as client, client.stream("GET", f"/v1/jobs/{job.id}/events", timeout=60) as answer:
            for _ in answer.iter_lines():
                following.set()
            ended_s.append(time.monotonic())

    thread = threading.Thread(target=follow)
    thread.start()
    assert following.wait(60)
    with one.client() as client:
        assert client.get("/readyz").status_code == 200
        asked_s = time.monotonic()
        one.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: client.get("/readyz").status_code == 503, 4.5)
        assert client.get(f"/v1/jobs/{job.id}").status_code == 200  # it still answers
    thread.join(60)
    assert ended_s[0] - asked_s < 5
    assert one.popen.wait(60) == 0
    assert 4.9 < time.monotonic() - asked_s < 30


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(process, tmp_path):
    one = process(linger_s=600.0)
    with one.client() as client:
        one.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: client.get("/readyz").status_code == 503, 30)
    assert one.end()[0] == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


class Sink(BaseHTTPRequestHandler):
    """Takes what is sent to it."""

    found: list[tuple[str, bytes]]

    def do_POST(self):
        self.found.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_traces_are_sent_where_the_environment_says(process):
    found: list[tuple[str, bytes]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Sink", (Sink,), {"found": found})) as sink:
        threading.Thread(target=sink.serve_forever).start()
        one = process(env={"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sink.server_port}"})
        with one.client() as client:
            assert client.get("/v1/jobs/7").status_code == 404
            assert client.get("/livez").status_code == 200
        assert one.end()[0] == 0
        sink.shutdown()
    assert {path for path, _ in found} == {"/v1/traces"}
    sent = b"".join(body for _, body in found)
    assert b"/v1/jobs/{job_id" in sent
    assert b"livez" not in sent
    assert one.key.encode() not in sent


def test_a_port_that_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=f"port {port} of 127.0.0.1 is taken"):
            serve(ServeOptions(port=port, tuners=0))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--pool", "local"], "--pool local takes no --ray-address; --pool ray does"),
        (["--tuners", "0"], "--tuners 0 takes no --ray-address: nothing would join the cluster"),
    ],
)
def test_a_cluster_that_nothing_would_join_is_refused(options, word, capfd):
    answer = commands(program.execute, capfd)("serve", *options, "--ray-address", "head:6379")
    assert (answer.code, answer.err) == (2, f"error: {word}\n")


def test_webhooks_to_hosts_that_are_none_are_refused(capfd, monkeypatch):
    monkeypatch.setenv("TUNEWRIGHT_WEBHOOK_HOSTS", "hooks.corp,10.1.0.1/16")
    assert program.execute(["serve", "--tuners", "0"]) != 0
    said = "TUNEWRIGHT_WEBHOOK_HOSTS: '10.1.0.1/16' is neither the name of a host nor a network like 10.1.0.0/16"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_nobody_listens_beyond_loopback_without_keys(tmp_path, monkeypatch, host):
    monkeypatch.setenv("TUNEWRIGHT_HOME", str(tmp_path))
    url = f"sqlite:///{tmp_path}/a b.db"
    with open_store(url) as store:
        local_key(tmp_path / "local_key", store)
        store.keys.create("link", {KeyScope.LOGIN}, 60, passing=True)
    with pytest.raises(Refused, match=r"there is no key .* key create NAME --db 'sqlite:///.*/a b\.db' makes one"):
        serve(ServeOptions(db=url, port=0, tuners=0, service=Options(host=host)))


def test_the_service_is_called_what_others_call_it():
    assert _shown_host(Options(host="127.0.0.1", allow_hosts=("a.example",))) == "127.0.0.1"
    assert _shown_host(Options(host="::1")) == "[::1]"
    assert _shown_host(Options(host="0.0.0.0", allow_hosts=("*.example", "a.example"))) == "a.example"
    found = _shown_host(Options(host="0.0.0.0"))
    assert found == "localhost" or not ipaddress.ip_address(found).is_unspecified
    said = ServiceAddress("http://10.0.0.1:8433", "sqlite:///a.db", None, None, " --db sqlite:///a.db").lines()
    assert "more keys: tunewright key create NAME --db sqlite:///a.db" in said


def test_the_local_key_is_made_once(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/a.db") as store, open_store(f"sqlite:///{tmp_path}/b.db") as other:
        first = local_key(tmp_path / "local_key", store).read_text()
        assert local_key(tmp_path / "local_key", store).read_text() == first
        assert local_key(tmp_path / "local_key", other).read_text() == first
        key = store.keys.check(first.strip())
        assert key is not None
        assert key.scopes == frozenset(KeyScope) - {KeyScope.LOGIN}
        assert len(store.keys.list()) == 1
        store.keys.revoke(key.id)
        second = local_key(tmp_path / "local_key", store).read_text()
        assert second != first
        assert store.keys.check(second.strip())
        assert list(tmp_path.glob("local_key*")) == [tmp_path / "local_key"]


def test_a_local_key_of_an_older_version_may_do_what_a_new_one_may(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        path, token = tmp_path / "local_key", new_token()
        path.write_text(token)
        path.chmod(0o600)
        older = store.keys.create(f"{LOCAL}{tmp_path}", {KeyScope.JOBS_READ}, token=token)[0]
        local_key(path, store)
        assert path.read_text() == token
        assert store.keys.list() == [replace(older, scopes=frozenset(KeyScope) - {KeyScope.LOGIN})]


def test_a_key_of_people_in_place_of_the_local_one_gets_nothing(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        path = tmp_path / "local_key"
        key, token = store.keys.create("farm", {KeyScope.JOBS_READ})
        path.write_text(token)
        path.chmod(0o600)
        local_key(path, store)
        assert store.keys.list() == [key]


@pytest.mark.parametrize("harm", ["open to others", "other text", "a link"])
def test_a_local_key_that_others_may_know_is_replaced(tmp_path, harm):
    with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        path = local_key(tmp_path / "local_key", store)
        first = path.read_text()
        if harm == "open to others":
            path.chmod(0o644)
        elif harm == "other text":
            path.write_text("tw_x_y")
        else:
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        assert local_key(tmp_path / "local_key", store).read_text() != first
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600


@pytest.fixture
def tuners(monkeypatch, tmp_path):
    """`tuners(count, script)`: processes that run a script instead of the tuner's command line."""
    made = []

    def start(count, script, ended=lambda: None):
        one = Tuners(count, ["work"], os.environ, ended)
        for place in one._places:
            place._command = [sys.executable, "-c", script]
        made.append(one)
        one.start()
        return one

    yield start
    for one in made:
        one.close(0.0)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_tuner_processes_are_started_again(tuners, kit, monkeypatch):
    monkeypatch.setattr("tunewright.api.tuners.FIRST_PAUSE_S", 0.1)
    one = tuners(2, "import time; time.sleep(60)")
    first = wait_for(lambda: len(one.pids) == 2 and one.pids)
    os.kill(first[0], signal.SIGKILL)
    wait_for(lambda: len(one.pids) == 2 and one.pids[0] != first[0])
    assert one.pids[1] == first[1]
    pids = one.pids
    one.close(10.0)
    assert not any(map(is_alive, pids))


ENDING = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit({})); signal.pause()"


def test_one_that_was_drained_stays_away(tuners, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr("tunewright.api.tuners.FIRST_PAUSE_S", 0.0)
    one = tuners(2, ENDING.format(DRAINED))
    first, other = wait_for(lambda: len(one.pids) == 2 and one.pids)
    _end(first)
    wait_for(lambda: "none takes its place" in caplog.text)
    os.kill(other, signal.SIGKILL)
    wait_for(lambda: one.pids and one.pids != [other])  # it has looked at both since
    assert len(one.pids) == 1 and first not in one.pids


def test_one_that_somebody_ended_by_a_signal_is_started_again(tuners, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr("tunewright.api.tuners.FIRST_PAUSE_S", 0.0)
    one = tuners(1, ENDING.format(0))
    [first] = wait_for(lambda: one.pids)
    _end(first)
    wait_for(lambda: one.pids and one.pids != [first])
    assert "none takes its place" not in caplog.text


def _end(pid):
    """Ask a process to end, once it has a handler for that."""
    wait_for(lambda: b"SIGTERM" in Path(f"/proc/{pid}/cmdline").read_bytes() and _catches(pid, signal.SIGTERM))
    os.kill(pid, signal.SIGTERM)


def _catches(pid, number):
    """Whether a process has a handler for a signal."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")]
    return int(line.split()[1], 16) >> (number - 1) & 1


def test_one_that_is_killed_is_struck_off(tuners, kit, monkeypatch, tmp_path):
    """Else its devices would count until it has been silent for a minute."""
    monkeypatch.setattr("tunewright.api.tuners.FIRST_PAUSE_S", 0.1)
    with open_store(f"sqlite:///{tmp_path / 'tuning.db'}") as store:
        one = tuners(1, "import time; time.sleep(60)", partial(_strike_off, store))
        (pid,) = wait_for(lambda: one.pids)
        here = platform.node()
        for name, host, number in (("own", here, pid), ("elsewhere", "elsewhere", pid), ("alive", here, os.getpid())):
            store.fleet.enlist(name, host, number, "0", "ray")
        store.add_target(kit.target())
        store.add_task(kit.task(8))
        spec = JobSpec("", kit.target().key, (SpecTask(kit.task(8).key, 1),))
        job_id = store.jobs.submit(spec, "m", SearchBudget(9)).job.id
        store.jobs.lease([kit.target().key], f"{here}:{pid}")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: {tuner.id for tuner in store.fleet.tuners()} == {"elsewhere", "alive"})
        wait_for(lambda: not store.jobs.get(job_id).holder)
        wait_for(lambda: one.pids and one.pids[0] != pid)


def test_a_database_that_is_away_does_not_keep_tuners_from_starting(tuners, kit, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr("tunewright.api.tuners.FIRST_PAUSE_S", 0.1)
    with open_store(f"sqlite:///{tmp_path / 'tuning.db'}") as store:

        def refuse(*_, **__):
            raise Unreachable("away")

        monkeypatch.setattr(store.database, "read", refuse)
        one = tuners(1, "import time; time.sleep(60)", partial(_strike_off, store))
        (pid,) = wait_for(lambda: one.pids)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: one.pids and one.pids[0] != pid)
        wait_for(lambda: "not struck off" in caplog.text)


def test_a_slow_database_keeps_tuners_neither_from_starting_nor_from_ending(tuners, kit, monkeypatch):
    monkeypatch.setattr("tunewright.api.tuners.FIRST_PAUSE_S", 0.1)
    asked, answered = threading.Event(), threading.Event()

    def ended():
        asked.set()
        answered.wait()

    one = tuners(1, "import time; time.sleep(60)", ended)
    try:
        (pid,) = wait_for(lambda: one.pids)
        os.kill(pid, signal.SIGKILL)
        assert asked.wait(10.0)
        (again,) = wait_for(lambda: one.pids)
        one.close(10.0)
        assert not is_alive(again)
    finally:
        answered.set()


def test_those_that_can_not_start_are_tried_ever_more_seldom(tuners, kit, caplog, monkeypatch):
    for name, value_s in (("LOOK_S", 0.01), ("FIRST_PAUSE_S", 0.1), ("LONGEST_PAUSE_S", 0.3)):
        monkeypatch.setattr(f"tunewright.api.tuners.{name}", value_s)
    with caplog.at_level(logging.WARNING, "tunewright.tuners"):
        tuners(1, "raise SystemExit(1)")
        ends = wait_for(lambda: len(caplog.records) >= 4 and caplog.records[:4])
    pauses_s = [record.again_in_s for record in ends]
    assert pauses_s == [0.1, 0.2, 0.3, 0.3]
    for end, following, pause_s in zip(ends, ends[1:], pauses_s, strict=False):
        assert following.created - end.created > 0.9 * pause_s


def test_what_they_say_is_logged(tuners, kit, caplog):
    made = {"job_id": 12, "levelno": logging.WARNING, "levelname": "WARNING", "name": "tunewright.work"}
    bug = ZeroDivisionError("a\nbug")
    record = logging.makeLogRecord(made | {"msg": "job 12: lost", "exc_info": (type(bug), bug, None)})
    others = ["1 jobs", "\x1b[2J\xff", '{"jobs": 1}', '{"level": "no", "event": "x"}', "[" * 100_000, "9" * 5000]
    line = JsonLines().format(record)
    with caplog.at_level(logging.INFO, "tunewright.tuners"):
        one = tuners(
            1, f"import sys; print({line!r}, file=sys.stderr); print(*{others!r}, sep='\\n'); raise SystemExit(5)"
        )
        wait_for(lambda: any("ended" in record.message for record in caplog.records))
        one.close(5.0)
    said = {record.getMessage(): record for record in caplog.records}
    first = said["job 12: lost"]
    assert (first.levelname, first.job_id, first.pid > 1) == ("WARNING", 12, True)
    assert first.exception == "ZeroDivisionError: a\nbug"
    assert all(said[text].levelname == "INFO" for text in others)
    assert said["a tuner process ended"].code == 5


def test_those_that_do_not_end_are_killed(tuners, kit, tmp_path):
    ready = tmp_path / "ready"
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    one = tuners(1, f"{ignore}; open({str(ready)!r}, 'w'); time.sleep(60)")
    wait_for(ready.exists)
    (pid,) = one.pids
    started_s = time.monotonic()
    one.close(0.5)
    assert 0.4 < time.monotonic() - started_s < 30
    assert not is_alive(pid)


def test_tuner_processes_are_asked_to_end_once_with_the_service(tmp_path, kit):
    """However it ends. Asked twice, a tuner drops what it has in hand."""
    note = tmp_path / "note"
    code = (
        "import os, signal, sys, time\n"
        "from tunewright.api.tuners import _end_with\n"
        f"note = open({str(note)!r}, 'a', buffering=1)\n"
        "signal.signal(signal.SIGTERM, lambda *_: note.write('asked\\n'))\n"
        "_end_with(int(sys.argv[1])); note.write(f'{os.getpid()}\\n'); time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys, threading, time\n"
        "[threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(20)]\n"
        f"start = lambda: (subprocess.Popen([sys.executable, '-c', {code!r}, str(os.getpid())]), time.sleep(60))\n"
        "threading.Thread(target=start).start()"
    )
    env = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2] / ".types")}
    with subprocess.Popen([sys.executable, "-c", parent], env=env) as process:
        pid = int(wait_for(lambda: note.exists() and note.read_text()))
        process.kill()
        process.wait()  # all of its threads are gone
        wait_for(lambda: "asked" in note.read_text())
        assert note.read_text().count("asked") == 1
        os.kill(pid, signal.SIGKILL)
