"""Bounds of numbers that are stored. Imports nothing."""

from __future__ import annotations

LONGEST_LEASE_S = 24 * 3600.0
"""The longest lease."""

LARGEST_ID = 2**53 - 1
"""The largest number of a row: JavaScript's largest whole number, which every database holds too."""
