"""What instructions compute at least: products are added for nothing, and an op is done once for all that needs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunewright.bench.arithmetic import computed_elements
from tunewright.bench.suite.network import Network
from tunewright.tuner.models.model import open_model

LANES = 16

EXPONENTIAL = 11
"""Instructions of an exponential: two to clip, three to reduce, two for the power of two, four for the polynomial."""


def _shifted_product(net: Network, x: str, y: str) -> str:
    return net.add("Add", net.add("Mul", x, y), net.scalar(3.0))


def _scaled_by_root(net: Network, x: str, y: str) -> str:
    return net.add("Mul", x, net.add("Sqrt", y))


@pytest.mark.parametrize(
    ("add", "x", "y", "elements"),
    [
        (lambda net, x, y: net.add("MatMul", x, y), (5, 7), (7, 11), 5 * 7 * 11),
        (lambda net, x, y: net.add("Conv", x, y), (1, 3, 9, 9), (5, 3, 3, 3), 5 * 7 * 7 * 3 * 3 * 3),
        (lambda net, x, y: net.add("Mul", x, y), (5, 7), (5, 7), 35),
        (lambda net, x, y: net.add("Max", x, y), (5, 7), (5, 7), 35),
        (_shifted_product, (5, 7), (5, 7), 35),
        (_scaled_by_root, (5, 7), (5, 1), 35 + 5),
        (lambda net, x, y: net.add("Add", net.add("Exp", x), y), (5, 32), (5, 32), 160 * (EXPONENTIAL + 1)),
        (lambda net, x, y: net.add("Concat", x, y, axis=0), (5, 7), (3, 7), 0),
    ],
    ids=["product", "convolution", "elementwise", "maximum", "added product", "broadcast", "exponential", "copy"],
)
def test_computed_elements(
    add: Callable[[Network, str, str], str], x: tuple[int, ...], y: tuple[int, ...], elements: int
) -> None:
    net = Network("operator")
    model = open_model(net.onnx(add(net, net.input("x", x), net.input("y", y))))
    assert sum(computed_elements(task, LANES) * uses for task, uses in model.tasks.values()) == elements
