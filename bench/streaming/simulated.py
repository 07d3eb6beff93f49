"""Streamed epochs on a device, simulated; not measured: ``python -m bench.streaming.simulated``. Prints this page.

Epochs within 1/8 of what P = 1 takes are planned for the graphs, and simulated at the rates of `sagann/machines/h100.toml`, as if recorded. Two
layers, hidden 128, GAT with 8 heads, no dropout, loss folded, all else in the host's memory. *In* and *out* are bytes over the rate, without the
4 us that a copy takes to begin; *times* is the epoch less 1 ms, over the longest of in, out and work.
"""

from __future__ import annotations

from bench.epochs.graphs import graph_of, stored_graph
from bench.pages import head, mebibytes, row
from bench.streaming.worker import SHARE
from sagann.graph import Graph
from sagann.machines import published_machine
from sagann.nn import ModelConfig, build_model
from sagann.plan.simulate import copy_rates
from sagann.plan.steps import DEVICE, UNLIMITED, Step
from sagann.plan.work import StepWork
from sagann.runtime.streaming.stream import foretell_devices

MACHINE = published_machine("h100")
CASES = {"reddit-small": ["gcn", "gat", "ggnn", "gated-gcn"], "reddit-middle": ["gcn", "gated-gcn"]}
COLUMNS = "dataset | model | P | steps | copies | loaded MiB | in ms | out ms | work ms | epoch ms | times"


def main() -> None:
    print(f"# {__doc__}\n{head(COLUMNS, words=('model',))}", flush=True)
    found: dict[float, str] = {}
    for dataset, models in CASES.items():
        graph = graph_of(stored_graph(dataset))
        for model in models:
            *shown, times = cells(model, graph)
            print(row([dataset, model, *shown, times]), flush=True)
            found[float(times)] = f"{model} on {dataset}"
    print(
        f"\nSimulated at 55 GB/s each way, not measured: a recorded epoch streamed within 1/8 takes at most {max(found)} x max(loaded / rate,\n"
        f"stored / rate, work) + 1 ms. {found[max(found)]} takes longest (`bench.streaming.simulated`)."
    )


def cells(name: str, graph: Graph) -> list[str]:
    model = build_model(ModelConfig(model=name, layers=2, hidden=128, heads=8, dropout=0.0), graph)
    graph, budget_bytes = model.prepare(graph), UNLIMITED
    for _ in range(2):
        # At first without a budget.
        (found,) = foretell_devices(model, graph, budget_bytes=budget_bytes, machine=MACHINE, devices=[DEVICE])
        budget_bytes = found.planned.plan.peak_bytes // SHARE
    plan, work, rates = found.planned.plan, StepWork(found.planned.schedule), copy_rates(MACHINE, "memory")
    steps = [each for each in plan.operations if isinstance(each, Step)]
    work_s = sum(work.of(each).seconds(MACHINE) for each in steps)
    busy_s = plan.loaded_bytes / rates["load"], plan.stored_bytes / rates["store"], work_s
    copies = sum(each.kind in ("load", "store") for each in plan.operations)
    shown = [mebibytes(plan.loaded_bytes, ".1f"), *(f"{1e3 * each:.2f}" for each in (*busy_s, found.seconds))]
    times = (found.seconds - 1e-3) / max(busy_s)
    return [f"{plan.num_intervals}", f"{len(steps)}", f"{copies}", *shown, f"{times:.3f}"]


if __name__ == "__main__":
    main()
