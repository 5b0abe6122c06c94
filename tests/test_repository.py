"""The files that people and their tools expect beside the source are valid and agree with each other."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCHEMAS = {
    ".github/workflows/*.yml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    "CITATION.cff": "vendor.citation-file-format",
}


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_files_of_the_hosting_site_are_valid(pattern: str) -> None:
    files = sorted(ROOT.glob(pattern))
    assert files
    command = [str(BIN / "check-jsonschema"), "--builtin-schema", SCHEMAS[pattern], *map(str, files)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]


def test_the_changelog_has_this_version() -> None:
    """Until its release under "Unreleased"."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    [latest, *_] = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert PROJECT["version"] in latest


def test_continuous_integration_runs_every_check() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8"))
    assert "./dev check" in [step.get("run") for step in workflow["jobs"]["check"]["steps"]]
    assert re.search(r'/dev" check$', (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
