"""Training on several processes: sharded embedding tables through TorchRec, everything else data-parallel.

============  ========================================================================================================
file          what it does
============  ========================================================================================================
world         who takes part: ranks, the process group, what is exchanged between them
tables        an embedding layer whose tables TorchRec places, and the rows that this process holds
placement     TorchRec's planner, and what a person decides instead
engine        the steps: :class:`~crossrank.training.engine.Engine` over all processes
checkpoint    torch.distributed.checkpoint: written by all, complete or absent, read by any number of processes
train         from a dataset to a run folder, as :func:`crossrank.training.train` makes it
launch        ``crossrank train … --workers N``
on_ray        the same with ``--engine ray``
============  ========================================================================================================

What TorchRec does: it plans where tables lie, sends ids to the processes that hold their rows, and brings the vectors
back (and the gradient the other way). What it does not do here is the update: its fused Adam moves the rows of a batch
alone, which is another rule than :mod:`crossrank.training.rule`. So a shard is a
:class:`~crossrank.training.lazy.LazyTable`, put in as TorchRec's ``customized_kernel``, and one, two or four processes
end with the same weights.
"""
