"""Addresses: where the pages of this service are."""

from __future__ import annotations

from urllib.parse import quote, urlencode, urlsplit

JOBS = "/"
"""The page of all jobs, where the dashboard begins."""

LOGIN, LOGOUT = "/login", "/logout"
"""Where a browser's session begins, and where it ends."""

PAGES = frozenset({JOBS, LOGIN, LOGOUT, "/records", "/cost-model", "/fleet"})

KEPT = "=&+%,:;/?@!$'()*~-._"
"""What stays as it is in a path and a query that are such already (RFC 3986), but for brackets."""

LONGEST = 2000
"""Characters of an address that a form may lead to."""


def is_page(path: str) -> bool:
    """Whether a path is that of a page for people: a refusal is one too there, and links elsewhere may lead to it."""
    return path in PAGES or path.startswith(("/jobs/", "/tasks/", "/problems/"))


def own_page(address: str) -> str:
    """An address if it is that of a page of this service to begin at, as a redirect may name it; else the first page.

    So a form that says where to go on leads nowhere else.
    """
    try:
        parts = urlsplit(address[:LONGEST])
    except ValueError:
        return JOBS
    if (
        len(address) > LONGEST
        or parts.scheme
        or parts.netloc
        or not is_page(parts.path)
        or parts.path in (LOGIN, LOGOUT)
    ):
        return JOBS
    return quote(parts.path, safe=KEPT) + (f"?{quote(parts.query, safe=KEPT)}" if parts.query else "")


def url(path: str, /, **query: object) -> str:
    """A path of this service with a query; what is None, empty or False in it is left out, a list comes repeatedly."""
    pairs: list[tuple[str, object]] = []
    for name, value in query.items():
        values = value if isinstance(value, list | tuple) else (value,)
        pairs += [(name, one) for one in values if one is not None and one is not False and one != ""]
    return quote(path) + ("?" + urlencode(pairs) if pairs else "")


def job_url(job_id: int, **query: object) -> str:
    """Where the page of a job is."""
    return url(f"/jobs/{job_id}", **query)


def task_url(task_key: str, target: str, **query: object) -> str:
    """Where the page of a task on the target of a key is."""
    return url(f"/tasks/{task_key}", target=target, **query)


def candidate_url(task_key: str, schedule_key: str, target: str, **query: object) -> str:
    """Where the page of a schedule of a task on the target of a key is."""
    return url(f"/tasks/{task_key}/schedules/{schedule_key}", target=target, **query)


def records_url(**query: object) -> str:
    """Where the page of records is."""
    return url("/records", **query)


def lookup_url(task_key: str, target: str) -> str:
    """Where it is said what a lookup of a task for the target of a key answers."""
    return f"{records_url(task=task_key, on=target)}#lookup"


def twin_url(page: str) -> str:
    """Where a page, of which this is the address, is as JSON."""
    path, mark, query = page.partition("?")
    return f"/v1/pages{'/jobs' if path == JOBS else path}{mark}{query}"
