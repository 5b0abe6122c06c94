"""`torch.compile(model, backend="tunewright")`: the same results as PyTorch's, and what is refused or left to it."""

from __future__ import annotations

import logging
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn  # noqa: E402
from torch._dynamo.exc import BackendCompilerFailed  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

from tunewright.graph.onnx_import import ModelError  # noqa: E402
from tunewright.integrations.torch import graphs, notes, onnx_writer, part, recording, tuning  # noqa: E402
from tunewright.integrations.torch.backend import backend  # noqa: E402
from tunewright.tuner import InferenceSession  # noqa: E402
from tunewright.tuner.errors import Refused  # noqa: E402
from tunewright.tuner.session.image_store import Coverage  # noqa: E402

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Nothing compiled or told before, seeded weights, and no gradients."""
    torch._dynamo.reset()
    counters.clear()
    notes._told.clear()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=backend, options=options)


def same(got: Any, wanted: Any) -> None:
    """Both are of one structure, and their tensors of one type and shape, with nearly the same elements."""
    ours, form = torch.utils._pytree.tree_flatten(got)
    theirs, wanted_form = torch.utils._pytree.tree_flatten(wanted)
    assert form == wanted_form
    for one, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        ours_wide, theirs_wide = one.double().numpy(), other.double().numpy()
        np.testing.assert_allclose(ours_wide, theirs_wide, rtol=1e-4, atol=1e-4 * np.abs(theirs_wide).max(initial=1e-6))


def check(model: Any, *inputs: Any, left: bool = False) -> Any:
    """The model compiled, after a run that gave PyTorch's results; `left` tells whether some was left to PyTorch."""
    model = model.eval() if isinstance(model, nn.Module) else model
    run = compiled(model)
    same(run(*inputs), model(*inputs))
    assert bool(graphs()[-1].by_pytorch) == left, graphs()[-1].notes
    assert all(not part.fault for graph in graphs() for part in graph.parts)
    return run


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head, self.drop = nn.Linear(8, 5), nn.Dropout(0.5)
        self.norm.running_mean += 0.5

    def forward(self, x: Any) -> Any:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x))).mean((2, 3))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Shifted(nn.Module):
    """With a buffer, and a constant that belongs to no module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.linear(x + self.shift)) * torch.tensor([2.0])


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.Softmax(-1))


# Results


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (ConvNet, (2, 3, 8, 8)),
        (Attention, (2, 5, 16)),
        (mlp, (3, 8)),
        (Shifted, (3, 8)),
        (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), (2, 5, 16)),
        (lambda: nn.TransformerEncoderLayer(16, 4, 32, activation="gelu", norm_first=True), (5, 2, 16)),
    ],
)
def test_the_results_are_those_of_pytorch(model: Callable[[], Any], shape: tuple[int, ...]) -> None:
    check(model(), torch.randn(shape))


def test_the_entry_point_names_the_backend() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, function = project["entry-points"]["torch_dynamo_backends"]["tunewright"].split(":")
    assert getattr(import_module(name), function) is backend


def test_attention_with_a_mask_of_keys() -> None:
    mask = torch.tensor([[False, False, True], [False, True, True]])
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    check(lambda x: layer(x, src_key_padding_mask=mask), torch.randn(2, 3, 8))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_attention_whose_heads_share_keys(heads: int, is_causal: bool) -> None:
    def forward(q: Any, k: Any, v: Any) -> Any:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)

    q, k, v = torch.randn(2, 4, 7, 8), torch.randn(2, heads, 7, 8), torch.randn(2, heads, 7, 8)
    check(forward, q, k, v)


def test_attention_with_a_mask_that_is_added() -> None:
    def forward(q: Any, mask: Any) -> Any:
        return nn.functional.scaled_dot_product_attention(q, q, q, mask, scale=0.3)

    check(forward, torch.randn(2, 4, 7, 8), torch.randn(7, 7))
    check(forward, torch.randn(2, 4, 7, 8), torch.randn(2, 1, 7, 7) > -1)


def test_inference_mode_counts_as_no_grad() -> None:
    with torch.inference_mode():
        check(mlp(), torch.randn(3, 8))


@pytest.mark.slow
def test_an_lstm_where_dynamo_takes_it() -> None:
    with torch._dynamo.config.patch(allow_rnn=True):
        check(nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True), torch.randn(2, 3, 4))


def test_outputs_keep_their_structure() -> None:
    class Several(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            total = x * 2 + y
            return {"sum": total, "both": (x - y, [total.mean(), x.shape[0]]), "given": x, "none": None}

    check(Several(), torch.randn(3, 4), torch.randn(3, 4))


def test_whole_numbers_go_in_and_out() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.scores = nn.Embedding(20, 8), nn.Linear(8, 20)

        def forward(self, numbers: Any) -> Any:
            scores = self.scores(self.words(numbers))
            return scores.argmax(-1), scores > 0

    check(Words(), torch.randint(0, 20, (2, 7)))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types_of_numbers(dtype: str) -> None:
    kind = getattr(torch, dtype)
    model, x = mlp().to(kind).eval(), torch.randn(3, 8, dtype=kind)
    got = compiled(model)(x)
    assert got.dtype == kind
    np.testing.assert_allclose(got.float().numpy(), model(x).float().numpy(), atol=1e-2)


def test_mixed_precision() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 8), nn.LayerNorm(8)
    ).eval()
    run, x = compiled(model), torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        got, wanted = run(x), model(x)
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got.float().numpy(), wanted.float().numpy(), atol=0.05)
    assert not graphs()[-1].by_pytorch and not graphs()[-1].parts[0].fault


def test_inputs_that_do_not_lie_row_by_row() -> None:
    check(mlp(), torch.randn(8, 3).t())
    check(ConvNet(), torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last))


def test_outputs_lie_in_memory_as_those_of_pytorch() -> None:
    def forward(x: Any) -> Any:
        return (x * 2 + 1).sigmoid().transpose(1, 2)

    run, x = compiled(forward), torch.randn(2, 3, 4)
    same(run(x), forward(x))
    assert run(x).stride() == forward(x).stride()


def test_results_are_the_callers_own() -> None:
    model, x = mlp().eval(), torch.randn(3, 8)
    run = compiled(model)
    first = run(x)
    kept = first.clone()
    run(torch.randn(3, 8))
    first += 0  # can be written
    same(first, kept)


def test_threads_share_a_compiled_model() -> None:
    model = ConvNet().eval()
    run = compiled(model, threads=1)
    inputs = [torch.randn(2, 3, 8, 8) for _ in range(16)]
    run(inputs[0])

    def infer(x: Any) -> Any:
        with torch.no_grad():
            return run(x)

    with ThreadPoolExecutor(4) as pool:
        for got, x in zip(pool.map(infer, inputs), inputs, strict=True):
            same(got, model(x))


# Sizes


def test_a_second_size_makes_the_dimension_dynamic_and_others_compile_nothing() -> None:
    model = ConvNet().eval()
    run = compiled(model)
    for batch in (2, 3, 4, 5, 3):
        x = torch.randn(batch, 3, 8, 8)
        same(run(x), model(x))
    assert counters["stats"]["unique_graphs"] == 2


def test_a_marked_dimension_compiles_once() -> None:
    model = Attention().eval()
    run = compiled(model)
    for batch in (2, 3):
        x = torch.randn(batch, 5, 16)
        torch._dynamo.mark_dynamic(x, 0)
        same(run(x), model(x))
    assert counters["stats"]["unique_graphs"] == 1
    assert not graphs()[-1].by_pytorch


def test_a_size_is_a_result() -> None:
    class Counted(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x.reshape(-1, 2) + x.shape[0]).tanh().exp().sum(1), x.shape[0] * 3

    model = Counted()
    run = torch.compile(model, backend=backend, dynamic=True)
    for rows in (4, 6):
        x = torch.randn(rows, 4)
        same(run(x), model(x))
    assert not [part.fault for graph in graphs() for part in graph.parts if part.fault]


def test_sizes_of_results_follow_from_those_of_inputs() -> None:
    """A window of the second product has a size that no input has."""

    def forward(x: Any) -> Any:
        y = torch.cat([x @ x.t(), x @ x.t()])
        z = y.unfold(0, 2, 2).flatten(1) if y.shape[0] % 2 == 0 else y
        return torch.special.bessel_j0(z).reshape(y.shape[0] * x.shape[0], -1) @ torch.ones(1, 3)

    run = torch.compile(forward, backend=backend, dynamic=True)
    for rows in (4, 6):
        x = torch.randn(rows, 3)
        same(run(x), forward(x))
    assert not [part.fault for graph in graphs() for part in graph.parts if part.fault]


# Weights


def test_changed_weights_are_seen() -> None:
    model, x = mlp().eval(), torch.randn(3, 8)
    run = compiled(model)
    for _ in range(5):
        same(run(x), model(x))
        for weight in model.parameters():
            weight.mul_(1.5)
    model[0].weight.data = torch.randn(16, 8)
    same(run(x), model(x))


def test_modules_of_one_class_share_code_and_keep_their_weights() -> None:
    layers = [mlp().eval() for _ in range(3)]
    runs = [compiled(layer) for layer in layers]
    x = torch.randn(3, 8)
    for _ in range(2):
        for run, layer in zip(runs, layers, strict=True):
            same(run(x), layer(x))


def test_a_buffer_that_the_model_writes_is_an_input() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            self.seen += x.sigmoid().exp().sum(0)
            return x * self.seen

    ours, theirs = Counting().eval(), Counting().eval()
    run, x = compiled(ours), torch.randn(3, 4)
    for _ in range(3):
        same(run(x), theirs(x))
        same(ours.seen, theirs.seen)


def test_many_weights_are_written_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_writer, "MOST_BYTES", 100)
    check(mlp(), torch.randn(3, 8))


# What is refused


def test_gradients_are_refused() -> None:
    told = r"(?s)backend='tunewright' raised.*torch\.no_grad\(\)"
    with torch.enable_grad(), pytest.raises(BackendCompilerFailed, match=told) as caught:
        compiled(mlp())(torch.randn(3, 8))
    assert isinstance(caught.value.inner_exception, Refused)


def test_without_weights_that_want_gradients_the_mode_does_not_matter() -> None:
    model = mlp().eval().requires_grad_(False)
    with torch.enable_grad():
        check(model, torch.randn(3, 8))


def test_batch_norm_in_training_is_refused() -> None:
    with pytest.raises(BackendCompilerFailed, match=r"call model\.eval\(\)"):
        compiled(ConvNet().train())(torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"thread": 2}, "no option is called 'thread'; there are threads, db, server, precision, background"),
        ({"threads": 0}, "threads is 0"),
        ({"background": "no"}, "background is 'no'"),
        ({"precision": "fp16"}, "no precision is called 'fp16'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BackendCompilerFailed, match=told):
        compiled(mlp(), **options)(torch.randn(3, 8))


def test_a_pytorch_without_its_exporter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tunewright.integrations.torch.captured", None)
    with pytest.raises(BackendCompilerFailed, match=r"can't write ONNX here.*pip install 'tunewright\[torch\]'"):
        compiled(mlp())(torch.randn(3, 8))


def test_a_mode_is_refused() -> None:
    with pytest.raises(BackendCompilerFailed, match="mode is 'max-autotune'"):
        torch.compile(mlp(), backend=backend, mode="max-autotune")(torch.randn(3, 8))


# What is left to PyTorch


class Interrupted(nn.Module):
    """An op without a translation between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        y = self.first(x).relu()
        return self.second(torch.special.bessel_j0(y) + y).sigmoid()


def test_an_op_without_translation_is_left_to_pytorch_with_one_note(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "tunewright.torch"):
        check(Interrupted(), torch.randn(3, 8), left=True)
    assert [record.message for record in caplog.records] == [
        "left to PyTorch: 1 of 8 nodes: 1 prims.bessel_j0.default (no ONNX op)"
    ]
    [graph] = graphs()
    assert len(graph.parts) == 2


def test_what_is_left_to_pytorch_runs_at_every_size() -> None:
    model = Interrupted().eval()
    run = torch.compile(model, backend=backend, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 8)
        same(run(x), model(x))


def test_what_is_too_small_is_left_to_pytorch_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    def forward(x: Any) -> Any:
        return (x + 1).t().reshape(-1, 2).unsqueeze(0)

    with caplog.at_level(logging.WARNING, "tunewright.torch"):
        check(forward, torch.randn(3, 4), left=True)
    assert not graphs()[-1].parts and not caplog.records


def test_random_numbers_are_pytorchs() -> None:
    def forward(x: Any) -> Any:
        return torch.nn.functional.dropout(x.exp() @ x, 0.5, training=True)

    run, x = compiled(forward), torch.randn(4, 4)
    wanted = x.exp() @ x
    kept = run(x)
    assert torch.isclose(kept, 2 * wanted, rtol=1e-3).logical_or(kept == 0).all()
    assert graphs()[-1].by_pytorch


def test_sizes_that_only_running_tells() -> None:
    def forward(x: Any) -> Any:
        return (x @ x).relu(), torch.nonzero(x > 0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run, x = compiled(forward), torch.randn(4, 4)
        same(run(x), forward(x))


def test_graph_breaks_make_several_graphs() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = mlp(), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            torch._dynamo.graph_break()
            return self.second(y)

    check(Broken(), torch.randn(3, 8))
    assert len(graphs()) == 2


def test_complex_numbers_are_left_to_pytorch() -> None:
    def forward(x: Any) -> Any:
        return torch.fft.rfft(x @ x).abs()

    run, x = compiled(forward), torch.randn(4, 4)
    same(run(x), forward(x))


def test_what_no_session_takes_is_left_to_pytorch_with_one_note(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Refused("no room")

    monkeypatch.setattr(part, "InferenceSession", refuse)
    model, x = mlp().eval(), torch.randn(3, 8)
    run = compiled(model)
    with caplog.at_level(logging.WARNING, "tunewright.torch"):
        for _ in range(3):
            same(run(x), model(x))
    assert [record.message for record in caplog.records] == ["left to PyTorch: 6 nodes, because no room"]


def test_a_step_that_onnx_runtime_and_kernels_lack_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    coverage = Coverage(
        native=1, fallback={"Det": 2, "Sin": 1}, vendor={"Sin": 1}, tuned=0, untuned=1, transferred=0, kept=0
    )
    monkeypatch.setattr(InferenceSession, "coverage", lambda session: coverage)
    model, x = mlp().eval(), torch.randn(3, 8)
    same(compiled(model)(x), model(x))
    assert graphs()[-1].parts[0].fault == "nodes have neither a kernel nor ONNX Runtime: 2 Det"


def test_in_the_background_the_first_run_is_answered_at_once() -> None:
    model, x = mlp().eval(), torch.randn(3, 8)
    run = compiled(model, background=True)
    same(run(x), model(x))
    [one] = graphs()[-1].parts
    assert one.session is not None
    one.session.wait()
    same(run(x), model(x))


def test_products_are_computed_in_a_precision() -> None:
    """Weights of 64 KiB and more are rounded to bfloat16."""
    model, x = nn.Linear(128, 256, bias=False).eval(), torch.randn(3, 128)
    plain, rounded = model(x), compiled(model, precision="bf16")(x)
    assert 2**-12 < float((rounded - plain).abs().max() / plain.abs().max()) < 2**-7


# Tuning


@pytest.mark.slow
def test_tuning_tunes_what_runs_within() -> None:
    model, x = mlp().eval(), torch.randn(3, 8)
    run = compiled(model, threads=1)
    with tuning(minutes=0.2, trials=2) as record:
        same(run(x), model(x))
        run(x)
    assert [report.trials for report in record.reports] == [2]
    same(run(x), model(x))
    [one] = graphs()[-1].parts
    assert one.session is not None
    coverage = one.session.coverage()
    assert coverage.tuned + coverage.kept > 0


@pytest.mark.slow
def test_tuning_tunes_the_sizes_that_run_within() -> None:
    model, x = mlp().eval(), torch.randn(3, 8)
    run = torch.compile(model, backend=backend, dynamic=True, options={"threads": 1})
    with tuning(minutes=0.2, trials=2):
        run(x)
    same(run(x), model(x))
    [one] = graphs()[-1].parts
    assert one.session is not None and one.session.wait()
    coverage = one.session.coverage()
    assert coverage.tuned + coverage.kept > 0


def test_tuning_leaves_what_no_session_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ModelError("the shapes don't fit together")

    monkeypatch.setattr(recording, "tune", refuse)
    model, x = mlp().eval(), torch.randn(3, 8)
    run = compiled(model)
    with tuning(minutes=1) as record:
        run(x)
    same(run(x), model(x))
    assert not record.reports and graphs()[-1].parts[0].fault == "the shapes don't fit together"


@pytest.mark.slow
def test_the_page_says_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its examples run, one after the other, with less time for tuning."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    page = page.replace('backend="tunewright"', "backend=backend").replace("minutes=5", "trials=2, minutes=0.1")
    names = {"torch": torch, "backend": backend, "model": mlp(), "x": torch.randn(3, 8)}
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.MULTILINE):
        exec(dedent(block), names)  # noqa: S102
    assert torch.equal(names["y"], names["run"](names["x"]))


def test_tuning_of_nothing_is_refused() -> None:
    with pytest.raises(Refused, match="nothing was tuned"), tuning(minutes=1):
        pass


def test_rows_of_attention_that_are_all_masked_are_zeros() -> None:
    mask = torch.zeros(1, 1, 4, 4).masked_fill(torch.tensor([True, False, False, False]), float("-inf"))
    mask[..., 1, :] = float("-inf")
    project = nn.Linear(8, 8)

    def model(x: Any) -> Any:
        q = project(x).view(1, 4, 2, 4).transpose(1, 2)
        shares = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        return project(shares.transpose(1, 2).reshape(1, 4, 8))

    x = torch.randn(1, 4, 8)
    wanted = model(x)
    assert not wanted.isnan().any()
    same(compiled(model)(x), wanted)


def test_weights_of_inference_mode_may_be_written() -> None:
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        run, x = compiled(model), torch.randn(3, 8)
        for _ in range(3):
            same(run(x), model(x))
            model[0].weight.mul_(1.5)


def test_results_that_share_memory_go_on_sharing_it() -> None:
    layer = nn.Linear(8, 8)

    def model(x: Any) -> Any:
        y = layer(x).tanh()
        return y, y[0], y.t()

    results = compiled(model)(torch.randn(8, 8))
    results[0].add_(1)
    same(results, (results[0], results[0][0], results[0].t()))


def test_writes_behind_a_break_are_seen_in_front() -> None:
    layer = nn.Linear(8, 8)

    def model(x: Any) -> Any:
        y = layer(x).tanh()
        z = y[:, :4]
        torch._dynamo.graph_break()
        z.zero_()
        return y @ y.t()

    x = torch.randn(3, 8)
    same(compiled(model)(x), model(x))


EDGES: dict[str, Callable[[Any], Any]] = {
    "atan2": lambda x: torch.atan2(torch.zeros_like(x), torch.floor(x)),
    "average with a divisor": lambda x: nn.functional.avg_pool2d(x[None, None], 2, divisor_override=1),
    "strided": lambda x: torch.as_strided(x.t() * 2, (2, 2), (1, 3)),
    "mean of scattered": lambda x: torch.zeros(4, 8).scatter_reduce(
        0, torch.zeros(4, 8, dtype=torch.int64), x, "mean", include_self=False
    ),
    "whole quotients": lambda x: torch.div((x * 0).long() + 16777217, 1, rounding_mode="floor"),
    "quotients that are nearly whole": lambda x: (x * 0 + 3.0) // 0.3,
    "instance norm": lambda x: nn.functional.instance_norm(
        x[None], torch.zeros(4), torch.ones(4), use_input_stats=True, momentum=0.5
    ),
}


@pytest.mark.parametrize("name", EDGES)
def test_ops_whose_onnx_form_differs_stay_with_pytorch(name: str) -> None:
    layer = nn.Linear(8, 8)

    def model(x: Any) -> Any:
        return EDGES[name](layer(x).tanh() * 2)

    x = torch.randn(4, 8)
    same(compiled(model)(x), model(x))


def test_gradients_within_a_model_are_refused() -> None:
    layer = nn.Linear(8, 8)

    def model(x: Any) -> Any:
        with torch.enable_grad():
            return layer(x).tanh()

    with pytest.raises((Refused, BackendCompilerFailed, RuntimeError), match="gradients"):
        compiled(model)(torch.randn(3, 8)).sum().backward()


def test_one_place_of_schedules() -> None:
    with pytest.raises(Refused, match="one of db and server"):
        backend(None, [], options={"db": "sqlite:///a.db", "server": "http://127.0.0.1:1"})
