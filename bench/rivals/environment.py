"""The environment of TVM: made once, separate from ours, with fixed versions."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

PACKAGES = (
    "apache-tvm==0.27.0.post1",
    "apache-tvm-ffi==0.1.14.post1",  # with 0.1.15, which it takes by itself, it crashes where it writes a function down
    "psutil==7.2.2",
    "xgboost-cpu==3.2.0",
    "cloudpickle==3.1.2",
)
"""TVM and the packages that its search needs, in versions that work together."""


class NoEnvironment(Exception):
    """The environment can't be made. The text is for people."""


def tvm_python(folder: Path) -> Path:
    """The interpreter of the environment in `folder`, which is made if missing: a download of about 150 MB.

    Raises NoEnvironment.
    """
    python, done = folder / "bin" / "python", folder / "installed"
    packages = "\n".join(PACKAGES)
    if done.exists() and done.read_text() == packages:
        return python
    try:
        venv.create(folder, clear=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", *PACKAGES],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        raise NoEnvironment(f"{folder}: {error.stderr.strip()[-800:] or error}") from error
    except OSError as error:
        raise NoEnvironment(f"{folder}: {error}") from error
    done.write_text(packages)
    return python
