"""DCN-V2's forward and backward pass, written out for a GPU.

x0 is padded to a width that suits the matrix units: behind its D columns stands one of ones, then zeros. The bias of a
cross layer is the kernel's column beside the ones, so that it costs nothing in either pass; the residual carries the
ones from layer to layer. Kernels are padded with zeros, whose gradient is zero, so they stay zero::

    u_l = [W_l b_l 0] x_l            x_{l+1} = x_0 ⊙ u_l + x_l
    by u_l:  g ⊙ x_0                 by x_0:  g ⊙ u_l (summed over layers) + the last g
    g <- g + (by u_l) W_l

Products of matrices are made in the given type with float32 sums; gradients of kernels are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, cast

import torch
from torch import Tensor

from crossrank.models import Model
from crossrank.models.dcn_v2 import DCNV2
from crossrank.nn import CrossLayer, CrossNetwork
from crossrank.nn.embedding import FeatureEmbedding
from crossrank.nn.linear import Linear
from crossrank.training.cuda import plain
from crossrank.training.cuda.plain import Columns, Gradient, Taken
from crossrank.training.cuda.update import (
    Block,
    DeviceOptimizer,
    FlatWeights,
    SideStream,
    TouchedRows,
    operations,
)
from crossrank.training.lazy import LazyTable
from crossrank.training.loss import Loss
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings

WIDE = 512  # from here on a padded width is a multiple of 32, below of 8: there waste would outweigh alignment


def padded(width: int) -> int:
    multiple = 32 if width >= WIDE else 8
    return -(-width // multiple) * multiple


def is_written_out(model: Model, settings: TrainingSettings) -> bool:
    """Whether :class:`DCNSteps` covers a model: full cross layers in one network, relu, no dropout, no bags.

    No losses of single paths, no pooled pairs.
    """
    if type(model) is not DCNV2 or len(model.cross) != 1 or model.pooled:
        return False
    if settings.tables != "lazy" or settings.heads != "none":
        return False
    embedding = model.embedding
    if embedding.num_multivalent or embedding.dropout or not embedding.num_single:
        return False
    layers = cast(CrossNetwork, model.cross[0]).layers
    if not all(type(one) is CrossLayer and one.residual and one.bias is not None for one in layers):
        return False  # a subclass computes what it says, not what these steps say
    return model.structure == "cross-only" or (model.deep.activation_name == "relu" and not model.deep.dropout)


class _Dense(NamedTuple):
    """A deep layer: what multiplies, what is added, and where their gradients go."""

    kernel: Tensor
    bias: Tensor
    kernel_gradient: Tensor
    bias_gradient: Tensor


class DCNPass:
    """A forward and a backward pass from x0 on, of one DCN-V2 or of several of one shape.

    Args:
        model: one of them; see :func:`is_written_out`.
        loss: what is made small; it needs no groups.
    """

    def __init__(self, model: DCNV2, *, loss: Loss, device: torch.device) -> None:
        self.model, self.loss, self.operations = model, loss, operations(device)
        self.input_dim, self.padded_dim = model.layout.input_dim, padded(model.layout.input_dim + 1)
        self.num_cross = len(cast(CrossNetwork, model.cross[0]).layers)
        self.deep_layers = [] if model.structure == "cross-only" else [cast(Linear, one) for one in model.deep.layers]
        self.products = SideStream(device)

    def blocks(self) -> list[Block]:
        """Each cross layer's kernel and bias in a square, each deep kernel and bias in their own blocks."""
        wide, dim, blocks = self.padded_dim, self.input_dim, []
        for i in range(self.num_cross):
            name = f"cross.0.layers.{i}"
            weight, bias = (slice(dim), slice(dim)), (slice(dim), dim)
            blocks.append(Block((wide, wide), {f"{name}.weight": weight, f"{name}.bias": bias}))
        inside = wide
        for i, layer in enumerate(self.deep_layers):
            rows, columns = layer.weight.shape
            outside = padded(rows)
            blocks.append(Block((outside, inside), {f"deep.layers.{i}.weight": (slice(rows), slice(columns))}))
            blocks.append(Block((outside,), {f"deep.layers.{i}.bias": (slice(rows),)}))
            inside = outside
        return blocks

    def bind(self, flat: FlatWeights) -> None:
        """Use the weights and gradients that lie there, as :meth:`blocks` says; of several models, all at once."""
        used = flat.copy if flat.copy is not None else flat.weight
        weights, gradients = ([flat.block(b, i) for i in range(len(flat.blocks))] for b in (used, flat.gradient))
        self.crosses = list(zip(weights, gradients, strict=True))[: self.num_cross]
        self.deep = [
            _Dense(weights[i], weights[i + 1], gradients[i], gradients[i + 1])
            for i in range(self.num_cross, self.num_cross + 2 * len(self.deep_layers), 2)
        ]
        (weight, bias), (by_weight, by_bias) = (
            (parts["output.weight"][..., 0, :], parts["output.bias"])
            for parts in (flat.parts(flat.weight), flat.parts(flat.gradient))
        )
        crossed = 0 if self.model.structure == "stacked" and self.deep else self.input_dim
        self.cross_output = (weight[..., :crossed], by_weight[..., :crossed]) if crossed else None
        self.deep_output = (weight[..., crossed:], by_weight[..., crossed:]) if self.deep else None
        self.output_bias = bias, by_bias
        # The kernels of the output and of relu serve one model.
        self.heads = self.operations if len(flat.weight) == 1 else plain

    def run(self, x0: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and its gradient by x0; those by the weights are written to their places.

        Shape: x0 (B, L), labels (B,), weights (B,) -> (), (B, L); of several models, each with a leading axis.
        """
        bias, by_bias = self.output_bias
        layers, us = [x0], []
        for kernel, _ in self.crosses:
            us.append(torch.matmul(layers[-1], kernel.mT))
            layers.append(self.operations.cross(x0, us[-1], layers[-1]))
        hidden = [layers[-1] if self.model.structure == "stacked" else x0]
        for layer in self.deep:
            hidden.append(_relu_of_product(hidden[-1], layer.kernel, layer.bias))
        logits = bias
        for part, x in ((self.cross_output, layers[-1]), (self.deep_output, hidden[-1])):
            logits = self.heads.head(x, part[0], logits) if part else logits
        loss, by_logits = self.operations.loss_and_gradient(self.loss, logits, labels, weights)
        torch.sum(by_logits, dim=-1, keepdim=True, out=by_bias)
        return loss, self._backward(by_logits, layers, us, hidden)

    def _backward(self, by_logits: Tensor, layers: list[Tensor], us: list[Tensor], hidden: list[Tensor]) -> Tensor:
        cross_backward, x0, gathered = self.operations.cross_backward, layers[0], None
        read: list[Tensor] = []  # by products beside: they must live until those are done
        g: Tensor = x0  # set below: a model has a deep network, or its crosses reach the output
        if self.cross_output:
            g = self.heads.head_backward(layers[-1], self.cross_output[0], by_logits, self.cross_output[1], None)
        if self.deep_output:
            by_input = self._deep_backward(by_logits, hidden, *self.deep_output, read)
            g, gathered = (by_input, None) if self.model.structure == "stacked" else (g, by_input)
        for number in range(len(us) - 1, -1, -1):
            kernel, gradient = self.crosses[number]
            first = number == 0
            by_u, gathered = cross_backward(g, x0, us[number], gathered, input_dim=self.input_dim, carried=first)
            read.append(by_u)
            with self.products:
                _product(by_u.mT, layers[number], gradient)
            g = gathered if first else g
            g = g.addmm_(by_u, kernel) if g.dim() == 2 else g.baddbmm_(by_u, kernel)
        self.products.join()
        return g

    def _deep_backward(
        self, by_logits: Tensor, hidden: list[Tensor], weight: Tensor, gradient: Tensor, read: list[Tensor]
    ) -> Tensor:
        """The gradient by the deep network's input."""
        by_z = self.heads.head_backward(hidden[-1], weight, by_logits, gradient, self.deep[-1].bias_gradient)
        by_input: Tensor = by_z
        for number in range(len(self.deep) - 1, -1, -1):
            layer = self.deep[number]
            read.append(by_z)
            with self.products:
                _product(by_z.mT, hidden[number], layer.kernel_gradient)
                if number == 0:
                    # Beside the ones stands nothing: the layer has its own bias.
                    layer.kernel_gradient[..., self.input_dim].zero_()
            by_input = torch.matmul(by_z, layer.kernel)
            if number:
                by_z = self.heads.relu_backward(by_input, hidden[number], self.deep[number - 1].bias_gradient)
        return by_input


class DCNSteps:
    """Whole steps of a DCN-V2: gather, forward, loss, backward, update.

    Args:
        model: on its device; see :func:`is_written_out`.
        settings: of the training.
        loss: what is made small.
        rule: of the update.
        bfloat16: make matrix products in bfloat16.
    """

    def __init__(
        self, model: Model, settings: TrainingSettings, *, loss: Loss, rule: UpdateRule, bfloat16: bool
    ) -> None:
        self.model, self.settings = model, settings
        self.type = torch.bfloat16 if bfloat16 else torch.float32
        device = model.embedding.weight.device
        self.network = DCNPass(cast(DCNV2, model), loss=loss, device=device)
        copy = torch.bfloat16 if bfloat16 else None
        self.optimizer = DeviceOptimizer(model, settings, rule=rule, blocks=self.network.blocks(), copy=copy)
        self.network.bind(self.optimizer.flat)
        self.columns = columns_of(model.embedding, device)
        lazy = self.optimizer.lazy.embeddings["embedding.weight"]
        self.rows, self.lookups = lazy.rows, _lookups(model.embedding, lazy.tables)
        self.sorting = SideStream(device)

    @torch.no_grad()
    def step(self, taken: Taken) -> Tensor:
        """One step; returns the loss on the data."""
        ops, ids = self.optimizer.operations, taken.ids
        with self.sorting:  # which the forward pass does not need
            segments = [
                ops.sort_rows((ids[:, features] + offsets).flatten()) for _, features, offsets, _ in self.lookups
            ]
        x0 = ops.embed(ids, taken.numeric, self.rows, self.columns, self.network.padded_dim, self.type)  # (B, L)
        loss, by_x0 = self.network.run(x0, taken.labels, taken.weights)
        self._penalize()
        self.sorting.join()
        self.optimizer.update(
            [
                TouchedRows(table, found, Gradient(by_x0, first, table.width))
                for (table, _, _, first), found in zip(self.lookups, segments, strict=True)
            ]
        )
        return loss

    def _penalize(self) -> None:
        """The gradient 2 λ W of the penalty λ Σ ||W||²."""
        if self.settings.l2:
            for kernel in self.model.kernels():
                kernel.grad.add_(kernel, alpha=2 * self.settings.l2)  # type: ignore[union-attr]


def _relu_of_product(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    if x.dim() == 2:
        return torch._addmm_activation(bias, x, kernel.mT)
    return torch.baddbmm(bias[:, None, :], x, kernel.mT).relu_()


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left @ right in float32, whatever their type."""
    if left.dim() == 3:
        out.copy_(torch.bmm(left, right))
    elif left.dtype == torch.float32:
        torch.mm(left, right, out=out)
    elif left.is_cuda:
        torch.ops.aten.mm.dtype_out(left, right, torch.float32, out=out)
    else:
        torch.mm(left.float(), right.float(), out=out)


def columns_of(embedding: FeatureEmbedding, device: torch.device) -> Columns:
    """Where each column of x0 lies in the flat table."""
    columns = []
    tables = dict(zip(dict.fromkeys(embedding.embedding_dims), embedding.tables, strict=True))
    before = dict(zip(tables, accumulate((len(table) for table in tables.values()), initial=0), strict=False))
    for i, dim in enumerate(embedding.embedding_dims):
        base = embedding.table(i).storage_offset() - embedding.weight.storage_offset()
        first_row = before[dim] + (embedding.table(i).storage_offset() - tables[dim].storage_offset()) // dim
        columns += [(i, dim, base + j, j, first_row) for j in range(dim)]
    return Columns(*torch.tensor(columns, dtype=torch.int64, device=device).T.contiguous())


def _lookups(
    embedding: FeatureEmbedding, tables: Sequence[LazyTable]
) -> list[tuple[LazyTable, Tensor | slice, Tensor, Tensor]]:
    """For each table: which features read it, what makes their ids its rows, and their first columns in x0."""
    lookups = []
    dims = embedding.embedding_dims
    starts = [sum(dims[:i]) for i in range(len(dims))]
    for table, width in zip(tables, dict.fromkeys(dims), strict=True):
        features = [i for i, dim in enumerate(dims) if dim == width]
        sizes = [embedding.vocab_sizes[i] for i in features]
        offsets = torch.tensor([sum(sizes[:i]) for i in range(len(sizes))], dtype=torch.int32)
        first = torch.tensor([starts[i] for i in features])
        everything = len(features) == len(dims)
        device = table.weight.device
        chosen = slice(None) if everything else torch.tensor(features, device=device)
        lookups.append((table, chosen, offsets.to(device), first.to(device)))
    return lookups
