"""The page of a job: its head, and a tab for each thing that people ask of it.

`page` is what it says and its route; `tasks`, `curves` and `history` (its events) are parts of that. `page.html` is the
head and the tabs, `TAB.html` what a tab says, `words.html` what several tabs say alike.
"""
