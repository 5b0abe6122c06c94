"""Task: the canonical compute definition of one fused subgraph.

A task is a short list of stages over numbered tensors. Names of the model appear nowhere in it, so the same
computation has the same key in every model, process and machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, prod
from typing import Any

import numpy as np

from tunewright.codegen.expr.dtype import DType
from tunewright.codegen.expr.expr import (
    COMPARISONS,
    DOTS,
    Expr,
    Load,
    Op,
    Var,
    const,
    free_vars,
    from_json,
    loads,
    op,
    to_json,
    walk,
)
from tunewright.codegen.fields import check_names, check_type, item, quote, word

from .block_product import match_block_product

SMALL = 64
"""Twice its product with the largest byte has 16 bits, with a sign."""

COMBINERS = {"sum": "add", "max": "max", "min": "min", "prod": "mul"}
"""Combiner of a stage -> the op of `codegen.expr` that joins two partial results."""

IDENTITIES = {"sum": 0.0, "max": float("-inf"), "min": float("inf"), "prod": 1.0}
"""The value that each combiner starts from; see `identity`."""


def identity(combiner: str, dtype: DType) -> float | int:
    """The value that a fold starts from, in the dtype: an integer's infinity is an end of its range."""
    value = IDENTITIES[combiner]
    if dtype.is_float:
        return value
    if isfinite(value):
        return int(value)
    limits = np.iinfo(dtype.value)
    return int(limits.min if value < 0 else limits.max)


def fold_value(combiner: str, total: Expr, value: Expr) -> Expr:
    """Fold one more value into a total; products join a sum by one instruction, where there is one."""
    match combiner, value:
        case "sum", Op("mul", (left, right), dtype) if dtype.is_float:
            return op("fma", left, right, total)
        case "sum", Op(name, (left, right, part)) if name in DOTS and part == const(0, part.dtype):
            return op(name, left, right, total)
        case _:
            return op(COMBINERS[combiner], total, value)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense tensor of a task. `constant` inputs are known when a model is compiled, so they can be packed then.

    `small` ones are signed bytes of which none is beyond SMALL: sums of two products with unsigned bytes have 16 bits.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    constant: bool = False
    small: bool = False

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.size_bytes


Index = Sequence[Expr]
"""An index: one expression per dimension."""


def load(tensor: Tensor, index: Index) -> Expr:
    """A load of one element. The tensor broadcasts to the index: leading dimensions and extents of 1 are ignored."""
    own = list(index)[len(index) - len(tensor.shape) :]
    place = tuple(const(0) if extent == 1 else at for at, extent in zip(own, tensor.shape, strict=True))
    return Load(tensor.name, place, tensor.dtype)


@dataclass(frozen=True, slots=True)
class Axis:
    """A named range 0 .. extent - 1."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True)
class Stage:
    """`output[index] = body` for every point of `axes`, folded by `combiner` over `reduce`.

    `index` maps the axes to the place written (affine; the axes themselves unless the stage writes a part of its
    output, as concatenation does, or permutes it). Every element of a tensor is written by exactly one point of one
    stage; of an output some may be left as they are, for other tasks to write. A body reads inputs and tensors that
    earlier stages wrote completely, always in bounds.
    """

    output: str
    axes: tuple[Axis, ...]
    body: Expr
    reduce: tuple[Axis, ...] = ()
    combiner: str = ""  # a key of COMBINERS; empty if and only if `reduce` is
    index: tuple[Expr, ...] = ()  # empty in the constructor: the axes in order

    def __post_init__(self) -> None:
        if bool(self.reduce) != bool(self.combiner):
            raise ValueError(f"stage {self.output}: reduction axes and combiner go together")
        if not self.index:
            object.__setattr__(self, "index", tuple(Var(axis.name) for axis in self.axes))

    @property
    def extents(self) -> dict[str, int]:
        """Axis -> extent, reduction axes included."""
        return {axis.name: axis.extent for axis in self.axes + self.reduce}

    def reads(self, tensor: str) -> bool:
        """Whether the body loads a tensor."""
        return any(load.tensor == tensor for load in loads(self.body))

    @property
    def points(self) -> int:
        """The number of evaluations of the body."""
        return prod(axis.extent for axis in self.axes + self.reduce)

    @property
    def flops(self) -> int:
        """Operations on floats, and on what bytes come to: one an op in the body, one a fold.

        Of weights of few bits the products and sums alone: they may be unpacked once for many.
        """
        if self.combiner == "sum" and match_block_product(self.body) is not None:
            return 2 * self.points
        return self.points * (sum(map(is_arithmetic, walk(self.body))) + bool(self.combiner))


def is_arithmetic(node: Expr) -> bool:
    """Whether a part of a body computes with values, not with places, which are of 64 bits."""
    return isinstance(node, Op) and node.name not in UNCOUNTED and (node.dtype.is_float or node.dtype is DType.I32)


UNCOUNTED = COMPARISONS | {"select", "cast", "bitcast", "neg"}
"""Ops that move or choose values: no arithmetic."""


@dataclass(frozen=True)
class Task:
    """One fused subgraph: `inputs` in, `outputs` out, `stages` in an order that computes them.

    Build one through `canonical`, which renames tensors and axes. `op` is a label for people ("Conv+Relu") and no
    part of the key. `is_decisive` says that a step function, such as `Floor`, reads what a convolution of the task
    makes, here or in a later task, or an op with an edge, such as `Sqrt` (`rounding`): so it must not be
    Winograd's, which rounds more than sums do.
    """

    op: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    temporaries: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    is_decisive: bool = False
    _tensors: dict[str, Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tensors = {t.name: t for t in self.inputs + self.temporaries + self.outputs}
        object.__setattr__(self, "_tensors", tensors)

    def __hash__(self) -> int:
        """The hash of the key, which is computed once: tasks are looked up often, and expressions are deep."""
        return hash(self.key)

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name. Raises KeyError."""
        return self._tensors[name]

    @cached_property
    def key(self) -> str:
        """SHA-256 over the canonical JSON without the label."""
        return _digest(self.to_json())

    @cached_property
    def family(self) -> str:
        """The key of all tasks that differ from this one in numbers only, such as extents and strides.

        SHA-256 over the canonical JSON without the label, every number replaced by 0.
        """
        return _digest(_erase_numbers(self.to_json()))

    @property
    def shape(self) -> str:
        """The shapes of what goes in and comes out, for people: "1x56x56x64, 3x3x64x64 -> 1x56x56x64"."""
        sides = ([t.shape for t in tensors] for tensors in (self.inputs, self.outputs))
        listed = (", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) for shapes in sides)
        return " -> ".join(text or "nothing" for text in listed)

    @cached_property
    def flops(self) -> int:
        """Operations of one run, as those of stages are counted."""
        return sum(stage.flops for stage in self.stages)

    @cached_property
    def traffic_bytes(self) -> int:
        """Bytes that must be read and written at least: inputs, and what is written of outputs, once."""
        written = sum(self.written_elements(t.name) * t.dtype.size_bytes for t in self.outputs)
        terms = [term for stage in self.stages if (term := match_block_product(stage.body)) is not None]
        halves = {term.number.tensor for term in terms if term.bits == 4}  # two numbers fit into a byte
        return sum(t.size_bytes // (2 if t.name in halves else 1) for t in self.inputs) + written

    @property
    def constant_bytes(self) -> int:
        """The size of the inputs that are the same in each run."""
        return sum(t.size_bytes for t in self.inputs if t.constant)

    def written_elements(self, tensor: str) -> int:
        """The number of elements that the stages write of a tensor: all, unless other tasks write parts of it."""
        return sum(prod(axis.extent for axis in stage.axes) for stage in self.stages if stage.output == tensor)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The outputs that are written in part."""
        return tuple(t.name for t in self.outputs if self.written_elements(t.name) < prod(t.shape))

    def renamed(self) -> Task:
        """The same under the names that `canonical` gives, whatever names it has: of one that somebody else wrote."""
        task = canonical(self.op, self.inputs, self.outputs, self.temporaries, self.stages)
        return replace(task, is_decisive=self.is_decisive)

    @property
    def new_names(self) -> dict[str, str]:
        """Name of a tensor -> its name in `renamed`: t0, t1, ... in the order of first use."""
        return _new_names(self.stages)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` inverts it."""
        return {
            "op": self.op,
            "inputs": [_tensor_json(t) for t in self.inputs],
            "outputs": [_tensor_json(t) for t in self.outputs],
            "temporaries": [_tensor_json(t) for t in self.temporaries],
            "stages": [_stage_json(s) for s in self.stages],
            **({"decisive": True} if self.is_decisive else {}),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Task:
        """Raises ValueError, in words for people, on data that `to_json` can't have written."""
        check_names(data, FIELDS, {*FIELDS, "decisive"})
        task = Task(
            op=item(data, "op", str),
            inputs=tuple(map(_tensor, item(data, "inputs", list))),
            outputs=tuple(map(_tensor, item(data, "outputs", list))),
            temporaries=tuple(map(_tensor, item(data, "temporaries", list))),
            stages=tuple(map(_stage, item(data, "stages", list))),
            is_decisive="decisive" in data and item(data, "decisive", bool),
        )
        _check(task)
        return task


NAME = r"[a-z][a-z0-9]{0,15}"
"""The names that tensors and axes may have in data from anywhere."""

_NAME = re.compile(NAME)

FIELDS = "op", "inputs", "outputs", "temporaries", "stages"
TENSOR_FIELDS = "name", "shape", "dtype", "constant"
STAGE_FIELDS = "output", "axes", "reduce", "combiner", "index", "body"
"""What data of a task, a tensor and a stage must have."""


def _check(task: Task) -> None:
    """Raise ValueError unless every stage is sound: a task may come from anywhere, and others rely on its form.

    Names are short words and declared, extents positive, indices of the rank of what they index.
    """
    tensors = {t.name: t for t in task.inputs + task.outputs + task.temporaries}
    if len(tensors) < len(task.inputs + task.outputs + task.temporaries):
        raise ValueError("two tensors have one name")
    if not task.stages or {t.name for t in task.outputs} - {stage.output for stage in task.stages}:
        raise ValueError("no stage writes an output")
    for stage in task.stages:
        if set(free_vars(*stage.index)) - {axis.name for axis in stage.axes}:
            raise ValueError("a stage writes to places that its reduction moves")
        if any(loads(*stage.index)):
            raise ValueError("a stage writes to places that it reads from a tensor")
        axes = [axis.name for axis in stage.axes + stage.reduce]
        if len(set(axes)) < len(axes):
            raise ValueError("two axes have one name")
        used = {x.tensor for x in loads(stage.body)} | {stage.output}
        if wrong := [name for name in (*tensors, *axes) if not _NAME.fullmatch(name)]:
            raise ValueError(f"{quote(wrong[0])} is no name: a small letter, then up to 15 small letters and digits")
        if unknown := used - tensors.keys():
            raise ValueError(f"no tensor is called {quote(min(unknown))}")
        if unknown := set(free_vars(stage.body, *stage.index)) - set(axes):
            raise ValueError(f"no axis of the stage is called {quote(min(unknown))}")
        places = [(stage.output, stage.index), *((x.tensor, x.index) for x in loads(stage.body, *stage.index))]
        if any(len(tensors[name].shape) != len(index) for name, index in places):
            raise ValueError("an index has another rank than its tensor")
        if any(x.dtype is not tensors[x.tensor].dtype for x in loads(stage.body)):
            raise ValueError("a load has another type than its tensor")
        if stage.combiner and stage.combiner not in COMBINERS:
            raise ValueError(f"no combiner is called {quote(stage.combiner)}")
        if any(axis.extent < 1 for axis in stage.axes + stage.reduce):
            raise ValueError("an axis has no extent")
    if any(extent < 1 for tensor in tensors.values() for extent in tensor.shape):
        raise ValueError("a tensor is empty")
    if any(tensor.small and not (tensor.constant and tensor.dtype is DType.I8) for tensor in tensors.values()):
        raise ValueError("a small tensor is no constant of signed bytes")


def _tensor_json(tensor: Tensor) -> dict[str, Any]:
    """Plain data; `small` is there where it holds."""
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype.value,
        "constant": tensor.constant,
        **({"small": True} if tensor.small else {}),
    }


def _tensor(data: Any) -> Tensor:
    check_names(data, TENSOR_FIELDS, {*TENSOR_FIELDS, "small"})
    shape = tuple(check_type("an extent", extent, int) for extent in item(data, "shape", list))
    dtype = word("dtype", item(data, "dtype", str), DType)
    small = "small" in data and item(data, "small", bool)
    return Tensor(item(data, "name", str), shape, dtype, item(data, "constant", bool), small)


def _stage_json(stage: Stage) -> dict[str, Any]:
    return {
        "output": stage.output,
        "axes": [[a.name, a.extent] for a in stage.axes],
        "reduce": [[a.name, a.extent] for a in stage.reduce],
        "combiner": stage.combiner,
        "index": [to_json(e) for e in stage.index],
        "body": to_json(stage.body),
    }


def _stage(data: Any) -> Stage:
    check_names(data, STAGE_FIELDS, STAGE_FIELDS)
    return Stage(
        output=item(data, "output", str),
        axes=tuple(map(_axis, item(data, "axes", list))),
        body=from_json(item(data, "body", list)),
        reduce=tuple(map(_axis, item(data, "reduce", list))),
        combiner=item(data, "combiner", str),
        index=tuple(map(from_json, item(data, "index", list))),
    )


def _axis(data: Any) -> Axis:
    match data:
        case [str(name), int(extent)] if not isinstance(extent, bool):
            return Axis(name, extent)
    raise ValueError(f"an axis is a name and an extent, not {quote(data)}")


def _digest(data: dict[str, Any]) -> str:
    """SHA-256 over the canonical JSON of a task without its label."""
    nameless = {name: value for name, value in data.items() if name != "op"}
    return hashlib.sha256(json.dumps(nameless, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _erase_numbers(data: Any) -> Any:
    match data:
        case bool() | str() | None:
            return data
        case int() | float():
            return 0
        case list() | tuple():
            return [_erase_numbers(item) for item in data]
        case _:
            return {name: _erase_numbers(item) for name, item in data.items()}


def canonical(
    op: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor], temporaries: Iterable[Tensor], stages: Sequence[Stage]
) -> Task:
    """The task with its own names for everything: tensors `t0, t1, ...`, axes `i0, i1, ...` and `r0, r1, ...`.

    Tensors are numbered and listed in the order of `in_order_of_use`, so neither names nor the order given tell in
    the result. Inputs that no stage reads are left out. Equal parts of an expression become one object.
    """
    names = _new_names(stages)

    def rename_tensors(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return tuple(replace(t, name=names[t.name]) for t in in_order_of_use(tensors, stages))

    return Task(
        op=op,
        inputs=rename_tensors(inputs),
        outputs=rename_tensors(outputs),
        temporaries=rename_tensors(temporaries),
        stages=tuple(_canonical_stage(stage, names) for stage in stages),
    )


def in_order_of_use(tensors: Iterable[Tensor], stages: Sequence[Stage]) -> list[Tensor]:
    """The tensors that stages use, by first use: the order in which `canonical` lists them."""
    by_name = {tensor.name: tensor for tensor in tensors}
    return [by_name[name] for name in _tensor_names(stages) if name in by_name]


def _new_names(stages: Sequence[Stage]) -> dict[str, str]:
    return {name: f"t{number}" for number, name in enumerate(_tensor_names(stages))}


def _tensor_names(stages: Sequence[Stage]) -> list[str]:
    """Names of tensors by first use; a stage reads before it writes."""
    used = (name for stage in stages for name in (*(x.tensor for x in loads(stage.body)), stage.output))
    return list(dict.fromkeys(used))


def _canonical_stage(stage: Stage, names: Mapping[str, str]) -> Stage:
    axes = tuple(Axis(f"i{n}", axis.extent) for n, axis in enumerate(stage.axes))
    reduce = tuple(Axis(f"r{n}", axis.extent) for n, axis in enumerate(stage.reduce))
    axis_names = {old.name: new.name for old, new in zip(stage.axes + stage.reduce, axes + reduce, strict=True)}
    body = _rename(stage.body, names, axis_names)
    index = tuple(_rename(e, names, axis_names) for e in stage.index)
    return Stage(names[stage.output], axes, body, reduce, stage.combiner, index)


def in_place(task: Task) -> list[tuple[str, str]]:
    """Pairs (output, input) that may share memory: each element of the input is read only to write its own place.

    Kernels read each such element before they write its place, in the thread that writes it or before a barrier, and
    tiles don't overlap: so this holds for every schedule.
    """
    pairs = []
    for output in task.outputs:
        writers = [stage for stage in task.stages if stage.output == output.name]
        if len(writers) != 1 or writers[0].reduce or output.name in task.parts:
            continue
        writer = writers[0]
        for tensor in task.inputs:
            reads = [(stage, load) for stage in task.stages for load in loads(stage.body) if load.tensor == tensor.name]
            is_compatible = (tensor.shape, tensor.dtype, tensor.constant) == (output.shape, output.dtype, False)
            if is_compatible and all(stage is writer and load.index == writer.index for stage, load in reads):
                pairs.append((output.name, tensor.name))
    return pairs


def _rename(root: Expr, tensors: Mapping[str, str], axes: Mapping[str, str]) -> Expr:
    """The expression with tensors and axes renamed."""
    cache: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node not in cache:
            cache[node] = rebuild(node, tuple(map(visit, node.children)))
        return cache[node]

    def rebuild(node: Expr, parts: tuple[Expr, ...]) -> Expr:
        match node:
            case Var(name):
                return Var(axes.get(name, name))
            case Load(tensor, _, dtype):
                return Load(tensors.get(tensor, tensor), parts, dtype)
            case Op(name, _, dtype):
                return Op(name, parts, dtype)
        return node

    return visit(root)
