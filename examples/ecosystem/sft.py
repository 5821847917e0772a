"""TRL: supervised fine-tuning. On this device SFTTrainer pads every batch to a multiple of 128, as on Trainium.

python examples/ecosystem/sft.py
torchrun --nproc-per-node 2 examples/ecosystem/sft.py
"""

from __future__ import annotations

import tempfile
from typing import Any

from datasets import Dataset
from tiny import VOCABULARY, CountingTokens, tiny_llama
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


def tokenizer() -> PreTrainedTokenizerFast:
    """Words are the numbers themselves."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{str(n): n for n in range(3, VOCABULARY)}}
    model = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def main() -> None:
    texts = [" ".join(map(str, item["input_ids"].tolist())) for item in CountingTokens()]
    shapes = []

    class Watched(SFTTrainer):
        def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            shapes.append(tuple(inputs["input_ids"].shape))
            return super().compute_loss(model, inputs, *args, **kwargs)

    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            output_dir=folder,
            max_steps=3,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Watched(
            tiny_llama(),
            arguments,
            train_dataset=Dataset.from_dict({"text": texts}),
            processing_class=tokenizer(),
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if arguments.process_index == 0:
        print("device:", arguments.device)
        print("batch:", *shapes[0])
        print("losses:", *losses)
        print("learns:", float(losses[-1]) < float(losses[0]))


if __name__ == "__main__":
    main()
