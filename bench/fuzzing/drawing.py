"""The case that a seed stands for: a model of several nodes, inputs for it, and a plan of how to run it."""

from __future__ import annotations

import random

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from .case import Case, Feeds, Plan
from .draft import OPSETS, Content, Draft, Tensor, Unfit, tensor_kind
from .drawn.table import choices
from .dressing import dress
from .values import ANY, ordinary, special

GENERATOR = 1
"""Raise it when seeds begin to stand for other models."""

TRIES = 12
"""How often a step is tried that does not come to be valid."""

MOST_OUTPUTS = 6

MAIN = {
    "float32": 0.72,
    "float16": 0.08,
    "float64": 0.06,
    "bfloat16": 0.03,
    "int64": 0.04,
    "int32": 0.04,
    "uint8": 0.03,
}
"""The element type that a model mostly has, with how often."""


def drawn(seed: int) -> Case:
    """The case of a seed: the same in each process, whatever the code is that it tries."""
    rng = random.Random(f"{GENERATOR} {seed}")
    opset = rng.choice([*OPSETS, 11, 13, 13, 17, 18, 21])
    main = rng.choices(list(MAIN), list(MAIN.values()))[0]
    draft = Draft(rng, opset, main)
    for _ in range(rng.choice([1, 1, 2, 2, 3, 3, 4, 5, 6, 8])):
        _step(draft)
    if not draft.content.nodes:
        draft.op("Identity", draft.pick("float32"))
    model = _model(draft)
    dress(model, rng)
    arrays = np.random.default_rng([GENERATOR, seed])
    feeds = (_feeds(draft, arrays, ordinary), _feeds(draft, arrays, ordinary), _feeds(draft, arrays, special))
    plan = Plan(
        seed,
        is_random=rng.random() < 0.5,
        threads=rng.choice([1, 1, 1, 2, 3]),
        vector_bits=rng.choice([0, 0, 0, 256]),
    )
    return Case(seed, model.SerializeToString(), feeds, plan)


def _step(draft: Draft) -> None:
    """One op or idiom more, if one can be had."""
    for _ in range(TRIES):
        families = [(recipes, weight) for recipes, weight in choices(draft.opset) if recipes]
        recipes = draft.rng.choices([r for r, _ in families], [w for _, w in families])[0]
        _, recipe = draft.rng.choice(recipes)
        kept, count = draft.content.copy(), len(draft.drawn)
        try:
            recipe(draft)
            return
        except Unfit:
            draft.content = kept
            del draft.drawn[count:]


def _model(draft: Draft) -> ModelProto:
    content = draft.content
    made = {name for node in content.nodes for name in node.output}
    used = _used(content)
    outputs = _outputs(draft, made, used)
    inputs = [helper.make_value_info(one.name, one.kind) for one in content.inputs.values() if one.name in used]
    constants = {n: v for n, v in content.constants.items() if n not in made and n in used}
    overridable = [n for n in constants if n in content.overridable]
    inputs += [helper.make_value_info(n, tensor_kind(constants[n].dtype.name, constants[n].shape)) for n in overridable]
    graph = helper.make_graph(
        content.nodes, "drawn", inputs,
        [_declared(draft, one) for one in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", draft.opset)]
    if content.functions:
        opsets.append(helper.make_opsetid("local", 1))
    return helper.make_model(graph, opset_imports=opsets, functions=content.functions, ir_version=10)


def _declared(draft: Draft, tensor: Tensor) -> ValueInfoProto:
    """Some extents of an output may be left open; of what only running tells there may be no shape at all."""
    if tensor.shape is None or draft.chance(0.6):
        return helper.make_value_info(tensor.name, tensor.kind)
    open_dims = [f"{tensor.name}_{axis}" for axis in range(tensor.rank)]
    return helper.make_value_info(tensor.name, tensor_kind(tensor.dtype, open_dims))


def _used(content: Content) -> set[str]:
    used = set()
    for node in content.nodes:
        used.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                used.update(_free(attribute.g))
    return used


def _free(graph: object) -> set[str]:
    found = set()
    for node in graph.node:  # type: ignore[attr-defined]
        found.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found.update(_free(attribute.g))
    found.update(value.name for value in graph.output)  # type: ignore[attr-defined]
    return found


def _outputs(draft: Draft, made: set[str], used: set[str]) -> list[Tensor]:
    """What nobody reads, and now and then what somebody does; Constant nodes alone are none."""
    constants = {node.output[0] for node in draft.content.nodes if node.op_type == "Constant"}
    tensors = [t for t in draft.content.tensors if t.name in made and t.name not in constants and t.dtype]
    last = [t for t in tensors if t.name not in used]
    more = [t for t in tensors if t.name in used and draft.chance(0.15)]
    return [*last[-MOST_OUTPUTS:], *more[:2]] or tensors[-1:]


def _feeds(draft: Draft, arrays: np.random.Generator, make: object) -> Feeds:
    content, used = draft.content, _used(draft.content)
    feeds = {
        name: make(arrays, one.dtype, one.shape or (), one.domain)  # type: ignore[operator]
        for name, one in content.inputs.items()
        if name in used
    }
    for name in sorted(content.overridable & used):
        value = content.constants[name]
        if arrays.random() < 0.5:
            feeds[name] = ordinary(arrays, value.dtype.name, value.shape, ANY)
    return feeds
