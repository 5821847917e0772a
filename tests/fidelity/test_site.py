"""The line that is to blame, from inside torch and this package."""

import contextlib
import functools
import json
import sys
import threading
import traceback

import pytest
import torch
import yaml

import neuron_dist
from neuron_dist.fidelity.site import NO_FRAME, call_site
from tests.fidelity.library import function_in

HERE = __file__


def here():
    """The line that calls this."""
    return sys._getframe(1).f_lineno


def probe():
    """A function of neuron_dist, as the hook is, and the sites that it has seen."""
    sites = []
    source = "def function(*_, **__): sites.append(call_site())"
    return function_in(neuron_dist, source, sites=sites, call_site=call_site), sites


def test_plain_call():
    hook, sites = probe()
    line = here() + 1
    hook()
    (site,) = sites
    assert (site.filename, site.lineno, site.function) == (HERE, line, "test_plain_call")
    assert site.module == __name__
    assert str(site) == f"{HERE}:{line} (test_plain_call)"


class Model:
    def loss(self, hook):
        hook()


def test_the_function_has_its_class():
    hook, sites = probe()
    Model().loss(hook)
    assert sites[0].function == "Model.loss"


def test_through_frames_of_torch():
    hook, sites = probe()
    inner = function_in(torch, "def function(hook): hook()", file="distributed/made.py")
    outer = function_in(torch, "def function(f, hook): f(hook)", file="_dynamo/made.py")
    line = here() + 1
    outer(inner, hook)
    assert (sites[0].filename, sites[0].lineno) == (HERE, line)


def test_a_package_whose_name_begins_with_torch_is_not_torch():
    """TorchTitan's own lines are what its user can change."""
    hook, sites = probe()
    titan = function_in(torch, "def function(hook): hook()", file="../torchtitan/train.py")
    titan(hook)
    assert sites[0].filename.endswith("torchtitan/train.py")


def test_an_installed_package_is_not_the_standard_library():
    hook, sites = probe()
    function_in(yaml, "def function(hook): hook()")(hook)
    assert sites[0].filename.endswith("yaml/made_for_tests.py")


def test_the_standard_library_is_passed_over():
    hook, sites = probe()
    leaves = function_in(torch, "def function(hook):\n    yield\n    hook()")
    of_json = function_in(json, "def function(hook, _): hook()")
    line = here() + 1
    with contextlib.contextmanager(leaves)(hook):
        pass
    functools.reduce(of_json, [hook, 0])
    assert [(site.filename, site.lineno) for site in sites] == [(HERE, line), (HERE, line + 2)]


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_backward(device):
    hook, sites = probe()
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 2
    y.register_hook(hook)
    line = here() + 1
    y.sum().backward()
    assert [(site.filename, site.lineno) for site in sites] == [(HERE, line)]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, hook):
        ctx.hook = hook
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.hook()
        return grad * 2, None


def test_a_backward_of_ones_own_is_the_line():
    hook, sites = probe()
    x = torch.ones(3, device="neuron", requires_grad=True)
    Doubled.apply(x, hook).sum().backward()
    (site,) = sites
    assert (site.filename, site.function) == (HERE, "Doubled.backward")


def test_through_code_that_fx_writes():
    hook, sites = probe()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    traced = torch.fx.symbolic_trace(model)
    files = []
    model[0].register_forward_hook(hook)
    model[0].register_forward_hook(
        lambda *_: files.extend(f.filename for f in traceback.extract_stack())
    )
    line = here() + 1
    traced(torch.ones(1, 2))
    assert any(file.startswith("<eval_with_key>") for file in files)
    assert (sites[0].filename, sites[0].lineno) == (HERE, line)


def in_a_thread(target):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()


def test_threads():
    hook, sites = probe()
    in_a_thread(lambda: hook())
    assert (sites[0].filename, sites[0].function) == (HERE, "test_threads.<locals>.<lambda>")
    in_a_thread(functools.partial(function_in(torch, "def function(hook): hook()"), hook))
    assert sites[1].filename.endswith("torch/made_for_tests.py")  # nobody else is there
    bare = []
    source = "def function(): found.append(site())"
    ours = function_in(neuron_dist, source, file="fidelity/made.py", found=bare, site=call_site)
    in_a_thread(ours)
    assert bare == [NO_FRAME]
    assert str(NO_FRAME) == "<no Python frame>:0"
