"""Fitting small networks to known functions, until they stop getting better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from crossrank.experiments.figures import spread
from crossrank.nn import CrossNetwork, DeepNetwork, LowRankCrossLayer, OutputLayer

Function = Callable[[Tensor], Tensor]  # (..., B, d) -> (..., B)
MakeModel = Callable[[], nn.Sequential]
Optimizer = Callable[[nn.Module, Tensor, Tensor], None]
TEST_ROWS = 10_000
ROUNDING = 1e-10
PROBES = 8
WARM_UP = 0.1  # the share of the steps in which the learning rate grows


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


Rows = tuple[Tensor, Tensor]  # x (B, d) and y (B,)


def fit_exactly(
    make: MakeModel, rows: Rows, new: Rows, *, optimizer: Optimizer, starts: int
) -> Iterator[tuple[float, float]]:
    """Fit from one random start after the other; one that ends in rounding is the last.

    Yields:
        For each start the root mean square error on the rows and on new ones.
    """
    for _ in range(starts):
        model = make().double()
        optimizer(model, *rows)
        with torch.no_grad():
            left, error = ((model(x) - y).square().mean().sqrt().item() for x, y in (rows, new))
        yield left, error
        if left < ROUNDING:
            break


def lbfgs(model: nn.Module, x: Tensor, y: Tensor, *, rounds: int = 40, iterations: int = 50) -> None:
    """Full-batch L-BFGS: first for what lies under the output layer, then for all weights.

    With one cross layer the first is a linear problem. Each round measures every weight by how far it moves the output,
    because a small output weight leaves those under it badly conditioned, and the loss by what is left, because
    torch's L-BFGS learns no curvature from steps whose absolute effect is below 1e-10.
    """
    for part in ("0.", ""):
        vector, output = _flat(model, part)
        left = math.inf
        for _ in range(rounds):
            loss = (output(vector, x) - y).square().mean().item()
            if not 0 < loss < 0.9 * left:
                break
            left = loss
            scale = _reach(output, vector, x)
            vector = _minimize(lambda z: (output(z / scale, x) - y).square().mean() / loss, vector * scale, iterations)  # noqa: B023
            vector /= scale
        nn.utils.vector_to_parameters(vector, _trained(model, part).values())


def _minimize(loss: Function, start: Tensor, iterations: int) -> Tensor:
    vector = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [vector],
        max_iter=iterations,
        max_eval=2 * iterations,
        history_size=20,
        tolerance_grad=1e-14,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(vector)
        value.backward()  # type: ignore[no-untyped-call]
        return value.item()

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return vector.detach()


def levenberg_marquardt(model: nn.Module, x: Tensor, y: Tensor, *, iterations: int = 200) -> None:
    """Gauss-Newton steps, damped until they help; for models with few weights, since it makes their Jacobian."""
    vector, output = _flat(model)
    jacobian = vmap(grad(lambda weights, row: output(weights, row[None])[0]), (None, 0))
    residual, damping = output(vector, x) - y, 1e-2
    for _ in range(iterations):
        moved = jacobian(vector, x)  # (B, P)
        normal = moved.T @ moved
        damped = normal + torch.diag(damping * (normal.diagonal() + 1e-9))
        after = vector - torch.linalg.solve(damped, moved.T @ residual)
        left = output(after, x) - y
        if left.norm() < residual.norm():
            vector, residual, damping = after, left, max(damping / 3, 1e-12)
        elif (damping := 4 * damping) > 1e8:
            break
    nn.utils.vector_to_parameters(vector, _trained(model).values())


def _trained(model: nn.Module, part: str = "") -> dict[str, Tensor]:
    return {
        name: weights for name, weights in model.named_parameters() if weights.requires_grad and name.startswith(part)
    }


def _flat(model: nn.Module, part: str = "") -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """The trained weights as one vector, and the model's output as a function of such a vector and of rows."""
    trained = _trained(model, part)
    sizes = [weights.numel() for weights in trained.values()]

    def output(vector: Tensor, x: Tensor) -> Tensor:
        parts = zip(trained.items(), torch.split(vector, sizes), strict=True)
        values: Tensor = functional_call(model, {name: part.view_as(weights) for (name, weights), part in parts}, (x,))
        return values

    return nn.utils.parameters_to_vector(trained.values()).detach(), output


def _reach(output: Callable[[Tensor, Tensor], Tensor], vector: Tensor, x: Tensor) -> Tensor:
    """How far each weight moves the output in the root mean square, estimated by random signs."""
    vector = vector.clone().requires_grad_()
    found = torch.zeros_like(vector)
    for _ in range(PROBES):
        signs = torch.randint(2, (len(x),)).to(x) * 2 - 1
        (moved,) = torch.autograd.grad(output(vector, x) @ signs, vector)
        found += moved.square() / (PROBES * len(x))
    return found.detach().sqrt().clamp(min=1e-4 * found.detach().max().sqrt().item())


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
    starts: int = 1,
    fall: float = WARM_UP,
    corners: bool = False,
) -> list[list[float]]:
    """Adam on rows drawn anew for every step, so that nothing can be learned by heart; all models side by side.

    Args:
        make: a model with initial weights; called once for each start of each run.
        function: what to fit, possibly another function for each run. Shape: (R, B, d) -> (R, B).
        learning_rate: the highest; it grows from zero, stays, and falls to zero again along a cosine.
        fall: the share of the steps after which it falls.
        corners: until it falls, every other row is a corner of the cube. There a monomial of order n is √3ⁿ times as
            large as in the mean over the cube, so one of a high order is found before the weights that lead to it have
            shrunk to nothing.

    Returns:
        For each run the root mean square error of each start on rows that were never trained on; the start that is
        best on yet other rows first.
    """
    models = [make() for _ in range(starts * runs)]
    parameters, _ = stack_module_state(models)
    forward = vmap(lambda weights, x: functional_call(models[0], weights, (x,)))
    optimizer = torch.optim.Adam(parameters.values(), lr=learning_rate, betas=(0.9, 0.99), fused=True)

    def errors(x: Tensor) -> Tensor:
        """Mean squares; the starts of a run see the same rows. Shape: (R, B, d) -> (S, R)."""
        output: Tensor = forward(parameters, x.repeat(starts, 1, 1)).unflatten(0, (starts, runs))  # (S, R, B)
        return (output - function(x)).square().mean(dim=-1)

    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate * _schedule(step / steps, fall)
        x = sample(generator, runs, batch_size, input_dim)  # (R, B, d)
        if corners and step < fall * steps:
            x[:, ::2] = x[:, ::2].sign()
        loss = errors(x).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        found = errors(sample(generator, runs, TEST_ROWS, input_dim)).sqrt()  # (S, R)
        order = errors(sample(generator, runs, TEST_ROWS, input_dim)).argsort(dim=0)
    ordered: list[list[float]] = found.gather(0, order).T.tolist()
    return ordered


def _schedule(done: float, fall: float) -> float:
    if done < fall:
        return min(done / WARM_UP, 1.0)
    return 0.5 * (1 + math.cos(math.pi * (done - fall) / (1 - fall)))


def chosen(errors: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The spread of the first start of each run, with the errors of all starts."""
    return {**spread([run[0] for run in errors]), "starts": errors}


def shown(measured: Mapping[str, Any]) -> str:
    """
    >>> shown({"mean": 0.0123, "deviation": 0.0004})
    '1.23e-02 ± 4e-04'
    """
    return f"{measured['mean']:.2e} ± {measured['deviation']:.0e}"
