"""The processes of a service on one database, to be killed and started again, and what is asked of them."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""There is none here; reading all certificates for each request would take most of its time."""

SHAPES = [(4, 8, 24), (5, 8, 24), (6, 16, 24), (7, 8, 40), (8, 16, 40), (9, 24, 24)]
"""Of the products that models are made of: rows, depth, columns."""


def model(number: int) -> bytes:
    """Two products with their activations: neighbours in `SHAPES`, so that models have tasks in common."""
    rng = np.random.default_rng(0)
    nodes, weights, inputs, outputs = [], [], [], []
    for place in (number % len(SHAPES), (number + 1) % len(SHAPES)):
        rows, depth, columns = SHAPES[place]
        x, w, xw, y = (f"{name}{place}" for name in ("x", "w", "xw", "y"))
        weights.append(numpy_helper.from_array(rng.standard_normal((depth, columns)).astype(np.float32), w))
        nodes += [helper.make_node("MatMul", [x, w], [xw]), helper.make_node("Relu", [xw], [y])]
        inputs.append(helper.make_tensor_value_info(x, TensorProto.FLOAT, [rows, depth]))
        outputs.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, [rows, columns]))
    graph = helper.make_graph(nodes, "two", inputs, outputs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def _parent(pid: int) -> int | None:
    """The process that a process is a child of; None where it is dead."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


FAR = {"tuner-far": "api0"}
"""Tuner processes, and the API process that each asks for its jobs."""


class Service:
    """Processes by name, each with a log in `folder`. All are killed at the end."""

    def __init__(self, url: str, folder: Path, lease_s: float) -> None:
        self.url, self.folder, self.notes = url, folder, folder / "notes"
        self.notes.touch()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.addresses: dict[str, str] = {}  # URLs of the API processes
        self.far_url = ""  # of the one that tuner processes ask
        self._roles = folder / "roles"
        self._roles.mkdir()
        paths = [str(HERE.parents[1] / ".types"), str(HERE), os.environ.get("PYTHONPATH", "")]
        self._env = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TUNEWRIGHT_HOME": str(folder / "home"),
            "TUNEWRIGHT_LEASE_S": f"{lease_s:g}",
            "TW_TEST_ROLES": str(self._roles),
        }

    def start_tuner(self, name: str) -> None:
        """One with a name in `FAR` has no database: it asks an API process."""
        self._start(name, [str(HERE / "tuner.py"), self.far_url if name in FAR else self.url, str(self.notes)])

    def start_api(self, name: str, port: int = 0) -> None:
        """Started; `await_api` waits until it answers. Port 0 is one that is free."""
        command = ["-m", "tunewright.api.cli", "serve", "--tuners", "0", "--port", str(port), "--db", self.url]
        self._start(name, command)

    def await_api(self, name: str) -> None:
        said = self.processes[name].stdout
        assert said is not None
        lines = iter(said.readline, "")
        found = next((re.search(r"http://\S+", line) for line in lines if " serves " in line), None)
        assert found, self.log(name)
        self.addresses[name] = found[0]
        if name in FAR.values():
            self.far_url = found[0]

    def _start(self, name: str, arguments: list[str]) -> None:
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def kill(self, name: str) -> int:
        """As the system does when memory runs out: nothing is said. The id that the process had."""
        process = self.processes.pop(name)
        self.addresses.pop(name, None)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return process.pid

    def child(self, role: str, tuner: str) -> int | None:
        """A process that builds or times for a tuner, which its fork server forked; None where it has none now."""
        for file in self._roles.glob(f"*.{role}"):
            fork_server = _parent(int(file.stem))
            if fork_server is not None and _parent(fork_server) == self.processes[tuner].pid:
                return int(file.stem)
        return None

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    # Over HTTP, through whichever API process answers

    def ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """What one of the API processes answers. Those that are down or lack their database are asked again."""
        headers = {"Authorization": f"Bearer {(self.folder / 'home' / 'local_key').read_text().strip()}"}
        headers |= arguments.pop("headers", {})
        deadline_s = time.monotonic() + 60
        while True:
            for address in list(self.addresses.values()):
                try:
                    answer = httpx.request(
                        method, address + path, headers=headers, timeout=60, trust_env=False, verify=TLS, **arguments
                    )
                except httpx.TransportError:  # it was killed
                    continue
                if answer.status_code not in (429, 503):
                    return answer
            assert time.monotonic() < deadline_s, path
            time.sleep(0.05)  # as a client that is told to come back

    def submit(self, number: int, seed: int, target_key: str, trials: int) -> int:
        """A job's number. Sent again and again until it is answered, it is one job."""
        data = model(number)
        sha256 = hashlib.sha256(data).hexdigest()
        assert self.ask("PUT", f"/v1/models/{sha256}", content=data).status_code in (200, 201)
        body = {"model": sha256, "target": target_key, "trials": trials, "seed": seed}
        answer = self.ask("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": f"{number}-{seed}"})
        assert answer.status_code == 202, answer.text
        job_id: int = answer.json()["id"]
        return job_id
