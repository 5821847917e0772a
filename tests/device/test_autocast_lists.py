"""torch's own lists of what CUDA's autocast does to each operator, run on the device."""

import unittest

import pytest
import torch
from torch.testing._internal.autocast_test_lists import AutocastTestLists, TestAutocast

D = "neuron"
torch.manual_seed(0)
LISTS = AutocastTestLists("cpu")
"""Only for the operators' names: importing a test must not touch the device."""

# list -> (what it runs as, what comes out; None: the same, where operators live)
WANTED = {
    "torch_fp16": (torch.float16, None, torch),
    "torch_fp32": (torch.float32, None, torch),
    "torch_need_autocast_promote": (torch.float32, None, torch),
    "torch_expect_builtin_promote": (torch.float32, "listed", torch),
    "methods_expect_builtin_promote": (torch.float32, "listed", None),
    "methods_fp16": (torch.float16, None, None),
    "methods_fp32": (torch.float32, None, None),
    "nn_fp16": (torch.float16, None, torch._C._nn),
    "nn_fp32": (torch.float32, None, torch._C._nn),
    "linalg_fp16": (torch.float16, None, torch._C._linalg),
}
CUDNN = ("cudnn_convolution", "cudnn_convolution_transpose")
EINSUM = ("einsum",)  # listed with a string among its arguments, which torch's helper does not take
CASES = [
    (name, place)
    for name in WANTED
    for place, case in enumerate(getattr(LISTS, name))
    if case[0] not in CUDNN + EINSUM
]


class _Checks(TestAutocast):
    def runTest(self):
        raise unittest.SkipTest("used for its helpers")


del TestAutocast  # pytest would collect it
_Checks.__test__ = False


@pytest.fixture(scope="module")
def lists():
    torch.manual_seed(0)
    return AutocastTestLists(D)


def test_no_list_is_left_out():
    known = {name for name, value in vars(LISTS).items() if isinstance(value, list)}
    assert known == {*WANTED, "banned"}


@pytest.mark.parametrize(
    ("name", "place"), CASES, ids=[f"{n}-{getattr(LISTS, n)[p][0]}-{p}" for n, p in CASES]
)
def test_like_cuda(lists, name, place):
    case = getattr(lists, name)[place]
    runs_as, comes_out, module = WANTED[name]
    op, args = case[:2]
    kwargs = case[2] if len(case) > 2 and isinstance(case[2], dict) else {}
    if comes_out == "listed":
        out, kwargs = case[2], {}
    else:
        out = None
    _Checks()._run_autocast_outofplace(
        op,
        args,
        runs_as,
        D,
        out_type=out,
        module=module,
        add_kwargs=kwargs,
        amp_dtype=torch.float16,
    )


def test_banned(lists):
    for op, args, module in lists.banned:
        with (
            torch.autocast(D, dtype=torch.float16),
            pytest.raises(RuntimeError, match="unsafe to autocast"),
        ):
            getattr(module, op)(*args)


def test_bfloat16_runs_the_same_operators(lists):
    for op, args in [case[:2] for case in lists.torch_fp16 if case[0] not in CUDNN + EINSUM]:
        with torch.autocast(D, dtype=torch.bfloat16):
            out = getattr(torch, op)(*args)
        first = out[0] if isinstance(out, tuple) else out
        assert first.dtype == torch.bfloat16, op


def test_einsum():
    a, b = torch.randn(2, 3, 4, 5, device=D), torch.randn(2, 6, 4, 5, device=D)
    with torch.autocast(D, dtype=torch.float16):
        assert torch.einsum("bkhd,bqhd->bqkh", a, b).dtype == torch.float16


def test_cache_and_nesting():
    weight = torch.nn.Parameter(torch.randn(4, 4, device=D))
    x = torch.randn(4, 4, device=D)
    with torch.autocast(D, dtype=torch.bfloat16):
        assert (x @ weight).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (x @ weight).dtype == torch.bfloat16
        with torch.autocast(D, enabled=False):
            assert (x @ weight).dtype == torch.float32
        assert torch.get_autocast_dtype(D) == torch.bfloat16
    assert not torch.is_autocast_enabled(D)


def test_unsupported_dtype_is_refused():
    with pytest.warns(UserWarning, match="not supported"), torch.autocast(D, dtype=torch.float64):
        pass


class TestGradScaler:
    def train(self, device, scale, bad_step):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        data = torch.randn(3, 4)
        model, data = model.to(device), data.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler(device, init_scale=scale, growth_interval=2)
        scales = []
        for step in range(4):
            with torch.autocast(device, dtype=torch.float16, enabled=device != "cpu"):
                loss = model(data).float().square().mean()
            scaler.scale(loss).backward()
            if step == bad_step:
                model.weight.grad[0, 0] = float("inf")
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            assert bool(norm.isfinite()) == (step != bad_step)
            before = model.weight.detach().clone()
            scaler.step(optimizer)
            scaler.update()
            assert before.equal(model.weight) == (step == bad_step)
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        return scales, scaler.state_dict()

    def test_like_the_cpus(self):
        neuron, cpu = (self.train(device, 8.0, 2) for device in (D, "cpu"))
        assert neuron == cpu
        assert neuron[0] == [8.0, 16.0, 8.0, 8.0]

    def test_state_goes_round(self):
        scaler = torch.amp.GradScaler(D, init_scale=4.0)
        other = torch.amp.GradScaler(D)
        other.load_state_dict(scaler.state_dict())
        assert other.get_scale() == 4.0
        assert other.scale(torch.ones(1, device=D)).item() == 4.0
