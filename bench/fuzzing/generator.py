"""The case of a seed: a model of several nodes, inputs for it, and a plan of how to run it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from tunewright.graph.numerics import Precision

from .case import Feeds, FuzzCase, RunPlan
from .draft import OPSETS, DraftTensor, GraphContent, InvalidNode, ModelDraft, tensor_kind
from .notation import vary_notation
from .recipes.recipe import Recipe
from .recipes.rounded import ROUNDED
from .recipes.table import recipes_by_family
from .values import ANY, ordinary_values, special_values

GENERATOR = 2
"""Version of the generator: raise it when seeds give other models."""

TRIES = 12
"""The most tries of a step until it is valid."""

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
"""The main element type of a model, with its probability."""


ROUNDED_SEEDS = 10**9
"""From this seed on models have products that a precision rounds, and all are run in one: among the others few do."""

PRECISIONS = {Precision.AS_GIVEN: 0.75, Precision.BF16: 0.125, Precision.INT8_ACTIVATIONS: 0.125}
"""The precisions of other models, with their probabilities."""


def generate_case(seed: int) -> FuzzCase:
    """The case of a seed: the same in each process, whatever the code under test."""
    rng = random.Random(f"{GENERATOR} {seed}")
    opset = rng.choice([*OPSETS, 11, 13, 13, 17, 18, 21])
    main = rng.choices(list(MAIN), list(MAIN.values()))[0]
    draft = ModelDraft(rng, opset, main)
    if seed >= ROUNDED_SEEDS:
        return _rounded_case(draft, seed)
    for _ in range(rng.choice([1, 1, 2, 2, 3, 3, 4, 5, 6, 8])):
        _add_step(draft)
    return finish_case(draft, seed)


def _rounded_case(draft: ModelDraft, seed: int) -> FuzzCase:
    """A case with a product that its precision rounds, mostly between other ops."""
    precision = draft.among(Precision.BF16, Precision.INT8_ACTIVATIONS)
    recipes = [("", recipe) for recipe in ROUNDED[precision].values()]
    for _ in range(draft.among(0, 0, 1, 2)):
        _add_step(draft)
    for _ in range(draft.among(1, 1, 1, 2)):
        _add_step(draft, recipes)
        for _ in range(draft.among(0, 0, 1, 1, 2, 3)):
            _add_step(draft)
    return finish_case(draft, seed, precision)


def finish_case(draft: ModelDraft, seed: int, precision: Precision | None = None) -> FuzzCase:
    """The case of a draft, in a random precision unless one is given. One without an op gets one."""
    rng = draft.rng
    if not draft.content.nodes:
        draft.op("Identity", draft.pick("float32"))
    model = _build_model(draft)
    vary_notation(model, rng)
    arrays = np.random.default_rng([GENERATOR, seed])
    feeds = (
        _feeds(draft, arrays, ordinary_values),
        _feeds(draft, arrays, ordinary_values),
        _feeds(draft, arrays, special_values),
    )
    plan = RunPlan(
        seed,
        is_random=rng.random() < 0.5,
        threads=rng.choice([1, 1, 1, 2, 3]),
        vector_bits=rng.choice([0, 0, 0, 256]),
        precision=precision or rng.choices(list(PRECISIONS), list(PRECISIONS.values()))[0],  # last: see GENERATOR
    )
    return FuzzCase(seed, model.SerializeToString(), feeds, plan)


def _add_step(draft: ModelDraft, own: Sequence[tuple[str, Recipe]] = ()) -> None:
    """Add an op or idiom, if one is valid: of these recipes, or of all."""
    for _ in range(TRIES):
        families = [(recipes, weight) for recipes, weight in recipes_by_family(draft.opset, draft.learned) if recipes]
        recipes = own or draft.rng.choices([r for r, _ in families], [w for _, w in families])[0]
        _, recipe = draft.rng.choice(recipes)
        content, count = draft.content.copy(), len(draft.op_names)
        try:
            recipe(draft)
            return
        except InvalidNode:
            draft.content = content
            del draft.op_names[count:]


def _build_model(draft: ModelDraft) -> ModelProto:
    content = draft.content
    computed = {name for node in content.nodes for name in node.output}
    used = _read_names(content)
    outputs = _choose_outputs(draft, computed, used)
    inputs = [
        helper.make_value_info(tensor.name, tensor.kind) for tensor in content.inputs.values() if tensor.name in used
    ]
    constants = {n: v for n, v in content.constants.items() if n not in computed and n in used}
    overridable = [n for n in constants if n in content.overridable]
    inputs += [helper.make_value_info(n, tensor_kind(constants[n].dtype.name, constants[n].shape)) for n in overridable]
    graph = helper.make_graph(
        content.nodes, "drawn", inputs,
        [_declare_output(draft, tensor) for tensor in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    domains = sorted({node.domain for node in content.nodes} - {"", "local"})
    domains += ["local"] if content.functions else []
    opsets = [helper.make_opsetid(domain, draft.version(domain)) for domain in ("", *domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=content.functions, ir_version=10)


def _declare_output(draft: ModelDraft, tensor: DraftTensor) -> ValueInfoProto:
    """The declaration of an output, sometimes with open extents; without a shape where it is unknown."""
    if tensor.shape is None or draft.chance(0.6):
        return helper.make_value_info(tensor.name, tensor.kind)
    open_dims = [f"{tensor.name}_{axis}" for axis in range(tensor.rank)]
    return helper.make_value_info(tensor.name, tensor_kind(tensor.dtype, open_dims))


def _read_names(content: GraphContent) -> set[str]:
    used = set()
    for node in content.nodes:
        used.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                used.update(_body_names(attribute.g))
    return used


def _body_names(graph: object) -> set[str]:
    names = set()
    for node in graph.node:  # type: ignore[attr-defined]
        names.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names.update(_body_names(attribute.g))
    names.update(value.name for value in graph.output)  # type: ignore[attr-defined]
    return names


def _choose_outputs(draft: ModelDraft, computed: set[str], used: set[str]) -> list[DraftTensor]:
    """The outputs: unread tensors, and sometimes others, without outputs of Constant nodes."""
    constants = {node.output[0] for node in draft.content.nodes if node.op_type == "Constant"}
    tensors = [t for t in draft.content.tensors if t.name in computed and t.name not in constants and t.dtype]
    unread = [t for t in tensors if t.name not in used]
    intermediate = [t for t in tensors if t.name in used and draft.chance(0.15)]
    return [*unread[-MOST_OUTPUTS:], *intermediate[:2]] or tensors[-1:]


def _feeds(draft: ModelDraft, arrays: np.random.Generator, make: object) -> Feeds:
    content, used = draft.content, _read_names(draft.content)
    feeds = {
        name: make(arrays, tensor.dtype, tensor.shape or (), tensor.domain)  # type: ignore[operator]
        for name, tensor in content.inputs.items()
        if name in used
    }
    for name in sorted(content.overridable & used):
        value = content.constants[name]
        if arrays.random() < 0.5:
            feeds[name] = ordinary_values(arrays, value.dtype.name, value.shape, ANY)
    return feeds
