"""Pruning: removes what a policy does not keep. Start with `prune.Pruning`; `policy` says what is kept how long."""
