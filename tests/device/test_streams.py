import threading

import pytest
import torch

D = "neuron"


def test_streams_are_objects():
    s, t = torch.neuron.Stream(), torch.neuron.Stream(priority=-1)
    assert isinstance(s, torch.Stream) and s != t and s.device.type == D
    assert torch.neuron.current_stream() == torch.neuron.default_stream()
    with torch.neuron.stream(s) as inside:
        assert inside is s and torch.neuron.current_stream() == s
        with torch.neuron.stream(None):
            assert torch.neuron.current_stream() == s
        other = []
        thread = threading.Thread(target=lambda: other.append(torch.neuron.current_stream()))
        thread.start()
        thread.join()
        assert other == [torch.neuron.default_stream()]
    assert torch.neuron.current_stream() == torch.neuron.default_stream()
    torch.neuron.set_stream(t)
    assert torch.neuron.current_stream() == t
    torch.neuron.set_stream(torch.neuron.default_stream())
    assert s.query() and torch.neuron.query()
    s.synchronize()
    torch.neuron.synchronize()


def test_events():
    s = torch.neuron.Stream()
    a, b = (torch.neuron.Event(enable_timing=True) for _ in range(2))
    a.record()
    event = s.record_event()
    assert isinstance(event, torch.Event)
    torch.neuron.current_stream().wait_event(event)
    torch.neuron.current_stream().wait_stream(s)
    torch.neuron.wait_stream(s)
    torch.neuron.wait_event(torch.neuron.record_event())
    x = torch.randn(500, 500, device=D)
    (x @ x).record_stream(s)
    b.record()
    b.synchronize()
    assert b.query() and a.elapsed_time(b) > 0
    with pytest.raises((RuntimeError, ValueError)):
        a.elapsed_time(torch.neuron.Event(enable_timing=True))
    with pytest.raises(NotImplementedError, match="interprocess"):
        torch.neuron.Event(interprocess=True)


def test_backward_stays_in_its_thread():
    threads = []
    x = torch.ones(3, device=D, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: threads.append(threading.get_ident()))
    y.sum().backward()
    assert threads == [threading.get_ident()]

    results = []

    def work():
        w = torch.ones(3, device=D, requires_grad=True)
        (w * w).sum().backward()
        results.append(w.grad.tolist())

    workers = [threading.Thread(target=work) for _ in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert results == [[2.0] * 3] * 8
