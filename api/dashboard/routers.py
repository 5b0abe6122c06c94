"""The routers of all pages, and of what pages load."""

from . import cost_model, fleet, html, jobs, keys, records, search, session
from .compare import page as compare
from .job import page as job
from .task import candidate, explorer
from .task import page as task

PAGES = (jobs, job, compare, task, candidate, explorer, records, cost_model, fleet, search, keys, html, session)

ROUTERS = tuple(page.router for page in PAGES)
