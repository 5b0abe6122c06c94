"""Schemas of kernels that other programs launch on a GPU, link, or build after their outline."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tunewright.codegen.argument import MOST_CODE_BYTES, Role
from tunewright.codegen.target import MOST_FEATURES

from .base import Answer, Digest

Name = Annotated[str, Field(max_length=300)]
"""A name that programs read: a longer one is refused, as cutting it would make another name."""

Three = Annotated[list[int], Field(min_length=3, max_length=3)]


class TensorMapShown(Answer):
    """How the copy engine of the GPU sees an argument, from its begin on: made by cuTensorMapEncodeTiled.

    With no interleave, a swizzle of 128 bytes and zeros outside of the tensor. That function takes dimensions in the
    reverse order, the innermost first, strides in bytes, without that of the innermost, and boxes with what lies
    between their elements: `box` times `steps`.
    """

    tensor: Name = Field(description="Name of the argument.")
    dtype: Name
    extents: list[int] = Field(description="Of the tensor, the outermost dimension first.")
    strides: list[int] = Field(description="In elements; the last one is 1.")
    box: list[int] = Field(description="Extents of what is copied at once.")
    steps: list[int] = Field(description="Places from one element of the box to the next one: its element strides.")


class LaunchShown(Answer):
    """A launch: a function of the code, with pointers to all arguments, in their order, and then its tensor maps."""

    symbol: Name
    grid: Three = Field(description="Blocks along x, y and z.")
    block: Three = Field(description="Threads of a block.")
    smem_bytes: int = Field(
        description="Dynamic shared memory of a block. Where it is above 48 KB, the function must be set to it first: "
        "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."
    )
    tensor_maps: list[TensorMapShown] = Field(
        description="Parameters behind the pointers, each passed by value: 128 bytes, on a multiple of 64. Mostly none."
    )


class MapShown(Answer):
    """A matrix that an axis is multiplied by."""

    axis: int
    matrix: list[list[float]] = Field(description="A row for each element that the axis has afterwards.")


class PackingShown(Answer):
    """How a constant is packed: its axes mapped, in another order, padded with zeros, split, and all parts in another
    order.
    """

    maps: list[MapShown] = Field(description="Made first, in this order, in double precision.")
    order: list[int] = Field(description="Axes of the tensor.")
    padded: list[int] = Field(description="Extents of these axes with zeros behind.")
    splits: list[list[int]] = Field(description="What each of them is split into, outermost first.")
    parts: list[int] = Field(description="All parts, in the order in which the memory has them.")
    joined: int = Field(description="So many of the last parts are one dimension.")


class ArgumentShown(Answer):
    """Memory, dense and row-major: of a GPU on a multiple of 256 bytes, of a processor on one of 64."""

    name: Name
    role: Role = Field(
        description="Scratch is what one launch, or function, hands to the next: its content before and after "
        "is of no account."
    )
    dtype: Name
    shape: list[int]
    size_bytes: int
    packing: PackingShown | None = Field(
        default=None, description="Of a constant that is packed first, which then has this shape."
    )


class LaunchableShown(Answer):
    """The best schedule of a task as machine code of a GPU, and how it is launched."""

    task: Digest
    target: Digest
    schedule: Digest = Field(description="Key of the schedule.")
    arch: Name = Field(description="What the machine code is for.", examples=["sm_90a"])
    sha256: Digest = Field(description="Of the machine code.")
    cubin: str = Field(max_length=2 * MOST_CODE_BYTES, description="The machine code, in base64.")
    ptx: str = Field(
        max_length=MOST_CODE_BYTES,
        description="The same for a driver to finish, which must be as new as the compiler: for this architecture "
        "alone where its name ends in a letter, else for later ones too.",
    )
    launches: list[LaunchShown] = Field(description="In the order in which they are made, on one stream.")
    arguments: list[ArgumentShown] = Field(description="Inputs and outputs in the order of the task's, then scratch.")


class FunctionShown(Answer):
    """A function `void symbol(const void *const *buffers, int64_t begin, int64_t end)` of the code.

    `buffers` are pointers to all arguments, in their order.
    """

    symbol: Name
    iterations: int = Field(
        description="Threads share 0 to this less 1 between them, each `begin` to `end` less 1 of it; of 1 it is "
        "called once. All have returned before the next function is called."
    )


class LinkableShown(Answer):
    """The best schedule of a task as object code of a processor, and how it is called."""

    task: Digest
    target: Digest
    schedule: Digest = Field(description="Key of the schedule.")
    triple: Name = Field(description="What the code is for, as LLVM writes it.", examples=["x86_64-unknown-linux-gnu"])
    cpu: Name = Field(examples=["znver5"])
    features: str = Field(
        max_length=MOST_FEATURES,
        description="Instructions beyond those of the processor's name, or without. With amx-tile the process must "
        "have asked Linux for these registers: ARCH_REQ_XCOMP_PERM.",
    )
    sha256: Digest = Field(description="Of the objects, one behind the other.")
    objects: list[Annotated[str, Field(max_length=2 * MOST_CODE_BYTES)]] = Field(
        description="Relocatable, in base64, to be linked to each other and to libm."
    )
    llvm: str = Field(max_length=MOST_CODE_BYTES, description="The same in LLVM IR, before LLVM's own passes.")
    functions: list[FunctionShown] = Field(description="In the order in which they are called.")
    arguments: list[ArgumentShown] = Field(description="Inputs and outputs in the order of the task's, then scratch.")


class OutlineShown(Answer):
    """The best schedule of a task as the loops of the stage that has the most work."""

    task: Digest
    target: Digest
    schedule: Digest = Field(description="Key of the schedule.")
    output: Name = Field(description="The tensor of the task that the stage writes.")
    axes: dict[str, int] = Field(description="Extents of the stage's axes.")
    reduce: dict[str, int] = Field(description="Extents of the axes that it folds.")
    vector_axis: Name = Field(description="The axis along the lanes of vectors; empty: none.")
    lanes: int = Field(description="Elements of a vector of a processor; 1 where nothing lies along them.")
    tiles: list[dict[str, int]] = Field(
        description="What each level of loops covers of every axis, from the tile in registers outwards."
    )
    phase: int = Field(description="The number of the stage's phase, from 0 on.")
    pieces: list[int] = Field(description="Of each phase: what threads, or blocks of a GPU, share between them.")
    packed: dict[str, list[int]] = Field(description="Constants that are packed ahead of time, and their shape then.")
