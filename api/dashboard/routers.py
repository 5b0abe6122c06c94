"""The routers of all pages, and of what pages load."""

from . import cost_model, fleet, html, jobs, records, session
from .job import page as job
from .task import candidate, explorer
from .task import page as task

PAGES = (jobs, job, task, candidate, explorer, records, cost_model, fleet, html, session)

ROUTERS = tuple(page.router for page in PAGES)
