"""``model:`` of recipes: flavors, sizes that stand in many places, converters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neuron_dist.titan.check import check
from neuron_dist.titan.problems import RecipeError


def model_of(recipe: str, *settings: str) -> Any:
    return check(recipe, settings, device="cpu", backend="gloo").config


def built(config: Any) -> Any:
    with torch.device("meta"):
        return config.model_spec.model.build()


def test_sizes_reach_all_places() -> None:
    config = model_of(
        "deepseek_v3_debug",
        "model={n_layers: 2, vocab_size: 512, num_experts: 4, top_k: 2, moe_hidden_dim: 64, hidden_dim: 128}",
    )
    assert config.loss.loss_fn.global_vocab_size == 512
    shapes = {name: tuple(p.shape) for name, p in built(config).named_parameters()}
    assert shapes["tok_embeddings.weight"] == shapes["lm_head.weight"] == (512, 256)
    assert shapes["layers.0.feed_forward.w2.weight"] == (256, 128)
    assert shapes["layers.1.moe.routed_experts.inner_experts.w1_EFD"] == (4, 64, 256)
    assert shapes["layers.1.moe.router.gate.weight"] == (4, 256)
    assert shapes["layers.1.moe.shared_experts.w1.weight"] == (128, 256)  # two of 64
    assert not any(name.startswith("layers.2") for name in shapes)
    moe = config.model_spec.model.layers[1].moe
    assert moe.router.top_k == moe.routed_experts.token_dispatcher.top_k == 2


def test_a_flavor_without_a_config_function() -> None:
    model = model_of("full/qwen3_235b_a22b").model_spec.model
    assert (len(model.layers), model.layers[0].moe.num_experts) == (94, 128)


def test_converters_come_after_sizes() -> None:
    settings = ["model.float8={emulate: true}", "model.lora={rank: 4, target_modules: [wo]}"]
    model = built(model_of("llama3_debug", "model.n_layers=1", *settings))
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    wo = "layers.0.attention.wo"
    assert trainable == {f"{wo}.lora_a.weight", f"{wo}.lora_b.weight"}
    assert "Float8" in type(model.layers["0"].attention.wo).__mro__[1].__name__


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("model.nlayers=2", "unknown key in model; did you mean 'n_layers'"),
        ("model.n_layers=9", "expected at most 6, as many as the flavor has"),
        ("model.n_layers=0", "expected 1 or more"),
        ("model.n_layers=two", "expected a whole number or null"),
        ("model.num_experts=4", "the model has no experts"),
        ("model.flavor=8b", "unknown flavor of llama3; did you mean '8B'"),
        ("model.attn_backend=flexx", "flexx"),
        ("model.float8={}", "only supported on"),
        ("model.float8={emulat: true}", "did you mean 'emulate'"),
        ("model.lora={rank: many}", "expected a whole number"),
        ("model.vocab_size=100", "has 288 tokens, expected at most 100"),
    ],
)
def test_wrong_values(setting: str, expected: str) -> None:
    with pytest.raises(RecipeError) as caught:
        model_of("llama3_debug", setting)
    key = setting.partition("=")[0]
    assert expected in str(caught.value)
    assert "--set" in str(caught.value) or key == "model.vocab_size"


def test_experts_fewer_than_a_token_goes_to() -> None:
    with pytest.raises(RecipeError, match=r"expected at least 3, .* \(model.top_k\)"):
        model_of("deepseek_v3_debug", "model.num_experts=2")
