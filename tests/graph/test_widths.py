import torch

from sagann.graph.widths import id_dtype


def test_ids_widen_at_two_to_the_31():
    assert id_dtype(0) == torch.int32
    assert id_dtype(2**31 - 1) == torch.int32
    assert id_dtype(2**31) == torch.int64
