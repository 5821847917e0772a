import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_dist import _C

MiB = 1 << 20


def empty(bytes_: int, device: str = "neuron:3") -> torch.Tensor:
    return torch.empty(bytes_, dtype=torch.uint8, device=device)


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    with torch.neuron.device(3):
        torch.neuron.empty_cache()
        torch.neuron.reset_accumulated_memory_stats(3)
        torch.neuron.reset_peak_memory_stats(3)
        yield


def test_counts_follow_tensors():
    before = torch.neuron.memory_allocated()
    a = empty(1000)
    b = empty(3 * MiB)
    rounded = 1024 + 3 * MiB
    assert torch.neuron.memory_allocated() - before == rounded
    assert torch.neuron.memory_reserved() >= torch.neuron.memory_allocated()
    del a, b
    assert torch.neuron.memory_allocated() == before
    assert torch.neuron.max_memory_allocated() == before + rounded
    torch.neuron.reset_peak_memory_stats()
    assert torch.neuron.max_memory_allocated() == before


@pytest.mark.parametrize(
    ("asked", "given_"),
    [
        (1, 256),
        (256, 256),
        (257, 512),
        (4097, 4608),
        (16 * MiB, 16 * MiB),
        (16 * MiB + 1, 16 * MiB + 4096),
    ],
)
def test_size_classes(asked, given_):
    before = torch.neuron.memory_allocated()
    t = empty(asked)
    assert torch.neuron.memory_allocated() - before == given_
    assert t.data_ptr() % 256 == 0


def test_memory_is_reused():
    a = empty(20 * MiB)
    ptr = a.data_ptr()
    del a
    assert empty(20 * MiB).data_ptr() == ptr


def test_free_neighbours_merge():
    parts = [empty(4 * MiB) for _ in range(8)]
    segments = torch.neuron.memory_stats()["segment.all.current"]
    del parts
    whole = empty(15 * MiB)
    assert torch.neuron.memory_stats()["segment.all.current"] == segments
    del whole
    _C._check_heap(3)


def test_empty_cache_returns_segments():
    del_me = empty(64 * MiB)
    del del_me
    assert torch.neuron.memory_reserved() >= 64 * MiB
    torch.neuron.empty_cache()
    assert torch.neuron.memory_reserved() == 0
    assert empty(64 * MiB).sum().item() == 0  # punched pages read as zero


def test_out_of_memory(capacity):
    capacity(100 * MiB)
    keep = empty(40 * MiB)
    cached = empty(50 * MiB)
    del cached
    again = empty(60 * MiB)  # fits only once the cached 50 MiB are given back
    stats = torch.neuron.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0)
    with pytest.raises(
        torch.OutOfMemoryError, match=r"Tried to allocate 2.00 MiB.*trn.*100.00 MiB"
    ):
        empty(2 * MiB)
    assert torch.neuron.memory_stats()["num_ooms"] == 1
    assert torch.neuron.mem_get_info() == (0, 100 * MiB)
    del keep, again
    empty(2 * MiB)
    _C._check_heap(3)


def test_out_of_memory_inside_an_operator(capacity):
    capacity(40 * MiB)
    x = empty(30 * MiB)
    with pytest.raises(torch.OutOfMemoryError):
        x + 1
    assert torch.neuron.memory_allocated() == 30 * MiB


def test_fraction(capacity):
    capacity(100 * MiB)
    torch.neuron.set_per_process_memory_fraction(0.5)
    try:
        assert torch.neuron.get_per_process_memory_fraction() == 0.5
        with pytest.raises(torch.OutOfMemoryError, match="50% of the core's HBM"):
            empty(60 * MiB)
    finally:
        torch.neuron.set_per_process_memory_fraction(1.0)
    with pytest.raises(ValueError, match="fraction"):
        torch.neuron.set_per_process_memory_fraction(1.5)


def test_both_spellings_of_stats():
    t = empty(5000)
    stats = torch.neuron.memory_stats()
    for name in ("active_bytes", "allocated_bytes", "reserved_bytes"):
        assert stats[f"{name}.all.current"] == stats[name]["current"] > 0
        assert stats[f"{name}.all.peak"] == stats[name]["peak"]
    for name in ("num_alloc_retries", "num_ooms", "num_tensor_frees", "allocation_requests"):
        assert isinstance(stats[name], int)
    assert stats["requested_bytes.all.current"] <= stats["allocated_bytes.all.current"]
    assert "neuron:3 memory" in torch.neuron.memory_summary()
    assert torch.neuron.memory.memory_allocated() == torch.accelerator.memory.memory_allocated()
    assert (
        torch.accelerator.memory_stats()["allocated_bytes.all.current"]
        == torch.neuron.memory_allocated()
    )
    del t


def test_operators_allocate_on_the_device():
    x = torch.ones(1 << 20, device="neuron")
    before = torch.neuron.memory_allocated()
    y = x * 2
    assert torch.neuron.memory_allocated() - before == 4 * MiB
    del y


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40 * MiB).flatmap(lambda n: st.sampled_from([n, n // 100, n // 10000])),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
def test_any_sequence_keeps_the_invariants(steps):
    held: dict[int, torch.Tensor] = {}
    for size, slot in steps:
        held.pop(slot, None)
        if size:
            held[slot] = empty(size)
    spans = sorted((t.data_ptr(), t.data_ptr() + t.numel()) for t in held.values())
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    _C._check_heap(3)
    stats = torch.neuron.memory_stats()
    assert stats["allocated_bytes.all.current"] >= sum(t.numel() for t in held.values())
    assert stats["allocated_bytes.all.current"] <= stats["reserved_bytes.all.current"]
    held.clear()
    torch.neuron.empty_cache()
    _C._check_heap(3)
    assert torch.neuron.memory_reserved() == 0
