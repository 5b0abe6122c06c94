"""The page of a job: its head, and a tab for each thing that people ask of it.

`view` is what it says, `page` makes that and is its route; `overview`, `tasks`, `trials`, `cost_model`, `machine`,
`model` (its graph, with `blocks`), `curves` and `history` (its events) are parts of it, `charts` draws them.
`page.html` is the head and the tabs, `TAB.html` what a tab says.
"""
