"""PEFT: LoRA adapters on a frozen model, trained, saved and loaded on the device.

python examples/ecosystem/lora.py
"""

from __future__ import annotations

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny import CountingTokens, tiny_llama


def main() -> None:
    model = get_peft_model(
        tiny_llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    ).to("neuron")
    trained = [p for p in model.parameters() if p.requires_grad]
    print("adapters on:", {p.device.type for p in trained})
    optimizer = torch.optim.AdamW(trained, 1e-2)
    batch = {
        key: torch.stack([item[key] for item in CountingTokens()][:8]).to("neuron")
        for key in ("input_ids", "labels")
    }
    losses = []
    for _ in range(5):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print("learns:", losses[-1] < losses[0])
    model.eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        loaded = PeftModel.from_pretrained(tiny_llama().to("neuron"), folder).eval()
        same = torch.equal(loaded(**batch).logits, model(**batch).logits)
        merged = loaded.merge_and_unload()(**batch).logits
    print("loaded adapters give the same logits:", same)
    print("merged weights too:", torch.allclose(merged, model(**batch).logits, atol=1e-5))


if __name__ == "__main__":
    main()
