"""What was compiled in this process: ``torch.neuron.get_dynamo_metrics()``."""

from __future__ import annotations

import threading
from typing import Any, TypedDict

__all__ = ["GraphMetrics", "add", "read", "reset"]


class GraphMetrics(TypedDict):
    """One graph that was compiled: a forward, a backward, or an inference graph."""

    graph_id: int
    """Number of the function's graph in this process; its forward and backward share it."""
    graph_name: str
    """``<model_name or graph_ID>.<forward | backward | inference>``, and a number if that was there."""
    node_count: int
    """Operators in it."""
    has_collectives: bool
    """Whether a functional collective is among them."""
    compile_time_s: float
    """From the backend's call until this graph was ready, in seconds of the host."""


_lock = threading.Lock()
_graphs: dict[str, GraphMetrics] = {}
_next_id = 0


def next_id() -> int:
    """The number of the next function's graph."""
    global _next_id
    with _lock:
        _next_id += 1
        return _next_id - 1


def add(graph: GraphMetrics) -> None:
    """Keeps ``graph`` under its name, made unique."""
    with _lock:
        name, more = graph["graph_name"], 1
        while graph["graph_name"] in _graphs:
            graph["graph_name"] = f"{name}.{more}"
            more += 1
        _graphs[graph["graph_name"]] = graph


def read() -> dict[str, Any]:
    """Name -> :class:`GraphMetrics`, in the order of compilation."""
    with _lock:
        return {name: dict(graph) for name, graph in _graphs.items()}


def reset() -> None:
    """Forgets all graphs, and begins counting anew."""
    global _next_id
    with _lock:
        _graphs.clear()
        _next_id = 0
