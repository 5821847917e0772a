"""What the libraries' own tests for Neuron say here."""

import importlib.metadata
import importlib.util

import pytest
import torch


def test_accelerate_finds_neuron():
    imports = pytest.importorskip("accelerate.utils.imports")
    assert imports.is_neuron_available()
    assert imports.is_neuron_available(check_device=True)


def test_transformers_finds_neuron():
    utils = pytest.importorskip("transformers.utils.import_utils")
    assert utils.is_torch_neuron_available()
    assert utils.is_torch_neuron_available(check_device=True)
    assert utils.is_torch_bf16_gpu_available()


def test_diffusers_way_of_asking():
    """diffusers takes a package for absent whose version importlib.metadata does not know."""
    assert importlib.util.find_spec("torch_neuronx") is not None
    assert importlib.metadata.version("torch_neuronx").startswith("2.")


def test_trls_way_of_asking():
    assert torch.accelerator.current_accelerator().type == "neuron"
    assert torch.neuron.get_device_properties(0).name == "trn2"
