"""A service for programs that we plug into: that of the tests of `api`."""

from ..api.conftest import _no_server_asked, one, serve

__all__ = ["_no_server_asked", "one", "serve"]
