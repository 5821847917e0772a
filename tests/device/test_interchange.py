"""Tensors that leave the process or its device: NumPy, DLPack, pickles, files, other processes."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

D = "neuron"


def test_numpy_refuses_as_for_any_accelerator():
    x = torch.ones(2, device=D)
    for convert in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.sin(x)):
        with pytest.raises(TypeError, match=r"can't convert neuron:0 .*Use Tensor.cpu\(\)"):
            convert()
    assert x.numpy(force=True).tolist() == [1.0, 1.0]
    assert torch.from_numpy(np.ones(2)).to(D).tolist() == [1.0, 1.0]
    assert torch.tensor(np.ones(2), device=D).device.type == D


def test_dlpack():
    x = torch.randn(3, 4, device=D)[1:].t()
    y = torch.from_dlpack(x)
    assert y.data_ptr() == x.data_ptr() and y.device == x.device and y.stride() == x.stride()
    y.zero_()
    assert x.abs().sum() == 0
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert torch.from_dlpack(x, device="cpu").device.type == "cpu"
    assert torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).equal(x)
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4, device=D)[1:, ::2],
        lambda: torch.randn(3, dtype=torch.complex64, device=D).conj(),
        lambda: nn.Parameter(torch.randn(3, device=D)),
        lambda: torch.randn(3, device=D).bfloat16(),
        lambda: torch.randn(3, device=D).to(torch.float8_e4m3fn),
        lambda: torch.arange(3, device=D).to(torch.uint16),
    ],
)
def test_copies_keep_everything(make):
    x = make()
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    for y in (copy.deepcopy(x), torch.load(file)):
        assert type(y) is type(x) and y.requires_grad == x.requires_grad
        assert (y.device, y.dtype, y.stride()) == (x.device, x.dtype, x.stride())
        assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        a, b = (t.detach().cpu().resolve_conj().contiguous() for t in (x, y))
        assert a.view(torch.uint8).equal(b.view(torch.uint8))
    if x.dtype not in (
        torch.float8_e4m3fn,
        torch.uint16,
    ):  # which have no typed storage, on any device
        y = pickle.loads(pickle.dumps(x))
        assert y.device == x.device and y.equal(x) and y.is_conj() == x.is_conj()


@pytest.mark.parametrize(
    ("where", "device"),
    [
        (None, D),
        ("cpu", "cpu"),
        (D, D),
        ("neuron:0", D),
        (torch.device(D), D),
        ({"neuron:0": "cpu"}, "cpu"),
        (lambda storage, location: storage, "cpu"),
        ("meta", "meta"),
    ],
)
def test_load_maps_locations(where, device):
    file = io.BytesIO()
    torch.save(nn.Linear(2, 2, device=D).state_dict(), file)
    file.seek(0)
    assert torch.load(file, map_location=where)["weight"].device.type == device


def test_load_from_mapped_and_old_files(tmp_path):
    state = nn.Linear(2, 2, device=D).state_dict()
    torch.save(state, tmp_path / "new")
    for where in ("cpu", D, None):
        got = torch.load(tmp_path / "new", mmap=True, map_location=where)
        assert got["weight"].to(D).equal(state["weight"])
    torch.save(state, tmp_path / "old", _use_new_zipfile_serialization=False)
    assert torch.load(tmp_path / "old")["weight"].equal(state["weight"])


def test_other_processes_are_refused_with_advice():
    from multiprocessing.reduction import ForkingPickler

    x = torch.ones(2, device=D)
    for thing in (x, nn.Parameter(x), x.untyped_storage(), {"x": [x]}):
        with pytest.raises(
            RuntimeError, match=r"cannot be sent to another process.*tensor\.cpu\(\)"
        ):
            ForkingPickler.dumps(thing)
    assert ForkingPickler.dumps(torch.ones(2)) is not None
    assert x.share_memory_() is x  # nothing to do, as with CUDA


def test_queues_take_cpu_copies(run_child):
    out = run_child(
        """
        import torch, torch.multiprocessing as mp
        x = torch.ones(3, device="neuron")
        q = mp.get_context("spawn").Queue()
        q.put(x.cpu())
        print(q.get().to("neuron").sum().item())
        """
    )
    assert out.strip() == "3.0"
