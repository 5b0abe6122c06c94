from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from tunewright.codegen.target import Target
from tunewright.workers.local import LocalPool
from tunewright.workers.pool import Limits
from tunewright.workers.wire import candidate_json

HANGING = """
import json, os, sys
from pathlib import Path
from tunewright.codegen.host import detect
from tunewright.search_space.measurement import Candidate
from tunewright.workers.local import LocalPool
from tunewright.workers.wire import read_candidate
candidates = [read_candidate(data) for data in json.loads(sys.argv[2])]
with LocalPool(candidates[0].target, Path(sys.argv[1]), plugins=["planted"]) as pool:
    for candidate, measurement in pool.measure(candidates):
        print(candidate.schedule.sketch, measurement.status, flush=True)
"""


def test_objects_are_kept(make, tmp_path: Path, target: Target, limits: Limits) -> None:
    for _ in range(2):
        with LocalPool(target, tmp_path / "new" / "objects", limits) as fresh:
            assert make.sound(make.measured(fresh, make.default()))
    assert len(list(tmp_path.glob("new/objects/*.o"))) == 1


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    return children + [process for child in children for process in descendants(child)]


def test_a_killed_pool_leaves_nobody_behind(make, tmp_path: Path) -> None:
    """What was yielded before is final; builders and timer, hanging ones too, die with their owner."""
    candidates = [make.default(), make.planted("build_error"), make.planted("hang")]
    command = [sys.executable, "-P", "-c", HANGING, str(tmp_path), json.dumps([candidate_json(c) for c in candidates])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == "planted.build_error build_error\n"
        assert owner.stdout.readline().endswith(" ok\n")
        pids = descendants(owner.pid)
        assert len(pids) >= 3
        descriptors = [os.pidfd_open(pid) for pid in pids]
        owner.kill()
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], 10)[0]
            os.close(descriptor)


def test_a_pool_can_be_closed_while_its_iterator_is_alive(make, target: Target, tmp_path: Path, limits: Limits) -> None:
    pool = LocalPool(target, tmp_path, limits, ["planted"])
    results = pool.measure([make.planted("hang_in_build"), make.planted("build_error"), make.planted("hang_in_build")])
    next(results)
    pool.close()
    results.close()
    pool.close()
