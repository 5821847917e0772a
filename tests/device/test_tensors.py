import copy
import io
import pickle

import pytest
import torch
from torch import nn

D = "neuron"


@pytest.fixture
def x():
    return torch.randn(4, 5, device=D)


def test_views_share_memory(x):
    for view in (
        x.view(20),
        x.t(),
        x[1:],
        x.unfold(1, 2, 1),
        x.unbind(0)[2],
        x.split(2)[1],
        x.view(torch.int32),
    ):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    x.split(2)[1].zero_()
    assert x[2:].abs().sum() == 0
    z = torch.view_as_real(torch.zeros(3, dtype=torch.complex64, device=D))
    assert z.shape == (3, 2)
    assert (
        torch.as_strided(x, (2, 2), (1, 5), 3)
        .cpu()
        .equal(torch.as_strided(x.cpu(), (2, 2), (1, 5), 3))
    )


def test_out_and_in_place_return_the_argument(x):
    out = torch.empty(0, device=D)
    assert torch.add(x, x, out=out) is out
    assert out.equal(x + x)
    y = x.clone()
    assert y.add_(1) is y
    assert y.t_() is y and y.shape == (5, 4)
    values, indices = torch.empty(0, device=D), torch.empty(0, dtype=torch.long, device=D)
    got = torch.max(x, 0, out=(values, indices))
    assert got[0] is values and got[1] is indices and values.shape == (5,)
    assert x.contiguous() is x
    assert x.expand(4, 5).data_ptr() == x.data_ptr()


def test_out_in_a_larger_storage_grows_it():
    base = torch.zeros(2, device=D)
    view = base[:]
    torch.arange(6, out=view, dtype=torch.float32)
    assert view.tolist() == [0, 1, 2, 3, 4, 5]
    assert base.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()
    assert base.untyped_storage().nbytes() == 24


def test_resize_and_set(x):
    y = torch.arange(4, device=D)
    y.resize_(8)
    assert y[:4].tolist() == [0, 1, 2, 3] and y.shape == (8,)
    z = torch.empty(0, device=D).set_(x)
    assert z.data_ptr() == x.data_ptr() and z.shape == x.shape
    z.set_(x.untyped_storage(), 5, (5,), (1,))
    assert z.equal(x[1])
    assert z.set_().numel() == 0
    with pytest.raises(RuntimeError):
        z.set_(torch.randn(3))


def test_storage_resize_keeps_what_fits(x):
    want = x.cpu()
    storage = x.untyped_storage()
    n = storage.nbytes()
    storage.resize_(2 * n)
    assert x.cpu().equal(want) and (x + 0).cpu().equal(want)
    storage.resize_(0)
    assert storage.nbytes() == 0 and storage.data_ptr() == 0
    storage.resize_(n)
    x.copy_(want)
    assert x.cpu().equal(want)
    assert torch.UntypedStorage(16, device=D).device.type == D


@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies(x, non_blocking):
    c = x.cpu()
    assert torch.empty(4, 5, dtype=torch.float64).copy_(x, non_blocking).equal(c.double())
    assert (
        torch.empty(4, 5, dtype=torch.bfloat16, device=D)
        .copy_(c, non_blocking)
        .cpu()
        .equal(c.bfloat16())
    )
    assert torch.empty(5, 4, device=D).t().copy_(x, non_blocking).equal(x)
    assert torch.empty(4, 5, device=D).copy_(c[0], non_blocking).cpu().equal(c[0].expand(4, 5))
    assert x.to("neuron:1", non_blocking=non_blocking).device.index == 1
    assert x.to("neuron:1").to("neuron:0").equal(x)
    assert x.to("meta").device.type == "meta"
    with pytest.raises(RuntimeError):
        torch.empty(3, device=D).copy_(c)


def test_conj_and_neg_bits():
    c = torch.randn(3, dtype=torch.complex64)
    n = c.to(D)
    assert n.conj().is_conj() and n.conj().cpu().equal(c.conj())
    assert (n.conj() + 1).cpu().equal(c.conj() + 1)
    assert n.conj().imag.is_neg() and n.conj().imag.cpu().equal(c.conj().imag)
    assert (n.conj() @ n).cpu().equal(c.conj() @ c)
    assert c.conj().to(D).cpu().equal(c.conj())
    z = n.conj().clone()
    z.conj().copy_(n)
    assert z.cpu().equal(c.conj())
    w = torch.randn(3, dtype=torch.complex64, device=D, requires_grad=True)
    (torch.view_as_real(w * w.conj())).sum().backward()
    assert w.grad is not None


def test_devices_do_not_mix(x):
    for f in (
        lambda: x + torch.randn(4, 5),
        lambda: torch.cat([x, torch.randn(4, 5)]),
        lambda: x @ torch.randn(5, 5),
    ):
        with pytest.raises(
            RuntimeError, match=r"Expected all tensors to be on the same device.*neuron:0"
        ):
            f()
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.randn(4, 5, device="neuron:1")
    with pytest.raises(RuntimeError, match="same device"):
        torch.tensor(1.0).add_(x.sum())
    assert (torch.tensor(2.0) * x).device == x.device  # CPU scalars mix, as with CUDA
    assert x[torch.tensor([0, 2])].equal(x[[0, 2]])  # and so do CPU indices


def test_serialization(x):
    def roundtrip(obj, **kwargs):
        file = io.BytesIO()
        torch.save(obj, file)
        file.seek(0)
        return torch.load(file, **kwargs)

    assert roundtrip(x).device == x.device and roundtrip(x).equal(x)
    assert roundtrip(x, map_location="cpu").equal(x.cpu())
    assert roundtrip(x.cpu(), map_location=D).device.type == D
    a, b = roundtrip([x, x[1]])
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    model = nn.Linear(3, 3).to(D)
    assert roundtrip(model.state_dict())["weight"].equal(model.weight)
    assert pickle.loads(pickle.dumps(x)).equal(x)
    assert copy.deepcopy(model).weight.equal(model.weight)


def test_dlpack(x):
    y = torch.from_dlpack(x)
    assert y.data_ptr() == x.data_ptr() and y.device == x.device


def test_pinned_memory():
    t = torch.randn(8)
    assert not t.is_pinned()
    p = t.pin_memory()
    assert p.is_pinned() and p.equal(t) and p.device.type == "cpu"
    assert torch.empty(3, pin_memory=True).is_pinned()


def test_methods_and_names(x):
    assert x.is_neuron and torch.zeros(2).neuron().device.type == D
    assert nn.Linear(2, 2).neuron().weight.is_neuron
    assert x.cpu().untyped_storage().neuron().device.type == D
    assert str(torch.accelerator.current_accelerator()) == D
    assert "device='neuron:0'" in repr(x)
    assert x.tolist() == x.cpu().tolist()
    with pytest.raises(TypeError):
        x.numpy()


def test_sparse_coo():
    i = torch.tensor([[0, 1, 1], [1, 0, 0]])
    v = torch.tensor([1.0, 2.0, 3.0])
    c = torch.sparse_coo_tensor(i, v, (2, 2), check_invariants=False)
    s = c.to(D)
    assert s.is_sparse and s.device.type == D and not s.is_coalesced()
    assert s.coalesce().values().tolist() == [1.0, 5.0]
    assert s.to_dense().cpu().equal(c.to_dense())
    assert (s + s).to_dense().cpu().equal((c + c).to_dense())
    assert torch.sparse.mm(s, torch.eye(2, device=D)).cpu().equal(c.to_dense())
    s.mul_(2)
    assert s.cpu().to_dense().equal(2 * c.to_dense())
    layer = nn.Embedding(10, 4, sparse=True).to(D)
    layer(torch.tensor([1, 2], device=D)).sum().backward()
    torch.optim.SGD(layer.parameters(), 0.1).step()


def test_missing_kernels_say_so(x):
    lib = torch.library.Library("neuron_test", "DEF")
    lib.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="no CPU kernel for neuron_test::nothing"):
        torch.ops.neuron_test.nothing(x)
    lib.impl("nothing", lambda t: t + 1, "CPU")
    assert torch.ops.neuron_test.nothing(x).equal(x + 1)
    with pytest.raises(NotImplementedError, match="no sparse compressed CPU kernel for aten::argmax"):
        x.to_sparse_csr().argmax()
    with pytest.raises(NotImplementedError, match="no quantized CPU kernel for aten::sin"):
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).sin()


def test_batch_sizes_stay_on_the_cpu():
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 2, 4, device=D), [3, 2])
    assert packed.batch_sizes.device.type == "cpu" and packed.data.device.type == D
    out, _ = nn.LSTM(4, 5).to(D)(packed)
    assert out.data.shape == (5, 5)


def test_function_transforms(x):
    assert torch.vmap(torch.sin)(x).equal(x.sin())
    primal, tangent = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))
    assert primal.equal(x.sin()) and tangent.equal(x.cos())
    assert torch.compile(lambda t: t.sin() + 1, backend="aot_eager")(x).equal(x.sin() + 1)


def test_alias_kept_by_a_kernel_survives_its_tensor():
    kept = []
    lib = torch.library.Library("neuron_keep", "DEF")
    lib.define("keep(Tensor x) -> Tensor")
    lib.impl("keep", lambda t: kept.append(t) or t.clone(), "CPU")
    y = torch.arange(1000, device=D)
    torch.ops.neuron_keep.keep(y)
    del y
    torch.full((1000,), -1, device=D)  # would take the memory if it were free
    assert kept[0].device.type == "cpu" and kept[0].equal(torch.arange(1000))


def test_the_norm_of_a_scalar_in_bfloat16():
    """All its tensors are 0-dim, which have no dtype to report."""
    x = torch.tensor(-3.0, dtype=torch.bfloat16)
    for order in (2, 4, float("inf")):
        norm = torch.linalg.vector_norm(x.to("neuron"), order)
        assert norm.cpu().equal(torch.linalg.vector_norm(x, order))
