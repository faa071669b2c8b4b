"""Parts of a ranking side by side: what they find, and who makes them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from untrained import ITEM, Untrained

from crossrank.serving import threads
from crossrank.serving.ranker import Ranker
from crossrank.serving.threads import SMALL, side_by_side


@pytest.fixture
def busy_pool(two_threads, monkeypatch):
    """A pool whose one thread has other work until the test is over."""
    done, begun = threading.Event(), threading.Event()
    pool = threads.ThreadPoolExecutor(1)
    pool.submit(lambda: begun.set() or done.wait(30))
    assert begun.wait(30)
    monkeypatch.setattr(threads, "_pool", lambda _: pool)
    yield
    done.set()
    pool.shutdown()


def where() -> tuple[str, int, bool]:
    return threading.current_thread().name, torch.get_num_threads(), torch.is_inference_mode_enabled()


def test_parts_are_made_by_several_threads_that_take_none_of_torch_s(two_threads) -> None:
    both = threading.Barrier(2, timeout=30)
    found = side_by_side([lambda: (both.wait() >= 0, *where())] * 2, 2 * SMALL)
    names = [name for _, name, *_ in found]
    assert names[0] == threading.current_thread().name and names[1].startswith("crossrank")
    assert [rest for _, _, *rest in found] == [[1, True]] * 2
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("num_threads", "work"), [(1, 2 * SMALL), (2, 2 * SMALL - 1)])
def test_little_work_and_a_single_thread_are_the_caller_s(num_threads, work, two_threads) -> None:
    torch.set_num_threads(num_threads)
    assert side_by_side([where, where], work) == [(threading.current_thread().name, num_threads, False)] * 2


def test_what_no_thread_has_begun_is_made_by_the_caller(busy_pool) -> None:
    assert side_by_side([where] * 5, 5 * SMALL) == [(threading.current_thread().name, 1, True)] * 5
    assert torch.get_num_threads() == 2


def test_results_stand_in_the_order_of_their_calls(two_threads) -> None:
    calls = [lambda number=number: number for number in range(100)]
    assert side_by_side(calls, 100 * SMALL) == list(range(100))


@pytest.mark.parametrize("place", range(3))
def test_an_error_of_any_call_is_the_caller_s(place, two_threads) -> None:
    calls = [lambda number=number: 1 / (number - place) for number in range(3)]
    with pytest.raises(ZeroDivisionError):
        side_by_side(calls, 3 * SMALL)
    assert torch.get_num_threads() == 2


CONTEXT = ["user", "country", "language", "device", "hour"]


@pytest.mark.parametrize(
    "settings",
    [
        {"structure": "cross-only"},
        {"structure": "parallel"},
        {"structure": "stacked"},
        {"structure": "stacked", "cross": {"context": CONTEXT}},
        {"structure": "cross-only", "cross": {"context": CONTEXT, "num_layers": 3}},
    ],
    ids=str,
)
@pytest.mark.parametrize("some", [[4], [4, 1, 7, 2, 0], None], ids=str)
@pytest.mark.parametrize("by", ["compiled", "numpy"])
def test_a_ranking_is_the_same_however_it_is_divided(dataset, clicks, settings, some, by, two_threads, monkeypatch):
    if by == "numpy":
        monkeypatch.setattr("crossrank.serving.affine_layers.kernels", lambda: None)
        monkeypatch.setattr("crossrank.serving.splitting.kernels", lambda: None)
    run = Untrained(dataset.encoder, double=False, deep={"sizes": [6, 4]}, **settings)
    items = clicks.select(ITEM).unique(maintain_order=True).with_row_index("number")
    ranker, context = Ranker(run).load(items, id="number"), clicks.drop(ITEM).row(0, named=True)
    torch.set_num_threads(1)
    whole = ranker.rank(context, some)
    torch.set_num_threads(3)
    monkeypatch.setattr(threads, "SMALL", 1)
    divided = ranker.rank(context, some)
    assert whole.ids == divided.ids
    np.testing.assert_allclose(whole.logits, divided.logits, rtol=1e-5, atol=1e-6)
