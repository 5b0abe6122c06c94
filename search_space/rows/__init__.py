"""Rows: pieces over the same rows, such as softmax and normalisation, and the passes that compute them.
Read first: `rows.RowGroup`, then `steps.Plan`.
May import: what `search_space` may, and `nests`.
"""
