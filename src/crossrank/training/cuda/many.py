"""Many models of one shape trained as one program, with a leading axis for the model.

A small model leaves a GPU idle: its step is a chain of kernels too short to fill it. Here N models, which differ in
their initial weights, the order of their rows and their learning rate, take each step together: their tables are one
table N times as long, their kernels one stack. Each has its own clip, and comes out as if it had been trained alone, up
to rounding; only what dropout drops is drawn for all of them at once. One that diverges leaves the others as they are.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossrank.data import Split
from crossrank.errors import ConfigError
from crossrank.models import Model
from crossrank.models.dcn_v2 import DCNV2
from crossrank.training.cuda.data import EvaluatedSplit, ResidentRows, fits
from crossrank.training.cuda.dcn import DCNPass, is_written_out
from crossrank.training.cuda.engine import CapturedProgram
from crossrank.training.cuda.plain import Columns, Gradient, Rows, Segments, Taken
from crossrank.training.cuda.update import FlatWeights, SideStream, operations, whole
from crossrank.training.device import uses_bfloat16
from crossrank.training.lazy import LazyTable
from crossrank.training.loss import Loss
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings


def can_share_a_program(model: Model, split: Split, settings: TrainingSettings, device: torch.device) -> bool:
    """Whether several of these models can be trained together: small, with one table of single values."""
    embedding = model.embedding
    ordinary = type(model).forward is Model.forward and len(model.tables()) == 1
    single = embedding.num_single > 0 and not embedding.num_multivalent and len(embedding.tables) == 1
    plain_loss = settings.l2 == 0 and settings.table_decay == 0
    float32 = not uses_bfloat16(settings.precision, model.layout.input_dim, torch.device("cuda"))  # narrow
    return ordinary and single and float32 and settings.tables == "lazy" and plain_loss and fits(split, device)


class _Logits(nn.Module):
    """What a model makes of x0, as a module of its own; with ``heads``, that of each path."""

    def __init__(self, model: Model, *, heads: bool) -> None:
        super().__init__()
        self.model, self.heads = model, heads

    def forward(self, x0: Tensor) -> Tensor:
        return self.model.head_logits(x0) if self.heads else self.model.logits(x0)


class JointEngine:
    """The steps of N models, taken together; an :class:`~crossrank.training.engine.Engine`.

    Args:
        models: of one shape; see :func:`can_share_a_program`.
        split: the training rows, the same for all.
        settings: of the training, the same for all.
        loss: what is made small; it needs no groups.
        rule: of the update, with the learning rate of each model.
        seeds: of each model's order of rows.
        device: a GPU; on a processor the same steps run uncaptured.
    """

    def __init__(
        self,
        models: Sequence[Model],
        split: Split,
        settings: TrainingSettings,
        *,
        loss: Loss,
        rule: UpdateRule,
        seeds: Sequence[int],
        device: torch.device,
    ) -> None:
        self.models, self.settings, self.loss, self.rule, self.device = list(models), settings, loss, rule, device
        self.operations = operations(device)
        self._stack(models)
        self.rows = ResidentRows(split, settings.batch_size, seed=seeds, device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.losses, self.nothing = torch.zeros(len(models), device=device), torch.zeros((), device=device)
        self.side_stream = SideStream(device)
        self.captured, self.reading = CapturedProgram(device), threading.Lock()
        self.members = [JointModel(self, number) for number in range(len(models))]

    def _stack(self, models: Sequence[Model]) -> None:
        """All weights of all models in shared buffers, as they are now."""
        embedding, count = models[0].embedding, len(models)
        self.names = [name for name, _ in models[0].named_parameters() if name != "embedding.weight"]
        shapes = dict(models[0].named_parameters())
        self.written_out = self._written_out(models[0])
        blocks = self.written_out.blocks() if self.written_out else []
        placed = {name for block in blocks for name in block.parts}
        blocks += [whole(name, shapes[name].shape) for name in self.names if name not in placed]
        self.flat = FlatWeights(blocks, device=self.device, models=count, average=self.rule.decay > 0)
        rows = torch.stack([model.embedding.tables[0].detach() for model in models]).to(self.device)  # (N, v, e)
        self.rows_of_model, self.width = rows.shape[1], rows.shape[2]
        weights, gradients = self.flat.parts(self.flat.weight), self.flat.parts(self.flat.gradient)  # (N, …) each
        for name in self.names:
            weights[name].copy_(torch.stack([model.get_parameter(name).detach() for model in models]))
        if self.flat.average is not None:
            self.flat.average.copy_(self.flat.weight)
        self.table = LazyTable(rows.flatten(0, 1), self.rule)
        self.weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        self.gradients = [gradients[name] for name in self.weights]
        if self.written_out:
            self.written_out.bind(self.flat)
        first = torch.arange(count, device=self.device) * self.rows_of_model
        self.offsets = (embedding.row_offsets.to(self.device) + first[:, None, None]).int()  # (N, 1, F)
        self.first = torch.arange(embedding.num_single, device=self.device) * self.width
        self.network = _Logits(models[0], heads=self.settings.heads != "none").to(self.device)

    def _written_out(self, model: Model) -> Any:
        if not is_written_out(model, self.settings):
            return None
        width = model.embedding.embedding_dims[0]
        features = torch.arange(model.embedding.num_single * width, device=self.device)
        # Ids are rows of the joint table already.
        within = features % width
        self.columns = Columns(features // width, torch.full_like(within, width), within, within, within * 0)
        return DCNPass(cast(DCNV2, model), loss=self.loss, device=self.device)

    def batches(self, epoch: int, start_batch: int) -> Iterator[range]:
        return self.rows.batches(epoch, start_batch)

    def step(self, batch: range) -> Tensor:
        self.captured.run(self._program)
        return self.losses

    def _program(self) -> None:
        taken = self.rows.take()
        looked_up = (taken.ids + self.offsets).flatten()  # (N B F,)
        with self.side_stream:
            segments = self.operations.sort_rows(looked_up)
        losses, by_x0 = (self._pass if self.written_out else self._autograd)(taken, looked_up)
        self.side_stream.join()
        # Sums over equal rows are products with ones and zeros, and 0 times NaN would reach rows of other models.
        by_x0.nan_to_num_(0.0, 0.0, 0.0)
        self._update(segments, Gradient(by_x0.flatten(0, 1), self.first, self.width))
        self.losses.copy_(losses)

    @torch.no_grad()
    def _pass(self, taken: Taken, looked_up: Tensor) -> tuple[Tensor, Tensor]:
        """The losses (N,), and their gradient by x0 (N, B, L); those by the weights are in their places."""
        ids, numeric = looked_up.view(-1, taken.ids.shape[2]), taken.numeric.flatten(0, 1)
        wide = self.written_out.padded_dim
        table = self.table
        rows = Rows(table.weight.view(-1), table.state.view(-1), table.last, self.count, self.rule)
        x0 = self.operations.embed(ids, numeric, rows, self.columns, wide, torch.float32)
        losses, by_x0 = self.written_out.run(x0.view(*taken.labels.shape, wide), taken.labels, taken.weights)
        return losses, by_x0

    def _autograd(self, taken: Taken, looked_up: Tensor) -> tuple[Tensor, Tensor]:
        """The same for any network."""
        count, size = taken.labels.shape
        vectors = self.operations.read_rows(self.table, looked_up, self.count).view(count, size, -1)  # (N, B, F e)
        vectors.requires_grad_()
        dropped = F.dropout(vectors, self.models[0].embedding.dropout)
        losses = torch.func.vmap(self._loss, randomness="different")(
            self.weights, torch.cat([dropped, taken.numeric], dim=2), taken.labels, taken.weights
        )  # (N,)
        *dense, by_vectors = torch.autograd.grad(losses.sum(), [*self.weights.values(), vectors])
        torch._foreach_copy_(self.gradients, dense)
        return losses.detach(), by_vectors

    def _loss(self, weights: dict[str, Tensor], x0: Tensor, labels: Tensor, row_weights: Tensor) -> Tensor:
        named = {f"model.{name}": weight for name, weight in weights.items()}
        logits = torch.func.functional_call(self.network, named, (x0,))
        return self.loss(logits, labels, row_weights)

    @torch.no_grad()
    def _update(self, segments: Segments, gradient: Gradient) -> None:
        ops, flat, table = self.operations, self.flat, self.table
        total, squares = ops.sum_segments(segments, gradient)
        size = len(segments.rows)
        # Behind the last segment the starts mean nothing, and the squares are zero.
        model = segments.rows[segments.starts[:-1].long().clamp(0, size - 1)] // self.rows_of_model
        mine = torch.arange(len(self.models), device=self.device)[:, None] == model  # (N, segments)
        rows = torch.where(mine, squares, self.nothing).sum(dim=1)  # no product, for the same reason
        clip = self.settings.clip_norm
        numbers = ops.begin_update(self.count, ops.squares(flat.gradient), rows, self.rule, clip_norm=clip)
        ops.adam(flat.weight, flat.mean, flat.square, flat.average, None, flat.gradient, numbers, self.rule)
        ops.adam_rows(table, segments, total, numbers)

    def catch_up(self) -> None:
        """Bring all rows to the present step; several threads may ask."""
        with self.reading:
            self.table.catch_up(int(self.count))

    def close(self) -> None:
        self.captured.graph = None
        self.rows.close()


class JointModel:
    """One of the models, without its steps; a :class:`~crossrank.training.engine.Member`."""

    def __init__(self, many: JointEngine, number: int) -> None:
        self.many, self.number, self.model = many, number, many.models[number].to(many.device)

    @contextlib.contextmanager
    def using(self, *, averaged: bool) -> Iterator[None]:
        """Inside, the model has its averaged or its raw weights; outside they mean nothing."""
        self._load(averaged=averaged)
        yield

    @torch.no_grad()
    def _load(self, *, averaged: bool) -> None:
        many, table = self.many, self.many.table
        buffer = many.flat.average if averaged and many.flat.average is not None else many.flat.weight
        for name, values in many.flat.parts(buffer).items():
            self.model.get_parameter(name).copy_(values[self.number])
        many.catch_up()
        rows = table.average if averaged and many.rule.decay else table.weight
        self.model.embedding.tables[0].copy_(rows[self._mine])

    @property
    def _mine(self) -> slice:
        return slice(self.number * self.many.rows_of_model, (self.number + 1) * self.many.rows_of_model)

    def placed(self, split: Split) -> Split:
        return EvaluatedSplit(split, self.many.device)

    def drop(self, factor: float) -> None:
        self.many.rule.drop(factor, model=self.number)

    def state(self) -> dict[str, Tensor]:
        """As of a model that is trained alone, so that it can go on alone."""
        many, steps = self.many, int(self.many.count)
        state = {"steps": torch.tensor(steps)} | {f"step.{name}": torch.tensor(float(steps)) for name in many.names}
        for key, buffer in many.flat.buffers().items():
            state |= {f"{key}.{name}": values[self.number] for name, values in many.flat.parts(buffer).items()}
        table = {"rows": many.table.weight, "state": many.table.state, "last": many.table.last}
        return state | {f"{key}.embedding.weight.0": value[self._mine] for key, value in table.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        raise ConfigError("A model that was trained with others is resumed alone.")

    def close(self) -> None:
        self.model.cpu()
