"""The project's own tokenizer: byte-level BPE, trained from the corpus that every CPython carries.

``python -m neuron_dist.titan.tokenizer`` writes ``configs/assets/tokenizer`` anew; the vocabulary that is kept there
was made so, with CPython 3.11.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from neuron_dist.titan.corpus import python_corpus

__all__ = ["VOCABULARY", "tokenizer_folder", "train_tokenizer"]

VOCABULARY = 288
"""All bytes and the most frequent pairs: few enough that a model learns them within a minute on a laptop.

TorchTitan's debug models have embeddings for 2,048.
"""
_BEGIN, _END = "<|begin_of_text|>", "<|end_of_text|>"
_CHAT = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""Messages as lines that begin with who speaks; supervised fine-tuning asks the tokenizer for it."""


def tokenizer_folder() -> Path:
    """Where the tokenizer that ships with the package lies; TorchTitan's ``hf_assets_path``."""
    with resources.as_file(resources.files("configs") / "assets" / "tokenizer") as folder:
        return folder


def train_tokenizer(documents: Iterable[str], folder: Path, vocabulary: int = VOCABULARY) -> None:
    """Trains a byte-level BPE of ``vocabulary`` tokens and writes it to ``folder`` in Hugging Face's format."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_BEGIN, _END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "bos_token": _BEGIN,
        "eos_token": _END,
        "add_bos_token": True,
        "add_eos_token": True,
        "chat_template": _CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    train_tokenizer(python_corpus(), tokenizer_folder())
