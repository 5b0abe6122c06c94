"""Random models, three answers to each, and which of them are wrong: the parts of `./dev bench differential`.

Read first: `draft` (how a model is drawn), `judge` (what counts as wrong), `worker_pool` (which runs it all).
"""
