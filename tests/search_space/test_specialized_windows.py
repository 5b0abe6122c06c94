"""Specialized windows, convolutions by patches that one warp has fetched: what they are for, and what they come to."""

from __future__ import annotations

import pytest

from tunewright.codegen.cuda import interp
from tunewright.codegen.gpu import KNOWN
from tunewright.codegen.target import Target
from tunewright.codegen.verify import verify
from tunewright.graph.oracle import example_inputs, reference
from tunewright.search_space.sketches import default_schedule, sketch

from .oracle import GPU, interpret
from .test_sketches import agree, tasks_of
from .test_tensor_cores import lower_default

NAME = "specialized_windows"

SMALL = {"block_rows": 64, "block_columns": 64, "warpgroups": 1, "stages": 3, "patch_height": 8, "patch_width": 8}


def text_of(image, window, pads, channels=64, columns=72, attributes=""):
    height, width = window
    steps = f"t = Transpose<perm=[0, 3, 1, 2]>(x) u = Conv<pads={list(pads)}{attributes}>(t, w)"
    inputs = f"x[{', '.join(map(str, image))}, {channels}] w[{columns}, {channels}, {height}, {width}]"
    return f"float16: {inputs} | {steps} y = Transpose<perm=[0, 2, 3, 1]>(u) | y ; w"


def task_of(*form, **more):
    [task] = tasks_of(text_of(*form, **more), {})
    return task


def right(task, numbers):
    """The kernel passes `verify`, pads nothing ahead of time, and comes to what the oracle does."""
    kernel = lower_default(NAME, task, numbers)
    verify(kernel)
    assert len(kernel.body.body) == 1 + (numbers.get("splits", 1) > 1)
    inputs = example_inputs(task, 0)
    agree(task, interpret(task, kernel, inputs, interp.run), reference(task, inputs))


@pytest.mark.parametrize(
    ("image", "window", "pads", "patch"),
    [
        ((1, 14, 14), (3, 3), (1, 1, 1, 1), (8, 8)),
        ((1, 17, 31), (3, 3), (1, 1, 1, 1), (4, 16)),
        ((2, 7, 7), (3, 3), (1, 1, 1, 1), (4, 8)),
        ((3, 9, 5), (1, 3), (0, 2, 0, 0), (8, 8)),
        ((1, 13, 19), (5, 2), (2, 0, 1, 1), (2, 32)),
        ((1, 67, 3), (3, 3), (0, 1, 0, 1), (64, 1)),
        ((2, 11, 8), (3, 3), (0, 0, 0, 0), (8, 8)),
    ],
)
def test_windows_of_images_of_odd_sizes(image, window, pads, patch):
    height, width = patch
    right(task_of(image, window, pads), SMALL | {"patch_height": height, "patch_width": width})


@pytest.mark.parametrize(
    ("image", "window", "strides"),
    [((2, 15, 14), (3, 3), (2, 2)), ((1, 16, 19), (1, 1), (2, 3)), ((1, 9, 31), (2, 3), (1, 2))],
)
def test_windows_that_slide_by_some_pixels(image, window, strides):
    pads = [n // 2 for n in window]
    right(task_of(image, window, (*pads, *pads), attributes=f", strides={list(strides)}"), SMALL)


@pytest.mark.parametrize("staged", [0, 1])
@pytest.mark.parametrize("splits", [2, 4])
def test_blocks_share_the_sum_of_a_tile(splits, staged):
    task = task_of((1, 9, 10), (2, 2), (0, 0, 1, 1))
    right(task, SMALL | {"splits": splits, "staged": staged})


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers",
    [
        {"block_rows": 128, "warpgroups": 2, "patch_height": 8, "patch_width": 16},
        {"block_rows": 192, "warpgroups": 3, "patch_height": 8, "patch_width": 8},
        {"block_rows": 256, "block_columns": 128, "warpgroups": 2, "patch_height": 4, "patch_width": 16},
    ],
)
def test_patches_of_several_images(numbers):
    right(task_of((5, 12, 15), (3, 3), (1, 1, 1, 1), columns=136), SMALL | numbers)


def test_windows_with_gaps_and_more_channels():
    right(task_of((1, 12, 12), (3, 3), (2, 2, 2, 2), attributes=", dilations=[2, 2]"), SMALL)
    right(task_of((1, 8, 8), (3, 3), (1, 1, 1, 1), channels=192), SMALL)


@pytest.mark.parametrize(
    "form",
    [
        {"channels": 48},
        {"columns": 70},  # rows of weights begin on no multiple of 16 bytes
        {"attributes": ", strides=[9, 9]"},  # an element of a box is at most 8 places from the next one
    ],
)
def test_what_the_engine_can_not_fetch(form):
    task = task_of((1, 14, 14), (3, 3), (1, 1, 1, 1), **form)
    assert not sketch(NAME).applies(task, GPU)


def test_it_is_the_first_choice_on_hopper_alone():
    task = task_of((1, 28, 28), (3, 3), (1, 1, 1, 1))
    assert default_schedule(task, GPU).sketch == NAME
    assert not sketch(NAME).applies(task, Target.of_gpu(KNOWN["sm_100a"]))
