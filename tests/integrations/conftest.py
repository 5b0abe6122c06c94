"""A service for programs that we plug into: that of the tests of `api`."""

from ..api.conftest import one, serve

__all__ = ["one", "serve"]
