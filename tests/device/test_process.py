"""Device indices, binding, forks, environment and import: each in a process of its own."""

import os

import pytest


def test_one_import_is_enough_and_opens_nothing(run_child):
    out = run_child(
        """
        import os, sys, threading
        import torch
        assert torch.neuron.__name__ == "neuron_dist.device"
        assert "yaml" not in sys.modules
        links = [os.readlink(f"/proc/self/fd/{f}") for f in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{f}")]
        assert not any("memfd" in link for link in links), links
        assert threading.active_count() == 1
        torch.manual_seed(0)
        torch.ones(2, requires_grad=True).sum().backward()
        assert not torch.neuron.is_initialized()
        pid = os.fork()
        if pid == 0:  # a CPU-only parent's children may run backward, as without the device
            torch.ones(2, requires_grad=True).sum().backward()
            x = torch.ones(2, device="neuron", requires_grad=True)
            (x * 2).sum().backward()
            print(x.grad.tolist(), x.device, flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        """
    )
    assert out == "[2.0, 2.0] neuron:0\n"


def test_bad_fork(run_child):
    run_child(
        """
        import os, torch
        x = torch.ones(100, device="neuron")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert torch.neuron._is_in_bad_fork() and not torch.neuron.is_initialized()
                torch.manual_seed(1)
                assert torch.randn(3).shape == (3,)
                del x
                try:
                    torch.ones(2, device="neuron")
                except RuntimeError as error:
                    assert "forked subprocess" in str(error)
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert x.sum().item() == 100

        class Numbers(torch.utils.data.Dataset):
            def __len__(self): return 20
            def __getitem__(self, i): return torch.full((3,), float(i))

        for pin in (False, True):
            loader = torch.utils.data.DataLoader(Numbers(), 4, num_workers=2, pin_memory=pin)
            assert sum(b.to("neuron", non_blocking=True).sum().item() for b in loader) == 570
        """
    )


def test_indices_without_a_process_group(run_child):
    run_child(
        """
        import pytest, torch
        assert torch.neuron.device_count() == torch.accelerator.device_count() == 64
        assert torch.neuron.current_device() == 0
        assert torch.ones(1, device="neuron:63").device.index == 63
        with pytest.raises(RuntimeError, match="Valid range is 0 to 63"):
            torch.ones(1, device="neuron:64")
        with pytest.raises(ValueError, match="Invalid device id: 64. Valid range is 0 to 63"):
            torch.neuron.set_device(64)
        torch.neuron.set_device("neuron:5")
        assert torch.ones(1, device="neuron").device.index == 5
        with torch.neuron.device(2):
            assert torch.ones(1, device="neuron").device.index == 2
        with torch.accelerator.device_index(3):
            assert torch.neuron.current_device() == 3
        assert torch.neuron.current_device() == torch.accelerator.current_device_index() == 5
        assert torch.neuron.get_device_name() == "neuron:5"
        properties = torch.neuron.get_device_properties()
        assert (properties.name, properties.total_memory) == ("trn2", 24 << 30)
        """
    )


def test_indices_with_a_process_group(run_child):
    run_child(
        """
        import pytest, torch
        from neuron_dist.device import bind_local_rank, unbind_local_rank
        x = torch.ones(1, device="neuron:0")
        with pytest.raises(RuntimeError, match="init_process_group before"):
            bind_local_rank(1, 4)
        del x
        mine = torch.ones(1, device="neuron:1")
        bind_local_rank(1, 4)
        bind_local_rank(1, 4)
        assert torch.neuron.device_count() == 4 and torch.neuron.current_device() == 1
        assert (torch.ones(1, device="neuron") + mine).device.index == 1
        for wrong in ("neuron:0", "neuron:3"):
            with pytest.raises(RuntimeError, match="say 'neuron' or 'neuron:1'"):
                torch.full((1,), 2.0, device=wrong)
        with pytest.raises(RuntimeError, match="local rank 1"):
            torch.neuron.set_device(0)
        with pytest.raises(RuntimeError, match="local rank 1"):
            torch.accelerator.set_device_index(0)
        torch.neuron.set_device(1)
        y = torch.ones(3, device="neuron", requires_grad=True)
        (y * 2).sum().backward()
        assert y.grad.tolist() == [2, 2, 2]
        assert len(torch.neuron.get_rng_state_all()) == 1
        with pytest.raises(RuntimeError, match="already"):
            bind_local_rank(2, 4)
        unbind_local_rank()
        assert torch.neuron.device_count() == 64
        """
    )


@pytest.mark.parametrize(
    ("env", "devices", "gib"),
    [
        (
            {
                "NEURON_DIST_CLUSTER": "trn2.48xlarge",
                "NEURON_LOGICAL_NC_CONFIG": "1",
                "NEURON_RT_NUM_CORES": "8",
            },
            8,
            12,
        ),
        ({"NEURON_RT_VISIBLE_CORES": "0-3,8"}, 5, 24),
        ({"NEURON_DIST_CLUSTER": "trn1.32xlarge"}, 32, 16),
    ],
)
def test_environment(run_child, env, devices, gib):
    out = run_child(
        "import torch; print(torch.neuron.device_count(), torch.neuron.get_device_properties().total_memory >> 30)",
        **env,
    )
    assert out.split() == [str(devices), str(gib)]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"NEURON_DIST_CLUSTER": "trn2.48xlarg"}, "did you mean 'trn2.48xlarge'"),
        ({"NEURON_RT_NUM_CORES": "0"}, "NEURON_RT_NUM_CORES=0"),
        ({"NEURON_RT_VISIBLE_CORES": "64"}, "expected cores of 0 to 63"),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, "at most 127 devices"),
    ],
)
def test_bad_environment(run_child, env, message):
    out = run_child(
        """
        import torch
        assert not torch.neuron.is_available() and torch.neuron.device_count() == 0
        try:
            torch.ones(1, device="neuron")
        except RuntimeError as error:
            print(error)
        """,
        **env,
    )
    assert message in out


def test_memory_is_gone_after_kill(run_child):
    before = set(os.listdir("/dev/shm"))
    run_child(
        """
        import os, signal, torch
        pid = os.fork()
        if pid == 0:
            torch.ones(1 << 20, device="neuron")
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
        """
    )
    assert set(os.listdir("/dev/shm")) <= before
