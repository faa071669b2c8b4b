"""Fitting small networks to known functions, until they stop getting better."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from crossrank.nn import CrossNetwork, DeepNetwork, LowRankCrossLayer, OutputLayer

Function = Callable[[Tensor], Tensor]  # (..., B, d) -> (..., B)
MakeModel = Callable[[], nn.Sequential]
TEST_ROWS = 10_000
WARM_UP, FALL = 0.1, 0.5  # shares of the steps after which the learning rate has grown, and begins to fall


def cross_model(input_dim: int, num_layers: int, **options: Any) -> nn.Sequential:
    """``w · cross(x)``; no bias at the output, which is how the paper's sizes come out."""
    return nn.Sequential(CrossNetwork(input_dim, num_layers=num_layers, **options), OutputLayer(input_dim, bias=False))


def dcn_model(input_dim: int, num_layers: int) -> nn.Sequential:
    """DCN as the paper derives it from DCN-V2, W = 1 wᵀ: ``x_{l+1} = x_0 ⊙ (1 wᵀ x_l + b) + x_l``."""
    model = cross_model(input_dim, num_layers, layer="low_rank", rank=1)
    for layer in model.modules():
        if isinstance(layer, LowRankCrossLayer):
            nn.init.ones_(layer.up).requires_grad_(False)
    return model


def deep_model(input_dim: int, sizes: Sequence[int]) -> nn.Sequential:
    """``w · deep(x)`` with ReLUs."""
    return nn.Sequential(DeepNetwork(input_dim, sizes=sizes), OutputLayer(sizes[-1], bias=False))


def model_size(model: nn.Module) -> int:
    """The number of trained parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def sample(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform in [-1, 1]."""
    return 2 * torch.rand(*shape, generator=generator, dtype=dtype) - 1


class RandomPolynomials:
    """Sums of random monomials, one sum for each run.

    Shape: x (R, B, d) -> (R, B).

    Args:
        input_dim: d.
        num_terms: how many monomials of each order.
        scale: deviation of their normal weights.
        runs: R.
    """

    def __init__(
        self,
        input_dim: int,
        num_terms: Mapping[int, int],
        *,
        runs: int,
        generator: torch.Generator,
        scale: float = 1.0,
    ) -> None:
        self.terms = {
            order: torch.stack([_monomials(input_dim, order, count, generator) for _ in range(runs)])
            for order, count in num_terms.items()
        }  # (R, T, order) each
        self.weights = {
            order: scale * torch.randn(runs, count, 1, generator=generator) for order, count in num_terms.items()
        }

    def __call__(self, x: Tensor) -> Tensor:
        total = x.new_zeros(x.shape[:2])
        for order, terms in self.terms.items():
            product = torch.ones(())
            for column in terms.unbind(-1):  # (R, T)
                product = product * x.gather(2, column.unsqueeze(1).expand(-1, x.shape[1], -1))  # (R, B, T)
            total += (product @ self.weights[order])[..., 0]
        return total


def _monomials(input_dim: int, order: int, count: int, generator: torch.Generator) -> Tensor:
    """Different monomials as sorted indices of their variables. Shape: (T, order)."""
    chosen: dict[tuple[int, ...], None] = {}
    while len(chosen) < count:
        chosen[tuple(sorted(torch.randint(input_dim, (order,), generator=generator).tolist()))] = None
    return torch.tensor(list(chosen))


def fit_exactly(model: nn.Sequential, x: Tensor, y: Tensor, *, rounds: int = 40, iterations: int = 50) -> None:
    """Full-batch L-BFGS until rounding stops it: first for what lies under the output layer, then for all weights.

    With one cross layer the first is a linear problem, and well-conditioned while the output weights are alike. Each
    round divides the loss by what is left of it, because torch's L-BFGS learns no curvature from steps whose absolute
    effect is below 1e-10.
    """
    for part in (model[0], model):
        parameters = [parameter for parameter in part.parameters() if parameter.requires_grad]
        left = math.inf
        for _ in range(rounds):
            with torch.no_grad():
                loss = (model(x) - y).square().mean().item()
            if not 0 < loss < 0.9 * left:
                break
            left = loss
            _minimize(parameters, lambda scale=loss: (model(x) - y).square().mean() / scale, iterations)  # type: ignore[misc]


def _minimize(parameters: Sequence[nn.Parameter], loss: Callable[[], Tensor], iterations: int) -> None:
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=iterations,
        max_eval=2 * iterations,
        history_size=20,
        tolerance_grad=1e-14,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value.item()

    optimizer.step(closure)  # type: ignore[no-untyped-call]


def fit_fresh(
    make: MakeModel,
    function: Function,
    *,
    input_dim: int,
    runs: int,
    steps: int,
    learning_rate: float,
    generator: torch.Generator,
    batch_size: int = 512,
    corners: bool = False,
) -> list[float]:
    """Adam on rows drawn anew for every step, so that nothing can be learned by heart; several runs side by side.

    Args:
        make: a model with initial weights; called once for each run.
        function: what to fit, possibly another function for each run. Shape: (R, B, d) -> (R, B).
        learning_rate: the highest; it grows from zero, stays, and falls to zero again along a cosine.
        corners: until it falls, every other row is a corner of the cube. There a monomial of order n is √3ⁿ times as
            large as in the mean over the cube, so one of a high order is found before the weights that lead to it have
            shrunk to nothing.

    Returns:
        The root mean square error of each run on rows that were never trained on.
    """
    models = [make() for _ in range(runs)]
    parameters, _ = stack_module_state(models)
    forward = vmap(lambda weights, x: functional_call(models[0], weights, (x,)))
    optimizer = torch.optim.Adam(parameters.values(), lr=learning_rate, betas=(0.9, 0.99), fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate * _schedule(step / steps)
        x = sample(generator, runs, batch_size, input_dim)  # (R, B, d)
        if corners and step < FALL * steps:
            x[:, ::2] = x[:, ::2].sign()
        loss = (forward(parameters, x) - function(x)).square().mean(dim=1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x = sample(generator, runs, TEST_ROWS, input_dim)
        errors: list[float] = (forward(parameters, x) - function(x)).square().mean(dim=1).sqrt().tolist()
    return errors


def _schedule(done: float) -> float:
    if done < FALL:
        return min(done / WARM_UP, 1.0)
    return 0.5 * (1 + math.cos(math.pi * (done - FALL) / (1 - FALL)))


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation, with the values themselves."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "deviation": deviation, "values": list(values)}


def shown(measured: Mapping[str, Any]) -> str:
    """
    >>> shown({"mean": 0.0123, "deviation": 0.0004})
    '1.23e-02 ± 4e-04'
    """
    return f"{measured['mean']:.2e} ± {measured['deviation']:.0e}"
