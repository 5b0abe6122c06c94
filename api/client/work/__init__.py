"""The database as tuner processes elsewhere have it: behind a server, by a key with the scope `work`."""

from __future__ import annotations
