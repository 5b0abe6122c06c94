"""How each op is drawn: a table for each family, and the idioms that rewrites look for. Put together in `table`."""
