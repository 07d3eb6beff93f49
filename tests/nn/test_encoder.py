import pytest
import torch

from sagann.errors import InputError
from sagann.nn import EmbeddingEncoder, LinearEncoder
from tests.tolerances import assert_close


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
def test_a_linear_encoder_of_sparse_rows_equals_the_dense_one() -> None:
    x = torch.relu(torch.randn(20, 30, dtype=torch.float64) - 1)
    x[3] = 0
    encoder = LinearEncoder(30, 4).double()
    dense, sparse = encoder(x), encoder(x.to_sparse_csr())
    assert_close(sparse, dense)
    upstream = torch.randn_like(dense)
    parameters = list(encoder.parameters())
    for mine, other in zip(
        torch.autograd.grad(sparse, parameters, upstream),
        torch.autograd.grad(dense, parameters, upstream),
        strict=True,
    ):
        assert_close(mine, other)


def test_an_embedding_takes_no_features() -> None:
    encoder = EmbeddingEncoder(5, 2)
    assert encoder(None) is encoder(torch.ones(5, 0)) is encoder.rows
    with pytest.raises(InputError, match="takes no features"):
        encoder(torch.ones(5, 2))
