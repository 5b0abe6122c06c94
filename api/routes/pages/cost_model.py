"""The page of the cost model: what it learned from, how good it is, and which version of it is gone by."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ...charts.cost_model import cost_model_charts
from ...problems import Kind
from ...service import Here
from ...views.cost_model import CostModelPage, cost_model_page
from .offering import offer

router = APIRouter(tags=["pages"])


def cost_model(
    here: Here,
    kind: Annotated[
        str, Query(pattern="^[a-z0-9_]{0,16}$", description="Kind of targets, such as `cpu`; empty: of processors.")
    ] = "",
) -> CostModelPage:
    """The base model and the snapshots of what this database's trials taught: what each learned from, how good it is on
    tasks held out, which of them jobs begin with and lookups pick by, and which features they go by.
    """
    return cost_model_page(here.store, kind)


offer(
    router,
    "/cost-model",
    "cost_model.html",
    cost_model,
    summary="The cost model",
    charts=cost_model_charts,
    refusals=(Kind.INVALID,),
)
