"""Explanations of differences that are no faults, each a predicate with a name: see the table in `docs/bench.md`.

They stand by whose answer is off: `runtime` (ONNX Runtime's), `evaluator`, `ours`, or that of `anyone`. To add one,
write the predicate there, a row here, and a row of that table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import anyone, evaluator, ours, runtime
from .difference import Difference, ExplainedElements

VARYING_SHAPE = "rounding decides of the shape"
"""The explanation of shapes that a step function decides."""

SHAPE_EXPLANATIONS: Mapping[str, Callable[[Difference], bool]] = {
    "narrow floats stay wide": runtime.counts_wide,
    "ONNX Runtime's curves are coarse": runtime.reads_coarse_curves,
    "what is no number": anyone.meets_nan,
    "ONNX Runtime and empty tensors": runtime.leaves_out_empty,
    "ONNX Runtime shrinks in float32": runtime.shrinks_in_single,
    "whole numbers overflow": runtime.overflows_integers,
}
"""Explanations of differing shapes, by name."""

EXPLANATIONS: Mapping[str, Callable[[Difference], ExplainedElements]] = {
    "what is no number": anyone.meets_nan,
    "narrow floats stay wide": anyone.stays_wide,
    "subnormal results of curves": anyone.flushes,
    "recognised and joined": ours.is_recognised,
    "whole numbers shrink beyond their type": ours.shrinks_beyond_its_type,
    "finite where pieces overflow": ours.stays_finite,
    "a scale in the terms of a sum": ours.scales_before_it_adds,
    "zeros times what is not finite": anyone.multiplies_zeros,
    "the evaluator computes narrow floats narrowly": evaluator.evaluates_narrowly,
    "sums in one order": anyone.adds_up_in_one_order,
    "logarithms of sums that cancel": anyone.cancels_in_a_logarithm,
    "gates and norms that cancel": anyone.agrees_in_single,
    "zeros of either sign": anyone.has_zeros_of_either_sign,
    "whole numbers are cut after each axis": anyone.cuts_after_each_axis,
    "windows over nothing": anyone.pools_nothing,
    "angles without a place behind the point": ours.turns_far,
    "whole numbers overflow": runtime.overflows_integers,
    "ONNX Runtime's curves are coarse": runtime.is_coarse,
    "ONNX Runtime's rarer activations": runtime.runs_rare_activations,
    "ONNX Runtime's norms of equal numbers": runtime.divides_by_nothing,
    "float64 in float32": anyone.computes_in_float32,
    "ONNX Runtime takes softmax for logistic": runtime.takes_softmax_for_logistic,
    "ONNX Runtime wraps the softmax of one byte": runtime.wraps_a_lone_softmax,
    "ONNX Runtime begins inside": runtime.begins_inside,
    "ONNX Runtime squares small numbers": runtime.squares_small_numbers,
    "ONNX Runtime reads functions by the model's opset": runtime.reads_functions_by_the_models_opset,
    "ONNX Runtime puts a lone place last": runtime.puts_a_lone_place_last,
    "ONNX Runtime aligns whole corners": runtime.aligns_whole_corners,
    "ONNX Runtime counts from the last key": runtime.counts_from_the_last_key,
    "ONNX Runtime and empty tensors": runtime.leaves_out_empty,
    "ONNX Runtime overflows on the way": runtime.overflows,
    "ONNX Runtime saturates bytes": runtime.saturates_bytes,
    "ONNX Runtime shrinks in float32": runtime.shrinks_in_single,
    "ONNX Runtime stands alone": runtime.stands_alone,
    "the evaluator stands alone": evaluator.stands_alone,
}
"""Explanations by their names in the docs. Elements of one output may have different ones."""
