"""Bindings of dimensions and of inputs as one mapping. Light to import: the command line reads them."""

from __future__ import annotations

BOUND_MARK = "="
"""The end of a key that binds an input, where bindings of dimensions and of inputs are one mapping."""
