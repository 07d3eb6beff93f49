import itertools

from hypothesis import given, strategies as st

from sagann.compiler.min_cut import min_cut


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, list[int]], set[int]]:
    size = draw(st.integers(1, 7))
    costs = {node: draw(st.integers(0, 5)) for node in range(size)}
    operands = {node: draw(st.lists(st.integers(0, node - 1), unique=True)) if node else [] for node in range(size)}
    return costs, operands, draw(st.sets(st.integers(0, size - 1), min_size=1))


def separates(chosen: set[int], operands: dict[int, list[int]], readers: set[int]) -> bool:
    pending = [node for node in readers if node not in chosen]
    while pending:
        node = pending.pop()
        if not operands[node]:
            return False
        pending += [operand for operand in operands[node] if operand not in chosen]
    return True


@given(graphs())
def test_the_cut_is_the_cheapest(graph: tuple[dict[int, int], dict[int, list[int]], set[int]]) -> None:
    costs, operands, readers = graph
    chosen = min_cut(costs, operands, readers)
    subsets = itertools.chain.from_iterable(itertools.combinations(costs, count) for count in range(len(costs) + 1))
    cheapest = min(sum(costs[n] for n in subset) for subset in subsets if separates(set(subset), operands, readers))
    assert separates(chosen, operands, readers)
    assert sum(costs[node] for node in chosen) == cheapest


def test_of_equal_cuts_the_one_near_the_reader_is_taken() -> None:
    assert min_cut({"x": 4, "y": 4}, {"x": [], "y": ["x"]}, {"y"}) == {"y"}
