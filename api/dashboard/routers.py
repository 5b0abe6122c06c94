"""The routers of all pages, and of what pages load."""

from . import candidate, cost_model, fleet, html, job, jobs, records, session, task

PAGES = (jobs, job, task, candidate, records, cost_model, fleet, html, session)

ROUTERS = tuple(page.router for page in PAGES)
