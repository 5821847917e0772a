"""transformers' Trainer, three steps. It finds the device by itself.

python examples/ecosystem/trainer.py
torchrun --nproc-per-node 2 examples/ecosystem/trainer.py
"""

from __future__ import annotations

import tempfile

from tiny import CountingTokens, tiny_llama
from transformers import Trainer, TrainingArguments


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=3,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            logging_steps=1,
            save_steps=3,
            report_to=[],
            bf16=True,
            disable_tqdm=True,
        )
        trainer = Trainer(tiny_llama(), arguments, train_dataset=CountingTokens())
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if arguments.process_index == 0:
        print("device:", arguments.device)
        print("ranks:", arguments.world_size)
        print("losses:", *losses)
        print("learns:", float(losses[-1]) < float(losses[0]))


if __name__ == "__main__":
    main()
