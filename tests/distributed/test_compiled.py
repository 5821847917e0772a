"""Collectives in the middle of a program that torch.compile runs."""

import pytest
import torch.distributed as dist

from neuron_dist.testing import run_ranks


def untraced_reductions(device):
    """A collective between two compiled pieces; returns its result and how many pieces were compiled."""
    import torch._dynamo

    compiled = []

    def compiler(graph, inputs):
        compiled.append(graph)
        return graph

    group = dist.group.WORLD._get_backend(torch.device(device))

    def program(x):
        y = x * 2
        torch._dynamo.graph_break()
        group.allreduce([y]).wait()
        return y + 1

    result = torch.compile(program, backend=compiler)(torch.ones(70_000, device=device))
    return result.cpu()[0].item(), len(compiled)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_what_plans_a_collective_is_not_compiled(device):
    assert run_ranks(2, untraced_reductions, device, timeout=280) == [(5.0, 2)] * 2
