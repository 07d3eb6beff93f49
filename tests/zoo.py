"""The models of the zoo whose message programs differ.

A test of what runs programs takes these. The other models have the program of one of them, with other maps at the vertices: commnet and
gin that of sage, residual-gcn and sgc that of gcn, edgeconv that of maxpool-gcn, gatv2, transformer and gine those of gat and gated-gcn.
"""

DISTINCT = ("gcn", "sage", "gat", "ggnn", "maxpool-gcn", "gated-gcn", "pna", "rgcn", "appnp")
"Names of models with different message programs."
