"""Pages: what people see in a browser, and the same as JSON below `/v1/pages`.
Read first: `offering`, which says how a page is added; then `jobs`.
May import: all of `api` but the client.
"""

from . import assets, candidate, cost_model, fleet, job, jobs, records, session, task

ROUTERS = (
    jobs.router,
    job.router,
    task.router,
    candidate.router,
    records.router,
    cost_model.router,
    fleet.router,
    assets.router,
    session.router,
)
"""Of all pages, and of what they need."""
