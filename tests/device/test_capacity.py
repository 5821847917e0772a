"""What does not fit: the message, the layer, and that the host's memory is not spent on finding out."""

import gc
import re

import pytest
import torch
from torch import nn

MiB = 1 << 20
GiB = 1 << 30
D = "neuron"


@pytest.fixture(autouse=True)
def own_device():
    """A device that no other test uses: capacities count everything on it."""
    gc.collect()
    with torch.neuron.device(5):
        torch.neuron.empty_cache()
        assert torch.neuron.memory_reserved() == 0
        yield


def empty(bytes_):
    return torch.empty(bytes_, dtype=torch.uint8, device=D)


class Layers(nn.Module):
    def __init__(self, layers, width, device=None):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(width, width, bias=False, device=device) for _ in range(layers)
        )


def test_the_message_has_what_one_needs_to_know(capacity):
    capacity(100 * MiB)
    a = empty(40 * MiB)
    b = torch.ones(24 * MiB, dtype=torch.uint8, device=D)
    c = b + b
    with pytest.raises(torch.OutOfMemoryError) as raised:
        empty(50 * MiB)
    text = str(raised.value)
    assert "neuron:5 out of memory. Tried to allocate 50.00 MiB" in text
    assert re.search(r"of which \d+\.\d+ MiB is free", text)
    assert re.search(r"is reserved but unallocated .*its largest free block is", text)
    assert "40.00 MiB by aten::empty, 24.00 MiB by aten::" in text
    assert "24.00 MiB by aten::add" in text
    del a, b, c


def test_at_most_five_allocations_are_named(capacity):
    capacity(64 * MiB)
    held = [empty(n * MiB) for n in range(1, 9)]
    with pytest.raises(torch.OutOfMemoryError) as raised:
        empty(60 * MiB)
    largest = str(raised.value).split("largest live allocations: ")[1]
    assert re.findall(r"(\d)\.00 MiB by", largest) == ["8", "7", "6", "5", "4"]
    del held


def test_fragmentation():
    parts = [empty(4 * MiB) for _ in range(8)]  # one segment of 32 MiB
    assert torch.neuron.memory.fragmentation() == 0
    del parts[::2]
    # Four holes of 4 MiB: the largest is a quarter of what is free.
    assert torch.neuron.memory.fragmentation() == 0.75
    assert re.search(
        r"Free in the cache: .*largest block .*fragmentation \d+%", torch.neuron.memory_summary()
    )
    stats = torch.neuron.memory_stats()
    assert stats["inactive_split_bytes.all.current"] >= 16 * MiB
    parts.clear()
    torch.neuron.empty_cache()


def test_a_model_raises_at_the_layer_that_does_not_fit(capacity):
    layer = 8 * MiB
    capacity(5 * layer + MiB)
    made = []

    class Counted(nn.Linear):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    with pytest.raises(torch.OutOfMemoryError), torch.device(D):
        for _ in range(10):
            Counted(1024, 2048, bias=False)
    assert len(made) == 5


def test_24_gib_are_refused_without_touching_them(run_child):
    """The product's real capacity: 7 layers of 4 GiB, on a host that could not hold six of them."""
    out = run_child(
        """
        import re, torch
        from tests.device.test_capacity import Layers
        model = Layers(7, 32768, device="meta")
        try:
            model.to_empty(device="neuron")
        except torch.OutOfMemoryError as error:
            print(error)
        print(len([p for p in model.parameters() if p.device.type == "neuron"]))
        print(torch.neuron.memory_allocated() >> 30, torch.neuron.memory_reserved() >> 30)
        # Not getrusage(): its peak begins with that of the process that started this one.
        status = open("/proc/self/status").read()
        print(int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]) >> 20)
        """
    )
    message, layers, counts, host_gib = out.splitlines()
    assert "Tried to allocate 4.00 GiB. One core of trn2.48xlarge (LNC 2) has 24.00 GiB" in message
    assert message.count("4.00 GiB by aten::empty") == 5
    assert (layers, counts, host_gib) == ("6", "24 24", "0")


def test_accelerator_memory_shows_the_same():
    held = empty(5 * MiB)
    accelerator = torch.accelerator.memory
    assert accelerator.memory_allocated() == torch.neuron.memory_allocated()
    assert accelerator.max_memory_allocated() == torch.neuron.max_memory_allocated()
    assert accelerator.memory_reserved() == torch.neuron.memory_reserved()
    assert accelerator.max_memory_reserved() == torch.neuron.max_memory_reserved()
    assert accelerator.get_memory_info() == torch.neuron.mem_get_info()
    stats, flat = accelerator.memory_stats(), torch.neuron.memory_stats()
    shared = stats.keys() & flat.keys()
    assert {"active_bytes.all.peak", "reserved_bytes.all.peak", "num_ooms"} <= shared
    assert all(stats[key] == flat[key] for key in shared)
    del held
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    accelerator.empty_cache()
    assert torch.neuron.memory_stats()["num_ooms"] == 0
