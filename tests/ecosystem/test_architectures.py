"""A few architectures of transformers on the device, and how the benchmark of all makes configurations and inputs."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from neuron_dist.testing.architectures import check, inputs, page, shrink

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "architectures.py"
SOME = {
    "bert": {"input_ids"},
    "llama": {"input_ids"},
    "mamba": {"input_ids"},
    "qwen2_vl": {"input_ids", "pixel_values", "image_grid_thw"},
    "t5": {"input_ids", "decoder_input_ids"},
    "vit": {"pixel_values"},
    "whisper": {"input_features", "decoder_input_ids"},
}


def benchmark(*arguments):
    return subprocess.run(
        [sys.executable, str(BENCHMARK), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_some_architectures_are_the_cpus(tmp_path):
    rows = tmp_path / "rows.jsonl"
    done = benchmark("--json", str(rows), "--only", *SOME)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["model"]: row for row in map(json.loads, rows.read_text().splitlines())}
    assert {kind: (row["outcome"], row["why"]) for kind, row in found.items()} == {
        kind: ("equal", "") for kind in SOME
    }
    for kind, names in SOME.items():
        assert names <= set(found[kind]["inputs"])
    assert f"| equal | bit for bit | {len(SOME)} |" in done.stdout


def test_verdicts():
    a = torch.tensor([1.0, float("nan")])
    assert check.compared([a], [a.clone()]) == "equal"
    assert check.compared([a], [torch.nextafter(a, a + 1)]) == "close"
    assert check.compared([a], [a + 1]) == "different"
    assert check.compared([a], [a.double()]) == "different"
    assert check.compared([a], []) == "different"


def test_a_tiny_configuration():
    config = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "head_dim": 128,
        "num_hidden_layers": 32,
        "layer_types": ["full"] * 16 + ["sliding"] * 16,
        "sizes_by_layer": [1] * 32,
        "attention_dropout": 0.1,
        "vocab_size": 128000,
        "eos_token_id": 127999,
        "vision_config": {"hidden_size": 1024, "image_size": 336, "patch_size": 16},
    }
    small = shrink.shrunk(config, "sixteenth")
    assert (small["hidden_size"], small["num_attention_heads"], small["head_dim"]) == (256, 8, 32)
    assert small["layer_types"] == ["full", "sliding"] and small["num_hidden_layers"] == 2
    assert "sizes_by_layer" not in small and small["attention_dropout"] == 0
    assert small["eos_token_id"] < small["vocab_size"] == 512
    assert small["vision_config"] == {"hidden_size": 64, "image_size": 224, "patch_size": 16}
    assert shrink.shrunk(config, "default")["hidden_size"] == 4096


class Config:
    image_token_id = 7

    def __init__(self, **fields):
        vars(self).update(fields)

    def to_dict(self):
        return vars(self)


class Describer(torch.nn.Module):
    """Takes text with images in it."""

    main_input_name = "input_ids"

    def __init__(self):
        super().__init__()
        self.config = Config(vision_config=Config(image_size=8, num_channels=1))

    def get_image_features(self, pixel_values):
        assert pixel_values.shape[1:] == (1, 8, 8)
        return [torch.zeros(3, 4)] * len(pixel_values)

    def forward(self, input_ids, pixel_values=None, attention_mask=None):
        raise NotImplementedError


def test_a_text_has_as_many_image_tokens_as_the_model_makes():
    first = next(inputs.candidates("describer", Describer()))
    assert set(first) == {"input_ids", "pixel_values", "attention_mask"}
    assert (first["input_ids"] == Config.image_token_id).sum(1).tolist() == [3, 3]


def test_what_a_forward_requires_is_there():
    for tried in inputs.candidates("describer", Describer()):
        assert "input_ids" in tried


def test_an_unknown_type_is_told_its_neighbours():
    spec = importlib.util.spec_from_file_location("benchmark_of_architectures", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(SystemExit, match=r"--only lama: .* llama"):
        module.chosen(["lama"])
    assert module.chosen(["t5", "bert"]) == ["bert", "t5"]


def test_the_section_counts_and_gives_reasons():
    rows = [check.Row("a", "equal", inputs=["input_ids"]), check.Row("b", why="inputs: <x> | y")]
    section = page.render(rows, 3)
    assert "2 of 3 types" in section and "| equal | bit for bit | 1 |" in section
    assert "| `b` | not run | inputs: &lt;x> / y |" in section and "| text | 1 |" in section
