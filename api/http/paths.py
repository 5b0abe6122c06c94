"""Paths: which of the service's paths are pages for people, and which answer programs."""

from __future__ import annotations

JOBS = "/"
"""The page of all jobs, where the dashboard begins."""

LOGIN, LOGOUT = "/login", "/logout"
"""Where a browser's session begins, and where it ends."""

PAGES = frozenset({JOBS, LOGIN, LOGOUT, "/records", "/cost-model", "/fleet", "/compare", "/search", "/keys"})

FOR_PROGRAMS = frozenset({"/livez", "/readyz", "/metrics"})
"""Besides what is below `/v1/`."""


def is_page(path: str) -> bool:
    """Whether a path is that of a page for people: a refusal is one too there, and links elsewhere may lead to it."""
    return path in PAGES or path.startswith(("/jobs/", "/tasks/", "/problems/"))


def is_for_programs(path: str) -> bool:
    """Whether programs ask here, and nobody else."""
    return path in FOR_PROGRAMS or path.startswith("/v1/")


def is_for_people(path: str) -> bool:
    """Whether who comes here with a browser gets a page, if only one that says that there is none."""
    return not is_for_programs(path) and not path.startswith("/static/")
