"""The page of the fleet: who is at work, what waits, and what is not covered."""

from __future__ import annotations

from fastapi import APIRouter

from ...service import Here
from ...views.fleet import FleetPage, fleet_page
from .offering import offer

router = APIRouter(tags=["pages"])


def fleet(here: Here) -> FleetPage:
    """The tuner processes and their devices, how much of the last hour each had a job, the queue of each target, and
    which tasks of the newest jobs have no record on their target.
    """
    return fleet_page(here.store)


offer(router, "/fleet", "fleet.html", fleet, summary="The fleet")
