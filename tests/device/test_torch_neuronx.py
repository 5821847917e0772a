"""``import torch_neuronx`` where the real package is not installed, and where it is."""

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

from neuron_dist.neuronx import alias, metadata, real

ROOT = Path(alias.__file__).parents[2]


def test_it_is_found_and_is_ours():
    spec = importlib.util.find_spec("torch_neuronx")
    assert spec is not None and spec.origin.endswith("torch_neuronx.py")
    import torch_neuronx

    assert torch_neuronx.neuron is torch.neuron
    assert torch_neuronx.synchronize is torch.neuron.synchronize


def test_first_and_only_import(run_child):
    out = run_child(
        "import torch_neuronx, torch; print(torch.ones(1, device='neuron').device, torch_neuronx.device_count())"
    )
    assert out == "neuron:0 64\n"


def test_without_autoload(run_child):
    """An AWS recipe switches autoload off and imports by itself."""
    out = run_child(
        """
        import torch
        assert not hasattr(torch, "neuron")
        import torch_neuronx
        from torch_neuronx.profiling import NeuronConfig
        import torch_neuronx.neuron
        print(torch.ones(1, device="neuron").device)
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out == "neuron:0\n"


def test_every_name_is_there():
    import torch_neuronx

    assert set(torch_neuronx.__all__) == {*alias.NAMES, "neuron", "profiling"}
    for name in torch_neuronx.__all__:
        assert getattr(torch_neuronx, name) is not None
    expected = """
        Stream Event stream synchronize device_count current_device set_device current_stream
        default_stream set_stream device empty_cache get_device_properties memory_allocated memory_stats
        NeuronProfiler get_fallback_ops get_executed_ops clear_op_tracking get_dynamo_metrics
        reset_dynamo_metrics is_neuron_runtime_initialized
    """
    assert set(expected.split()) <= set(torch_neuronx.__all__)


@pytest.mark.parametrize("name", alias.UNSUPPORTED)
def test_what_cannot_work_says_what_to_do(name):
    import torch_neuronx

    with pytest.raises(NotImplementedError, match=rf"torch_neuronx\.{name}: .*: "):
        getattr(torch_neuronx, name)


def test_unknown_names_get_the_nearest():
    import torch_neuronx

    with pytest.raises(AttributeError, match="did you mean 'synchronize'"):
        torch_neuronx.syncronize  # noqa: B018
    assert not hasattr(torch_neuronx, "no_such_thing")
    with pytest.raises(ModuleNotFoundError, match=r"torch_neuronx\.xla"):
        importlib.import_module("torch_neuronx.xla")


def test_version():
    assert metadata.version().startswith(torch.__version__[:4])
    assert importlib.metadata.version("torch-neuronx") == metadata.version()
    assert importlib.metadata.version("torch_neuronx") == metadata.version()
    assert importlib.metadata.metadata("torch_neuronx")["Name"] == "torch-neuronx"
    listed = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    assert "torch-neuronx" not in listed
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("torch-neuron-x")


def test_streams_and_events_are_classes():
    import torch_neuronx

    stream = torch_neuronx.Stream()
    assert isinstance(stream, torch_neuronx.Stream) and isinstance(stream, torch.Stream)
    assert isinstance(torch_neuronx.current_stream(), torch_neuronx.Stream)
    assert not isinstance(1, torch_neuronx.Stream)
    start, end = (torch_neuronx.Event(enable_timing=True) for _ in range(2))
    assert isinstance(start, torch_neuronx.Event)
    with torch_neuronx.stream(stream):
        start.record()
        torch.ones(1000, device="neuron").add_(1)
        end.record()
    torch_neuronx.current_stream().wait_stream(stream)
    torch_neuronx.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    assert stream != torch_neuronx.default_stream()
    with torch_neuronx.device(0):
        assert torch_neuronx.current_device() == 0


def test_operator_tracking():
    import torch_neuronx

    x = torch.ones(3, 3, device="neuron")
    torch_neuronx.clear_op_tracking()
    assert torch_neuronx.get_executed_ops() == torch_neuronx.get_fallback_ops() == []
    x @ x
    torch.linalg.qr(x)
    executed = torch_neuronx.get_executed_ops()
    assert {"aten::mm", "aten::linalg_qr"} <= set(executed) and executed == sorted(executed)
    assert torch_neuronx.get_fallback_ops() == ["aten::linalg_qr"]


def test_no_graph_was_compiled():
    import torch_neuronx

    torch_neuronx.reset_dynamo_metrics()
    assert torch_neuronx.get_dynamo_metrics() == torch.neuron.get_dynamo_metrics() == {}


def test_runtime_is_initialized_by_use(run_child):
    run_child(
        """
        import torch, torch_neuronx
        assert not torch_neuronx.is_neuron_runtime_initialized()
        torch.ones(1, device="neuron")
        assert torch_neuronx.is_neuron_runtime_initialized()
        """
    )


@pytest.fixture
def real_one(tmp_path):
    folder = tmp_path / "torch_neuronx"
    folder.mkdir()
    (folder / "__init__.py").write_text("REAL = True\n")
    return tmp_path


def test_a_real_one_earlier_on_the_path_wins(run_child, real_one):
    path = os.pathsep.join([str(real_one), *sys.path])
    out = run_child(
        """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
        print(len(caught), caught[0].message)
        assert not hasattr(torch, "neuron")
        import importlib.metadata, torch_neuronx
        print(torch_neuronx.REAL)
        try:
            importlib.metadata.version("torch_neuronx")
        except importlib.metadata.PackageNotFoundError:
            print("no version")
        """,
        PYTHONPATH=path,
        PYTHONSAFEPATH="1",  # the working folder is not on the path
    )
    assert out.startswith("1 neuron-dist stays out: the real torch_neuronx is installed in")
    assert out.endswith("True\nno version\n")


def test_a_real_one_later_on_the_path_is_not_replaced(run_child, real_one):
    path = os.pathsep.join([str(ROOT), *sys.path, str(real_one)])
    out = run_child(
        """
        import warnings
        warnings.simplefilter("ignore")
        try:
            import torch_neuronx
        except ImportError as error:
            print(error)
        """,
        PYTHONPATH=path,
        PYTHONSAFEPATH="1",  # the working folder is not on the path
    )
    assert "does not stand in for it" in out and str(real_one) in out


def test_in_one_folder_python_takes_the_real_one(tmp_path, real_one, run_child):
    (real_one / "torch_neuronx.py").write_text((ROOT / "torch_neuronx.py").read_text())
    out = run_child(
        "import torch_neuronx; print(torch_neuronx.REAL)",
        PYTHONPATH=str(real_one),
        PYTHONSAFEPATH="1",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out == "True\n"


def test_none_is_installed_here():
    assert real.find() is None
