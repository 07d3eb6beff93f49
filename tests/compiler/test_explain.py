import torch
import torch.nn.functional as F

from sagann.compiler import CallForm, CompilerOptions, compile_layer
from sagann.compiler.explain import explain
from sagann.nn import GCN, GatedGCN
from tests.compiler.layers import Layer


def text(layer: torch.nn.Module, dim: int, **settings: object) -> str:
    data = {"": torch.rand(5)} if layer.edge_data else {}
    form = CallForm(vertices={"": torch.randn(9, dim)}, edges=data, options=CompilerOptions(), **settings)
    return explain(compile_layer(layer, form))


def test_a_fused_layer_in_words() -> None:
    said = text(GatedGCN(4, 3), 4)
    assert said.startswith("GatedGCN: sum over the edges\n  48 bytes per edge; ")
    assert "  moved off the edges: linear, once per source  [layers.py:" in said
    assert "  once per destination: linear\n" in said
    assert "    sigmoid_1 = sigmoid(add_0) [4]\n" in said
    assert said.endswith("  then per destination: linear")


def test_what_is_kept_and_what_commutes_is_said() -> None:
    assert "cached: gathers only constant features" in text(GCN(8, 4), 8, is_constant=True)
    assert "commuted: linear map before the gather: 4 features per edge instead of 8  [layers.py:" in text(
        GCN(8, 4), 8
    )


def test_a_linear_map_too_large_to_fuse_is_named() -> None:
    layer = Layer(lambda m, e: F.linear(torch.relu(e.src + e.dst), m.large))
    layer.large = torch.nn.Parameter(torch.rand(96, 128))
    said = text(layer, 128)
    assert "NOT fused: a linear map from 128 to 96 features on the edges has 12288 entries; up to 8192 " in said
    assert "are fused (test_explain.py:" in said


def test_why_a_layer_is_not_fused_is_said() -> None:
    said = text(Layer(lambda m, e: torch.cumsum(torch.relu(e.src + e.dst), -1)), 4)
    assert "NOT fused: operator aten.cumsum.default has no fused form (test_explain.py:" in said
    assert "  per edge: add, relu, cumsum\n" in said


def test_parameters_are_no_tensors_of_an_edge() -> None:
    layer = Layer(lambda m, e: F.linear(torch.relu(e.src + e.dst), m.large))
    layer.large = torch.nn.Parameter(torch.rand(512, 512))
    # Both rows, their sum, what is left of it, and what that is mapped to.
    assert f"{5 * 512 * 4} bytes of tensors in its tile" in text(layer, 512)
    layer = Layer(lambda m, e: e.dst * m.table(e.data.long()))
    layer.table = torch.nn.Embedding(100_000, 4)
    # The data and the number made of it, the destination's row, the table's, their product.
    assert f"{4 + 8 + 3 * 4 * 4} bytes of tensors in its tile" in text(layer, 4)
