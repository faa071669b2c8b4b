"""Training on a GPU: captured steps, fused kernels with plain references, many models as one program."""
