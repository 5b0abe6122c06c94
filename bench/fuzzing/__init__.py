"""Random models, three answers to each, and which of them are wrong: what stands behind `./dev bench differential`.

Read first: `draft` (how a model is drawn), `judging` (what counts as wrong), `crew` (who does it all).
"""
