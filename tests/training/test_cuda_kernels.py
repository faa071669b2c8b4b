"""Every Triton kernel against its plain reference, on random shapes.

Without a GPU they run on the processor, in Triton's interpreter (``tests/conftest.py`` asks for it).
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch

from crossrank.training import TrainingSettings
from crossrank.training.cuda import kernels, plain
from crossrank.training.cuda.plain import Columns, Gradient, Rows, Segments, Taken
from crossrank.training.lazy import LazyTable
from crossrank.training.loss import LogLoss, SquaredError
from crossrank.training.rule import UpdateRule

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = pytest.mark.skipif(
    not (kernels.PRESENT and (INTERPRETED or torch.cuda.is_available())), reason="there is no GPU with Triton here"
)
TYPES = [torch.float32, torch.bfloat16]
RATES = [[0.01], [0.003, 0.05]]
LARGE = [] if INTERPRETED else [(9000, 264)]


def cases(*values: list) -> list[tuple]:
    """All combinations; in the interpreter, which is slow, only so many that each value comes once."""
    if not INTERPRETED:
        return list(itertools.product(*values))
    most = max(map(len, values))
    return list(zip(*(itertools.islice(itertools.cycle(some), most) for some in values), strict=True))


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def integers(seed: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, torch.int32)


def both(name: str, *arguments, **options):
    return (getattr(module, name)(*arguments, **options) for module in (kernels, plain))


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 1e-2 if expected.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * max(1.0, float(expected.abs().max())))


def rule(decay: float, rates: list[float], **options) -> UpdateRule:
    settings = TrainingSettings(learning_rate=rates[0], average_decay=decay, **options)
    return UpdateRule(settings, total_steps=20, learning_rates=rates)


def correction(step: int) -> float:
    """Adam's."""
    return (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)


@pytest.mark.parametrize(("start", "weighted"), cases([0, 64, 90], [True, False]))
def test_a_batch_is_taken_in_order_and_padded_with_weightless_rows(start, weighted) -> None:
    source = Taken(
        integers(0, 9, 100, 3), numbers(1, 100, 2), numbers(2, 100), numbers(3, 100 if weighted else 1).abs()
    )
    order = torch.randperm(100, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    got, expected = both("take_batch", source, order, torch.tensor(start, device=DEVICE), 32)
    for left, right in zip(got, expected, strict=True):
        assert torch.equal(left, right)
    assert int((expected.weights > 0).sum()) == min(32, 100 - start)
    orders = torch.stack([order, order.flip(0)])
    got, expected = both("take_batch", source, orders, torch.tensor(start, device=DEVICE), 32)
    for left, right in zip(got, expected, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(("dtype", "rates", "shape"), cases(TYPES, RATES, [(1, 16), (37, 24), (20, 264), *LARGE]))
def test_x0_is_gathered_with_its_column_of_ones(dtype, rates, shape) -> None:
    rows, padded = shape
    widths, sizes = [3, 5, 3], [7, 11, 4]
    starts, first_rows = [0, 21, 76], [0, 7, 18]
    places = [(i, w, starts[i] + j, j, first_rows[i]) for i, w in enumerate(widths) for j in range(w)]
    columns = Columns(*torch.tensor(places).T.contiguous().to(DEVICE))
    ids = torch.stack([integers(i, size, rows) for i, size in enumerate(sizes)], dim=1)
    step = torch.tensor(40, device=DEVICE)
    made = rule(0.9999, rates, table_decay=0.01 if len(rates) > 1 else 0.0)
    table = Rows(numbers(1, 88), numbers(2, 88 * 3).abs(), integers(3, 41, 22).long(), step, made)
    got, expected = both("embed", ids, numbers(0, rows, 2), table, columns, padded, dtype)
    close(got, expected)
    # Number 2 of the second feature's vector, by hand: it stands in column 3 + 2, and its table begins at 21.
    row = 7 + int(ids[0, 1])
    weight = 21 + int(ids[0, 1]) * 5
    mean, square = table.state[3 * weight + 2], table.state[3 * weight + 5 + 2]
    by_hand, rate, idle_steps = table.weight[weight + 2], rates[row // (22 // len(rates))], 40 - int(table.last[row])
    for k in range(1, idle_steps + 1):
        by_hand = by_hand * (1 - made.curves.shrink)
        by_hand = by_hand - rate * 0.9**k * mean / (0.999**k * square).sqrt() * correction(int(table.last[row]) + k)
    close(got[0, 5], by_hand.to(dtype))
    assert (got[:, 13] == 1).all()
    assert not got[:, 14:].any()


@pytest.mark.parametrize(("dtype", "shape"), cases(TYPES, [(1, 8), (77, 40), (300, 72)]))
def test_the_cross_forward_and_backward(dtype, shape) -> None:
    x0, u, xl, gradient, gathered = (numbers(seed, *shape, dtype=dtype) for seed in range(5))
    close(*both("cross", x0, u, xl))
    for part, carried in ((None, True), (gathered, False), (gathered, True)):
        got, expected = both("cross_backward", gradient, x0, u, part, input_dim=shape[1] - 3, carried=carried)
        close(got[0], expected[0])
        close(got[1], expected[1])
        assert not got[0][:, -3:].any()


@pytest.mark.parametrize(("dtype", "shape"), cases(TYPES, [(1, 8), (77, 40), (40, 264), *LARGE]))
def test_the_backward_passes_of_relu_and_of_the_output(dtype, shape) -> None:
    h, gradient = numbers(0, *shape, dtype=dtype).relu(), numbers(1, *shape, dtype=dtype)
    weight, by_logits = numbers(2, shape[1] - 3), numbers(3, shape[0])
    for start in (numbers(4, 1), numbers(4, shape[0])):
        close(*both("head", h, weight, start))
    ends = []
    for module in (kernels, plain):
        sums = [torch.empty(shape[1], device=DEVICE) for _ in range(2)]
        outputs = [torch.empty_like(weight) for _ in range(2)]
        by_z = module.relu_backward(gradient, h, sums[0])
        through = module.head_backward(h, weight, by_logits, outputs[0], sums[1])
        without = module.head_backward(h, weight, by_logits, outputs[1], None)
        ends.append([by_z, through, without, *sums, *outputs])
    for got, expected in zip(*ends, strict=True):
        close(got, expected)


@pytest.mark.parametrize(("loss", "rows", "models"), cases([LogLoss(), SquaredError()], [1, 700, 3000], [(3,), ()]))
def test_the_loss_and_its_gradient(loss, rows, models) -> None:
    logits, weights = 20 * numbers(0, *models, rows), numbers(1, *models, rows).relu() + 0.01
    labels = integers(2, 2, *models, rows).float()
    for got, expected in zip(*both("loss_and_gradient", loss, logits, labels, weights), strict=True):
        close(got, expected)


class Doubled(LogLoss):
    def __call__(self, *rows):
        return 2 * super().__call__(*rows)


def test_a_subclass_of_a_loss_is_computed_as_it_is_written() -> None:
    rows = numbers(0, 50), integers(1, 2, 50).float(), torch.ones(50, device=DEVICE)
    (loss, gradient), (single, by_logits) = (kernels.loss_and_gradient(one, *rows) for one in (Doubled(), LogLoss()))
    close(loss, 2 * single)
    close(gradient, 2 * by_logits)


def segments_of(seed: int, rows: int, features: int, num_rows: int) -> Segments:
    ids = integers(seed, num_rows, rows, features)
    ids[: rows // 2, 0] = 3  # a long segment
    got, expected = both("sort_rows", ids.flatten())
    distinct = int(expected.distinct)
    assert torch.equal(got.rows, expected.rows)
    assert torch.equal(got.starts[: distinct + 1].long(), expected.starts[: distinct + 1])
    return expected._replace(starts=expected.starts.int())


@pytest.mark.parametrize("dtype", TYPES[:1] if INTERPRETED else TYPES)  # there the bits of bfloat16 are multiplied
@pytest.mark.parametrize(
    ("rows", "features", "width", "num_rows"), [(1, 1, 1, 5), (40, 3, 5, 11), (700, 2, 39, 50), (12000, 1, 4, 9)]
)
def test_the_gradients_of_equal_rows_are_summed(dtype, rows, features, width, num_rows) -> None:
    segments = segments_of(0, rows, features, num_rows)
    first = torch.arange(features, device=DEVICE) * width + 2
    gradient = Gradient(numbers(1, rows, features * width + 7, dtype=dtype), first, width)
    (total, squares), (expected, lengths) = both("sum_segments", segments, gradient)
    count = int(segments.distinct)
    close(total[:count], expected[:count])
    close(squares, lengths)


@pytest.mark.parametrize(("width", "rates", "table_decay"), cases([1, 5, 39], RATES, [0.0, 0.004]))
def test_rows_are_read_as_they_are_by_now(width, rates, table_decay) -> None:
    table = LazyTable(numbers(0, 50, width), rule(0.9999, rates, table_decay=table_decay))
    table.state.copy_(numbers(1, *table.state.shape).abs())
    table.last.copy_(integers(2, 90, 50))
    close(*both("read_rows", table, integers(3, 50, 300), torch.tensor(90, device=DEVICE)))


@pytest.mark.parametrize("size", [1e-4, 1e-6, 3e-8, 1e-10])
def test_rows_with_a_small_gradient_are_read_as_they_are_by_now(size) -> None:
    """In units of the learning rate: where ε counts, the drift itself is at most a few of them."""
    table = LazyTable(torch.zeros(50, 5, device=DEVICE), rule(0.9999, [1.0]))
    gradients = size * numbers(1, 50, 5)
    table.state[:, :5], table.state[:, 5:10] = 0.1 * gradients, 0.001 * gradients**2
    table.last.copy_(300 + integers(2, 90, 50))
    got, expected = both("read_rows", table, torch.arange(50, device=DEVICE), torch.tensor(420, device=DEVICE))
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)


def test_rows_whose_squared_gradient_is_too_small_for_float32_stay_finite() -> None:
    made = rule(0.9999, [0.01])
    segments, first = segments_of(0, 30, 2, 90), torch.tensor([0, 5], device=DEVICE)
    ends = []
    for module in (kernels, plain):
        table, step = LazyTable(numbers(4, 90, 5), made), torch.zeros((), dtype=torch.int64, device=DEVICE)
        for t in range(4):
            total, squares = module.sum_segments(segments, Gradient(1e-25 * numbers(t, 30, 10), first, 5))
            shared = module.begin_update(step, squares[None], squares.sum().view(1), made, clip_norm=0.0)
            module.adam_rows(table, segments, total, shared)
        ends.append([table.weight, table.state])
    for got, expected in zip(*ends, strict=True):
        close(got, expected)


@pytest.mark.parametrize(
    ("decay", "clip", "rates", "options"),
    cases(
        [0.0, 0.6, 0.9999],
        [0.0, 0.5],
        RATES,
        [{}, {"schedule": "cosine", "warmup_steps": 3}, {"table_decay": 0.001}, {"table_learning_rate": 0.03}],
    ),
)
def test_the_updates_of_dense_weights_and_rows(decay, clip, rates, options) -> None:
    if "table_decay" in options:
        rates = [0.01] * len(rates)  # models with rates of their own have none
    made, count = rule(decay, rates, **options), len(rates)
    ends = []
    batches = [(segments_of(t, 30, 2, 90), numbers(100 + t, 30, 10)) for t in range(12)]
    first = torch.tensor([0, 5], device=DEVICE)
    for module in (kernels, plain):
        weight, gradient = numbers(1, count, 1500), numbers(2, count, 1500)
        dense = [weight, torch.zeros_like(weight), torch.zeros_like(weight)]
        average = weight.clone() if decay else None
        copy = torch.empty_like(weight, dtype=torch.bfloat16) if clip else None
        table = LazyTable(numbers(4, 90, 5), made)
        step = torch.zeros((), dtype=torch.int64, device=DEVICE)
        for segments, matrix in batches:
            total, squares = module.sum_segments(segments, Gradient(matrix, first, 5))
            lengths = [module.squares(gradient), squares.sum().expand(count).contiguous()]
            shared = module.begin_update(step, *lengths, made, clip_norm=clip)
            module.adam(*dense, average, copy, gradient, shared, made)
            module.adam_rows(table, segments, total, shared)
        written = [part for part in (average, copy) if part is not None]
        ends.append([*shared, *dense, *written, table.weight, table.state, table.last])
    for got, expected in zip(*ends, strict=True):
        close(got, expected)
    assert int(step) == 12
