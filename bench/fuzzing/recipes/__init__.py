"""Recipes that draw ops: a table for each family, and idioms that rewrites look for. Collected in `table`."""
