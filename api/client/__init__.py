"""The client of a service: `Client` for jobs, `tiers.Lookups` for schedules at compile time.
Read first: `client`; `tiers` is the part that must never break a build.
May import: `tuner`, and of the packages it needs only httpx before a model is read.
"""

from .client import Client
from .connection import ServiceError
from .job import FINAL_STATES, Job, JobEvent, JobTask

__all__ = ["FINAL_STATES", "Client", "Job", "JobEvent", "JobTask", "ServiceError"]
