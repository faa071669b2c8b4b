"""DCN-V2 as one would write it by hand: an nn.Embedding for each feature, dense Adam."""

from __future__ import annotations

import torch
from job import Clock, Job, fused_adam
from torch import Tensor, nn


class DCNV2(nn.Module):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, job.embedding_dim) for size in job.vocab_sizes)
        self.cross = nn.ModuleList(nn.Linear(job.input_dim, job.input_dim) for _ in range(job.num_layers))
        layers: list[nn.Module] = []
        width = job.input_dim
        for size in job.deep_sizes:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        vectors = [embedding(column) for embedding, column in zip(self.embeddings, ids.unbind(1), strict=True)]
        x0 = xl = torch.cat([*vectors, numbers], dim=1)  # (B, D)
        for layer in self.cross:
            xl = x0 * layer(xl) + xl
        return self.deep(xl)[:, 0]


def main() -> None:
    job = Job.read()
    ids, numbers, labels = (torch.from_numpy(job.array(name)) for name in ("categorical", "numeric", "labels"))
    ids = ids.long()
    model = DCNV2(job)
    optimizer = fused_adam(model)
    clock = Clock(job, optimizer)
    for rows in torch.randperm(len(ids)).split(job.batch_size):
        with torch.autocast("cpu", torch.bfloat16, enabled=job.bfloat16):
            logits = model(ids[rows], numbers[rows]).float()
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    clock.report()


if __name__ == "__main__":
    main()
