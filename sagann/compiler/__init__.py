"""The compiler: from a layer's two functions to a layer program.

trace -> classify -> typed, split_concat, commute (each where it applies) -> hoist -> lower -> share ->
fuse_rows; the backward of the edges, and of rows that are fused, by vjp.

References:
    Ma et al., NGra, 2018, Sec. 3.2-3.3.
"""

from sagann.compiler.compile import CallForm, CompilerOptions, compile_layer
from sagann.compiler.program import EdgeWork, LayerProgram
from sagann.compiler.trace import TraceError

__all__ = ["CallForm", "CompilerOptions", "EdgeWork", "LayerProgram", "TraceError", "compile_layer"]
