"""What the device costs beside the plain CPU: a table, and JSON with ``--json FILE``.

``python benchmarks/device_ops.py``: overhead of single operators, a Transformer's training step, and import time.
The two devices take turns, and the best (operators) or median (steps) counts, so that a busy machine hurts both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [p for p in sys.path if Path(p).resolve() != HERE]  # benchmarks/collectives.py hides the package

import torch  # noqa: E402
from torch import nn  # noqa: E402

DEVICES = ("cpu", "neuron")


def op_us(fn: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    return (time.perf_counter() - start) / calls * 1e6


def ops(rounds: int, calls: int) -> dict[str, dict[str, float]]:
    def cases(device: str) -> dict[str, Callable[[], Any]]:
        x, y = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
        out = torch.empty_like(x)
        many = [torch.randn(64, device=device) for _ in range(50)]
        return {
            "add 64x64": lambda: x + y,
            "add_ 64x64": lambda: x.add_(y),
            "add out= 64x64": lambda: torch.add(x, y, out=out),
            "sum 64x64": lambda: x.sum(),
            "cat 2x 64x64": lambda: torch.cat([x, y]),
            "clone 64x64": lambda: x.clone(),
            "empty 64x64": lambda: torch.empty(64, 64, device=device),
            "view": lambda: x.view(4096),
            "item": lambda: x[0, 0].item(),
            "foreach_add 50x64": lambda: torch._foreach_add(many, 1.0),
        }

    tables = {device: cases(device) for device in DEVICES}
    best: dict[str, dict[str, float]] = {name: {} for name in tables["cpu"]}
    for _ in range(rounds):
        for name in best:
            for device in DEVICES:
                us = op_us(tables[device][name], calls)
                best[name][device] = min(us, best[name].get(device, us))
    return best


def transformer(steps: int, optimizer: str) -> dict[str, Any]:
    runs = {}
    for device in DEVICES:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 4).to(device)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(8, 128, 256, generator=generator).to(device)
        foreach = optimizer == "foreach"
        runs[device] = (model, x, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=foreach))
    times: dict[str, list[float]] = {device: [] for device in DEVICES}
    losses: dict[str, list[float]] = {device: [] for device in DEVICES}
    for _ in range(steps):
        for device, (model, x, optim) in runs.items():
            start = time.perf_counter()
            loss = (model(x) - x.flip(1)).square().mean()
            optim.zero_grad()
            loss.backward()
            optim.step()
            losses[device].append(loss.item())
            times[device].append(time.perf_counter() - start)
    ms = {device: statistics.median(t[2:]) * 1e3 for device, t in times.items()}
    return {
        **ms,
        "ratio": ms["neuron"] / ms["cpu"],
        "equal_losses": losses["cpu"] == losses["neuron"],
    }


def import_ms(runs: int) -> dict[str, float]:
    # In one process each, since two imports of torch differ by more than what the device adds.
    code = """
import time
start = time.process_time()
import torch
plain = time.process_time()
torch._import_device_backends()  # what `import torch` does unless TORCH_DEVICE_BACKEND_AUTOLOAD=0
print((plain - start) * 1e3, (time.process_time() - plain) * 1e3)
"""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    pairs = [
        [float(v) for v in subprocess.check_output([sys.executable, "-c", code], env=env).split()]
        for _ in range(runs)
    ]
    return {"torch": min(p for p, _ in pairs), "device": min(d for _, d in pairs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="also write the numbers there")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="training steps a device")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of the operator table")
    parser.add_argument("--calls", type=int, default=2000, help="calls of an operator in a round")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    result: dict[str, Any] = {"threads": args.threads, "torch": torch.__version__}
    print(f"{'operator':<20}{'cpu us':>10}{'neuron us':>12}{'more us':>10}")
    result["ops_us"] = ops(args.rounds, args.calls)
    for name, us in result["ops_us"].items():
        print(f"{name:<20}{us['cpu']:>10.2f}{us['neuron']:>12.2f}{us['neuron'] - us['cpu']:>10.2f}")
    print(f"\n{'training step':<20}{'cpu ms':>10}{'neuron ms':>12}{'ratio':>10}   equal losses")
    result["transformer_ms"] = {}
    for optimizer in ("for-loop", "foreach"):
        t = transformer(args.steps, optimizer)
        result["transformer_ms"][optimizer] = t
        print(
            f"{'4 layers, ' + optimizer:<20}{t['cpu']:>10.1f}{t['neuron']:>12.1f}{t['ratio']:>10.3f}   {t['equal_losses']}"
        )
    result["import_ms"] = import_ms(5)
    i = result["import_ms"]
    print(f"\nimport torch: {i['torch']:.0f} ms, and {i['device']:.0f} ms for the device")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
