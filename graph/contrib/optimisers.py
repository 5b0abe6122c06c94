"""Steps of optimisers (`ai.onnx.preview.training`): new parameters, and what they carry on from step to step.

Every tensor of parameters has a gradient and states of its own. The rate that all share is worked out in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .call import ContribCall, Unsupported, standard_op

TRAINING = "ai.onnx.preview.training"

Update = Callable[[str, str, Sequence[str]], Sequence[str]]
"""From parameters, their regularised gradient and states to the new parameters and states."""


def _update_each(call: ContribCall, states: int, update: Update) -> list[str]:
    """The results of all tensors of parameters, of which the operands have first all, then all gradients and states."""
    count, rest = divmod(len(call.rest), 2 + states)
    if rest or not count:
        raise Unsupported("operands that are no groups of the same number")
    groups = [[call.rest[k + count * part] for part in range(2 + states)] for k in range(count)]
    results = [update(x, _regularised(call, x, g), carried) for x, g, *carried in groups]
    return [result[part] for part in range(1 + states) for result in results]


def _regularised(call: ContribCall, x: str, gradient: str) -> str:
    return call.emit("Add", _times(call, call.attr("norm_coefficient"), x), gradient)


def _times(call: ContribCall, factor: float, x: str) -> str:
    return call.emit("Mul", call.like(x, factor), x)


def _moved(call: ContribCall, x: str, rate: str, by: str) -> str:
    """x - rate * by."""
    return call.emit("Sub", x, call.emit("Mul", call.cast(rate, call.kind(x).dtype), by))


def _number(call: ContribCall, parameter: str) -> str:
    return call.cast(call.operand(parameter), "float64")


def _is_later(call: ContribCall) -> str:
    """Whether this is not the first step."""
    return call.emit("Greater", call.operand("T"), call.like(call.operand("T"), 0))


@standard_op("Momentum", TRAINING)
def _momentum(call: ContribCall) -> Sequence[str]:
    rate, alpha, is_nesterov = _number(call, "R"), call.attr("alpha"), call.attr("mode") == "nesterov"
    weights = (call.constant(value, "float64") for value in (call.attr("beta"), 1.0))
    weight = call.emit("Where", _is_later(call), *weights)

    def update(x: str, g: str, states: Sequence[str]) -> Sequence[str]:
        fresh = call.emit("Mul", call.cast(weight, call.kind(x).dtype), g)
        momentum = call.emit("Add", _times(call, alpha, states[0]), fresh)
        step = call.emit("Add", g, _times(call, alpha, momentum)) if is_nesterov else momentum
        return _moved(call, x, rate, step), momentum

    return _update_each(call, 1, update)


@standard_op("Adagrad", TRAINING)
def _adagrad(call: ContribCall) -> Sequence[str]:
    one = call.constant(1.0, "float64")
    decay = call.emit("Mul", _number(call, "T"), call.constant(call.attr("decay_factor"), "float64"))
    rate = call.emit("Div", _number(call, "R"), call.emit("Add", decay, one))

    def update(x: str, g: str, states: Sequence[str]) -> Sequence[str]:
        squares = call.emit("Add", states[0], call.emit("Mul", g, g))
        return _moved(call, x, rate, call.emit("Div", g, _root(call, squares))), squares

    return _update_each(call, 1, update)


@standard_op("Adam", TRAINING)
def _adam(call: ContribCall) -> Sequence[str]:
    alpha, beta, shrink = call.attr("alpha"), call.attr("beta"), 1 - call.attr("norm_coefficient_post")
    lacking = [_lacking(call, base) for base in (beta, alpha)]
    rate = _number(call, "R")
    corrected = call.emit("Div", call.emit("Mul", rate, call.emit("Sqrt", lacking[0])), lacking[1])
    rate = call.emit("Where", _is_later(call), corrected, rate)

    def update(x: str, g: str, states: Sequence[str]) -> Sequence[str]:
        momentum = call.emit("Add", _times(call, alpha, states[0]), _times(call, 1 - alpha, g))
        squares = call.emit("Add", _times(call, beta, states[1]), _times(call, 1 - beta, call.emit("Mul", g, g)))
        moved = _moved(call, x, rate, call.emit("Div", momentum, _root(call, squares)))
        return _times(call, shrink, moved), momentum, squares

    return _update_each(call, 2, update)


def _lacking(call: ContribCall, base: float) -> str:
    """1 - base to the power of the step."""
    power = call.emit("Pow", call.constant(base, "float64"), _number(call, "T"))
    return call.emit("Sub", call.constant(1.0, "float64"), power)


def _root(call: ContribCall, squares: str) -> str:
    return call.emit("Add", call.emit("Sqrt", squares), call.like(squares, call.attr("epsilon")))
