"""A Llama of a few thousand random weights, and tokens to train it on: nothing is downloaded."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 128


def tiny_llama(seed: int = 0) -> LlamaForCausalLM:
    """The model, on the CPU; the same weights for the same seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


class CountingTokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences that count up by one from a random start: a model can learn them in a few steps."""

    def __init__(self, sequences: int = 64, length: int = 32) -> None:
        starts = torch.randint(
            3, VOCABULARY, (sequences, 1), generator=torch.Generator().manual_seed(1)
        )
        self.tokens = (starts + torch.arange(length)) % (VOCABULARY - 3) + 3

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}
