"""transformers loads a checkpoint straight to the device, and generates.

python examples/ecosystem/device_map.py
"""

from __future__ import annotations

import tempfile

import torch
from tiny import tiny_llama
from transformers import AutoModelForCausalLM


def main() -> None:
    model = tiny_llama().eval()
    prompt = torch.tensor([[1, 5, 6, 7]])
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder, device_map="neuron").eval()
    print("device:", loaded.device)
    with torch.no_grad():
        same = torch.equal(loaded(prompt.to("neuron")).logits.cpu(), model(prompt).logits)
    print("logits equal the CPU's:", same)
    settings = {"max_new_tokens": 8, "do_sample": False}
    on_device = loaded.generate(prompt.to("neuron"), **settings).cpu()
    print("tokens equal the CPU's:", torch.equal(on_device, model.generate(prompt, **settings)))


if __name__ == "__main__":
    main()
