"""Generic tests in torch's own form, for any device: run with ``PYTORCH_TESTING_DEVICE_ONLY_FOR=neuron``.

What of the wheel's databases is run here is a twentieth of the operators and all optimizers; benchmarks/op_coverage.py
compares the rest. This is about the mechanism: what a test is given, and which decorators let it run.
"""

from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import (
    OpDTypes,
    deviceCountAtLeast,
    dtypes,
    dtypesIfPRIVATEUSE1,
    instantiate_device_type_tests,
    largeTensorTest,
    onlyCPU,
    onlyNativeDeviceTypes,
    onlyPRIVATEUSE1,
    ops,
    skipPRIVATEUSE1,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_optimizers import optim_db, optims
from torch.testing._internal.common_utils import TEST_PRIVATEUSE1, TestCase, run_tests
from torch.utils._pytree import tree_leaves, tree_map

from neuron_dist.testing.op_workers import Case, stable_hash

SOME = [op for op in op_db if stable_hash(Case(op.formatted_name, "")) < 5]
FEW = module_db[::8]


def to_cpu(leaf: Any) -> Any:
    """A tensor, or what names a device, on the CPU."""
    if isinstance(leaf, torch.Tensor):
        return leaf.cpu()
    named = isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf.startswith("neuron"))
    return "cpu" if named else leaf


class TestGeneric(TestCase):
    @ops(SOME, dtypes=OpDTypes.any_one)
    def test_operator(self, device: str, dtype: torch.dtype, op: Any) -> None:
        for sample in list(op.sample_inputs(device, dtype))[:2]:
            given = (sample.input, sample.args, sample.kwargs)
            on_cpu = tree_map(to_cpu, given)
            torch.manual_seed(0)
            expected = op(on_cpu[0], *on_cpu[1], **on_cpu[2])
            torch.manual_seed(0)
            self.assertEqual(op(given[0], *given[1], **given[2]), expected, exact_device=False)

    @modules(FEW, allowed_dtypes=(torch.float32,))
    def test_module(
        self, device: str, dtype: torch.dtype, module_info: Any, training: bool
    ) -> None:
        made = module_info.module_inputs_func(
            module_info, device=device, dtype=dtype, requires_grad=False, training=training
        )
        built, given = made[0].constructor_input, made[0].forward_input
        module = module_info.module_cls(*built.args, **built.kwargs).to(device).train(training)
        for t in tree_leaves(module(*given.args, **given.kwargs)):
            self.assertEqual(t.device, torch.device(device))

    @optims(optim_db, dtypes=[torch.float32])
    def test_optimizer(self, device: str, dtype: torch.dtype, optim_info: Any) -> None:
        for given in optim_info.optim_inputs_func(device)[:2]:
            self.check_step(device, optim_info, given.kwargs)

    def check_step(self, device: str, optim_info: Any, kwargs: dict[str, Any]) -> None:
        weight = torch.nn.Parameter(make_tensor((4, 4), device=device, dtype=torch.float32))
        optimizer = optim_info.optim_cls([weight], **kwargs)
        before = weight.detach().clone()

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            rows = torch.nn.functional.embedding(
                torch.tensor([0, 1], device=device),
                weight,
                sparse=optim_info.only_supports_sparse_grads,
            )
            rows.square().sum().backward()
            return rows.detach().sum()

        optimizer.step(closure)
        self.assertNotEqual(weight.detach(), before)

    def test_device_is_given_with_its_index(self, device: str) -> None:
        self.assertEqual(device, "neuron:0")
        self.assertEqual(self.device_type, "neuron")
        self.assertTrue(TEST_PRIVATEUSE1)
        print(device)

    @dtypes(torch.float64)
    @dtypesIfPRIVATEUSE1(torch.float16, torch.bfloat16)
    def test_dtypes_of_the_device(self, device: str, dtype: torch.dtype) -> None:
        self.assertIn(dtype, (torch.float16, torch.bfloat16))

    @onlyPRIVATEUSE1
    def test_only_here(self, device: str) -> None:
        self.assertEqual(torch.ones(2, device=device).sum().item(), 2)

    @onlyNativeDeviceTypes
    def test_native_types_include_it(self, device: str) -> None:
        self.assertEqual(torch.device(device).type, "neuron")

    @onlyCPU
    def test_not_here(self, device: str) -> None:
        self.fail("this test is for the CPU")

    @skipPRIVATEUSE1
    def test_skipped_here(self, device: str) -> None:
        self.fail("this test is not for the device")

    @deviceCountAtLeast(2)
    def test_several_devices(self, devices: list[str]) -> None:
        self.assertEqual(devices[:2], ["neuron:0", "neuron:1"])
        there = torch.arange(3, device=devices[0]).to(devices[1])
        self.assertEqual(there.device, torch.device(devices[1]))

    @largeTensorTest("1GB")
    def test_memory_is_asked_for(self, device: str) -> None:
        self.assertEqual(torch.zeros(1 << 18, device=device).nbytes, 1 << 20)


instantiate_device_type_tests(TestGeneric, globals(), only_for=("neuron",), allow_mps=False)

if __name__ == "__main__":
    run_tests()
