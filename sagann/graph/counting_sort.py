import torch
from torch import Tensor


def sort_by_key(keys: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """placeholder"""
    order = torch.sort(keys, stable=True).indices
    counts = torch.bincount(keys, minlength=num_keys)
    indptr = torch.zeros(num_keys + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=indptr[1:])
    return indptr, order
