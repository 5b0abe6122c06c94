"""Which value of a key is served."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tunewright.db.logs.choice import LogRival, choose
from tunewright.db.logs.entry import Cost, CostEvidence, EntryState


def rival(
    choice: bytes,
    time_s: float | None = None,
    spread_s: float = 0.0,
    evidence: CostEvidence = CostEvidence.TIMED,
    state: EntryState = EntryState.CANDIDATE,
    revision: int = 0,
) -> LogRival:
    if time_s is None:
        return LogRival(choice, state, Cost(), revision)
    cost = Cost(time_s, time_s - spread_s, time_s + spread_s, evidence=evidence)
    return LogRival(choice, state, cost, revision)


def served(*rivals: LogRival) -> bytes | None:
    chosen = choose(rivals)
    return None if chosen is None else chosen.choice


def test_the_least_cost_wins():
    assert served(rival(b"a", 2.0), rival(b"b", 1.0)) == b"b"


def test_costs_that_may_be_equal_are_a_tie():
    """Then an approved value is served, else that of the lowest name, whatever was measured a little faster."""
    a, b = rival(b"a", 1.1, 0.2), rival(b"b", 1.0, 0.2)
    assert served(a, b) == b"a"
    approved = rival(b"b", 1.0, 0.2, state=EntryState.APPROVED)
    assert served(a, approved) == b"b"
    far = rival(b"a", 2.0, 0.2, state=EntryState.APPROVED)
    assert served(far, b) == b"b"  # approval is no reason to be slow


def test_what_was_confirmed_counts_before_what_was_timed_once():
    timed, confirmed = rival(b"a", 1.0), rival(b"b", 2.0, evidence=CostEvidence.CONFIRMED)
    assert served(timed, confirmed) == b"b"


def test_an_approved_value_without_a_cost_is_served():
    approved = rival(b"z", state=EntryState.APPROVED)
    assert served(rival(b"a", 1.0), approved) == b"z"
    assert served(rival(b"a", revision=9), approved) == b"z"


def test_without_costs_the_newest_is_served():
    assert served(rival(b"a", revision=1), rival(b"b", revision=3), rival(b"c", revision=2)) == b"b"


def test_what_is_retired_is_not_served():
    retired = rival(b"a", 1.0, state=EntryState.RETIRED)
    assert served(retired, rival(b"b", 2.0)) == b"b"
    assert served(retired) is None
    assert served() is None


costs = st.one_of(
    st.just(Cost()),
    st.builds(
        lambda time, spread, evidence: Cost(time, time - spread, time + spread, evidence=evidence),
        st.integers(5, 9).map(float),
        st.sampled_from([0.0, 1.0, 2.0]),
        st.sampled_from([CostEvidence.TIMED, CostEvidence.CONFIRMED]),
    ),
)


@given(st.lists(st.tuples(costs, st.sampled_from(EntryState)), max_size=6), st.randoms(use_true_random=False))
def test_everybody_chooses_the_same(drawn: list[tuple[Cost, EntryState]], shuffling: random.Random):
    """Whatever the order; and nobody is served what is retired, or certainly slower than what is as well known."""
    rivals = [LogRival(bytes([n]), state, cost, n) for n, (cost, state) in enumerate(drawn)]
    chosen = choose(rivals)
    shuffling.shuffle(rivals)
    assert choose(rivals) == chosen
    live = [s for s in rivals if s.state is not EntryState.RETIRED]
    assert (chosen is None) == (not live)
    if chosen is None or chosen.cost.time_s is None:
        return
    strongest = max(rival.cost.evidence.rank for rival in live)
    for other in live:
        if other.cost.evidence.rank == strongest:
            assert chosen.cost.interval_s[0] <= other.cost.interval_s[1]


def test_what_is_certainly_slower_than_any_is_no_tie():
    vague, sure, slower = rival(b"b", 5.0, 2.0), rival(b"c", 5.0), rival(b"a", 6.0)
    assert served(vague, slower) == b"a"
    assert served(vague, sure, slower) == b"b"


def test_values_are_not_compared_with_each_other(monkeypatch):
    """A log of all trials of a search has thousands of values a key: a write of some looks at each of them once."""
    rivals = [rival(bytes([n]), 1e-3 + n * 1e-6) for n in range(200)]
    compared: list[LogRival] = []

    def compare(one: LogRival, other: object) -> bool:
        compared.append(one)
        return one is other

    monkeypatch.setattr(LogRival, "__eq__", compare)
    assert served(*rivals) == bytes([0])
    assert not compared
