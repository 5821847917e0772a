"""Every architecture of transformers on the device: forward and one training step, against the CPU.

    python benchmarks/architectures.py --json architectures.json        # goes on where it stopped
    python benchmarks/architectures.py --only llama,bert
    python benchmarks/architectures.py --report --json architectures.json

For each model type of AutoModel's mapping: a tiny configuration, random weights, the same on the CPU and on
``neuron``; one forward pass, one backward pass, one SGD step. Outputs, gradients and new weights have to be equal,
bit for bit. What the CPU itself does not run on the inputs made here is told apart and is no verdict on the device.

outcomes:
    equal       bit for bit
    close       within the tolerance of the dtype, not bit for bit
    different   outside of it
    failed      the device raised where the CPU did not
    not run     no tiny configuration or no inputs were found with which the CPU runs it
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [
    p for p in sys.path if Path(p).resolve() != HERE
]  # benchmarks/collectives.py hides the package

SECONDS_PER_MODEL = 60
MOST_PARAMETERS = 100_000_000

# What a field of a configuration becomes, where it is a larger integer. Ratios between them are what most models
# check: heads x head_dim = hidden.
TINY = {
    **dict.fromkeys(
        [
            "hidden_size",
            "d_model",
            "n_embd",
            "embed_dim",
            "dim",
            "hidden_dim",
            "encoder_hidden_size",
        ],
        64,
    ),
    **dict.fromkeys(
        ["decoder_hidden_size", "output_hidden_size", "out_hidden_size", "projection_dim"], 64
    ),
    **dict.fromkeys(
        ["vision_feature_dim", "text_hidden_size", "projector_hidden_size", "embedding_size"], 64
    ),
    **dict.fromkeys(
        ["intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "n_inner"],
        96,
    ),
    **dict.fromkeys(
        ["moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"], 64
    ),
    **dict.fromkeys(
        ["num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"], 4
    ),
    **dict.fromkeys(["decoder_attention_heads"], 4),
    **dict.fromkeys(["num_key_value_heads", "num_kv_heads"], 2),
    **dict.fromkeys(["head_dim", "d_kv", "attention_head_dim"], 16),
    **dict.fromkeys(
        ["num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"], 2
    ),
    **dict.fromkeys(["decoder_layers", "num_decoder_layers", "num_encoder_layers", "depth"], 2),
    **dict.fromkeys(["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"], 4),
    **dict.fromkeys(["num_experts_per_tok", "top_k"], 2),
    **dict.fromkeys(["image_size"], 64),
    **dict.fromkeys(
        ["max_position_embeddings", "n_positions", "max_source_positions", "context_length"], 128
    ),
    **dict.fromkeys(["n_group", "topk_group"], 1),
    **dict.fromkeys(["q_lora_rank", "kv_lora_rank"], 32),
    **dict.fromkeys(["v_head_dim", "qk_rope_head_dim", "qk_nope_head_dim"], 16),
}
# Two heads, all of them with their own keys and values, as wide as they are: for rotary sections and latent attention.
TWO_HEADS = {
    **{name: 256 if value == 64 and "moe" not in name else value for name, value in TINY.items()},
    **dict.fromkeys(
        ["num_attention_heads", "num_key_value_heads", "num_kv_heads", "n_head", "num_heads"], 2
    ),
}
for _name in ("head_dim", "v_head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "image_size"):
    del TWO_HEADS[_name]
# Less: widths stay as they are, only the number of layers, experts, words and positions shrinks.
SHALLOW = {
    name: value
    for name, value in TINY.items()
    if value in (2, 4, 128) and "head" not in name and "lora" not in name
}
# Least: only the number of layers.
LAYERS = {name: value for name, value in SHALLOW.items() if "layer" in name or name == "depth"}
VOCABULARY = 512
ZERO = (
    "dropout",
    "drop_path",
    "pdrop",
    "layerdrop",
    "mask_time_prob",
    "mask_feature_prob",
    "jitter",
    "drop_rate",
    "noise",
)
SKIPPED = ("num_labels",)


def shrunk(config: dict[str, Any], table: dict[str, int]) -> dict[str, Any]:
    """``config`` and what is nested in it, smaller by ``table``, without anything random."""
    layers = config.get("num_hidden_layers")
    new: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            if name == "per_layer_config":
                value = {
                    key: item
                    for key, item in value.items()
                    if int(key) < table["num_hidden_layers"]
                }
            elif all(isinstance(key, str) for key in value):
                value = shrunk(value, table)
        elif isinstance(value, bool) or value is None or name in SKIPPED:
            pass
        elif any(part in name for part in ZERO) and isinstance(value, (int, float)):
            value = type(value)(0)
        elif any(part in name for part in ZERO) and isinstance(value, list):
            value = [0.0 if isinstance(item, float) else item for item in value]
        elif name.endswith("vocab_size") and isinstance(value, int):
            value = min(value, VOCABULARY)
        elif (
            name.endswith(("_token_id", "_token_index"))
            and isinstance(value, int)
            and value >= VOCABULARY
        ):
            value = VOCABULARY - 1 - (sum(map(ord, name)) % 200)
        elif isinstance(value, int) and name in table:
            value = min(value, table[name])
        elif isinstance(value, list) and layers and len(value) == layers:
            value = None  # one a layer: made anew by the configuration
        new[name] = value
    if "layer_types" in config and isinstance(config["layer_types"], list):
        kinds = list(dict.fromkeys(config["layer_types"]))
        new["layer_types"] = (kinds * 2)[: max(2, len(kinds))]
        if "num_hidden_layers" in new:
            new["num_hidden_layers"] = len(new["layer_types"])
    new.pop("apply_spec_augment", None)
    return {name: value for name, value in new.items() if value is not None or config[name] is None}


def inputs_for(model: Any, config: Any) -> list[dict[str, Any]]:
    """Inputs to try, likeliest first."""
    import torch

    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, 100, (2, 16), generator=random)

    def field(*names: str, default: Any) -> Any:
        places = [config, *(v for v in vars(config).values() if hasattr(v, "to_dict"))]
        for name in names:
            for place in places:
                value = getattr(place, name, None)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
                if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
                    return value[0]
        return default

    def noise(*shape: int) -> Any:
        return torch.randn(*shape, generator=random)

    size, channels = (
        field("image_size", default=64),
        field("num_channels", "in_channels", default=3),
    )
    frames = field("num_frames", default=4)
    bins = field("num_mel_bins", "feature_size", "input_dim", "n_mels", default=80)
    tried: list[dict[str, Any]] = []
    main = getattr(model, "main_input_name", "input_ids")
    if main in ("pixel_values", "pixel_values_videos"):
        for side in dict.fromkeys((size, 64, 224)):
            tried.append({main: noise(2, channels, side, side)})
        tried.append({main: noise(2, frames, channels, size, size)})
    elif main == "input_features":
        length = 2 * field("max_source_positions", default=64)
        tried += [
            {main: noise(2, bins, length)},
            {main: noise(2, 64, bins)},
            {main: noise(2, 1, 1001, 64)},
        ]
    elif main in ("input_values", "audio_values"):
        tried += [
            {main: noise(2, 4000)},
            {main: noise(2, 1, 4000)},
            {main: noise(2, field("max_length", default=1024), bins)},
            {main: noise(2, bins, 64)},
        ]
    text = {"input_ids": tokens}
    image = {"pixel_values": noise(2, channels, size, size)}
    tried += [
        text,
        {**text, "decoder_input_ids": tokens},
        {**text, **image},
        image,
        {**image, "decoder_input_ids": tokens},
        {"input_features": noise(2, bins, 128), "decoder_input_ids": tokens},
    ]
    if tried and main not in ("input_ids",):
        tried[0:0] = (
            [{**tried[0], "decoder_input_ids": tokens}]
            if getattr(config, "is_encoder_decoder", False)
            else []
        )
    return tried


def floats(value: Any) -> list[Any]:
    """All floating tensors in a model's output, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in floats(item)]
    return []


def step(model: Any, inputs: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Outputs, gradients and new weights of one training step, on the CPU."""
    import torch

    torch.manual_seed(1)
    outputs = floats(model(**inputs))
    loss = sum(
        (o.float() ** 2).nan_to_num(0, 0, 0).mean()
        for o in outputs
        if o.requires_grad and o.numel()
    )
    gradients = []
    if isinstance(loss, torch.Tensor):
        loss.backward()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    return (
        [o.detach().cpu() for o in outputs],
        gradients,
        [p.detach().cpu() for p in model.parameters()],
    )


def compared(mine: list[Any], cpus: list[Any]) -> str:
    """``equal``, ``close`` or ``different``."""
    import torch

    if len(mine) != len(cpus):
        return "different"
    verdict = "equal"
    for a, b in zip(mine, cpus, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return "different"
        if not torch.equal(a.nan_to_num(7e7), b.nan_to_num(7e7)):
            if not torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True):
                return "different"
            verdict = "close"
    return verdict


def short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"


def check(kind: str) -> dict[str, Any]:
    """The row of one model type."""
    import copy

    import torch
    from transformers import AutoConfig, AutoModel

    row: dict[str, Any] = {"model": kind, "outcome": "not run"}
    default = AutoConfig.for_model(kind)
    model = config = None
    for table in (TINY, TWO_HEADS, SHALLOW, LAYERS):
        try:
            config = type(default).from_dict(shrunk(default.to_dict(), table))
            with torch.device("meta"):
                size = sum(p.numel() for p in AutoModel.from_config(config).parameters())
            if size > MOST_PARAMETERS:
                row.setdefault("why", f"{size / 1e6:.0f} million parameters at the smallest")
                continue
            torch.manual_seed(0)
            model = AutoModel.from_config(config).train()
        except Exception as error:
            row.setdefault("why", "configuration: " + short(error))
            continue
        for module in model.modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd):
                module.p = 0.0
            if isinstance(getattr(module, "drop_prob", None), float):  # stochastic depth
                module.drop_prob = 0.0
        for inputs in inputs_for(model, config):
            on_device = copy.deepcopy(model)
            try:
                cpus = step(copy.deepcopy(model), inputs)
                again = step(copy.deepcopy(model), inputs)
            except Exception as error:
                row.setdefault("why", "inputs: " + short(error))
                continue
            row.pop("why", None)
            row.update(parameters=sum(p.numel() for p in model.parameters()), inputs=sorted(inputs))
            try:
                mine = step(on_device.to("neuron"), {k: v.to("neuron") for k, v in inputs.items()})
            except Exception as error:
                return {**row, "outcome": "failed", "why": short(error)}
            row["outputs"] = len(cpus[0])
            row["gradients"] = len(cpus[1])
            if "different" in [compared(a, b) for a, b in zip(again, cpus, strict=True)]:
                return {**row, "why": "two runs on the CPU differ: the model draws random numbers"}
            parts = [compared(a, b) for a, b in zip(mine, cpus, strict=True)]
            for part, verdict in zip(("forward", "backward", "step"), parts, strict=True):
                row[part] = verdict
            order = ("equal", "close", "different")
            return {**row, "outcome": max(parts, key=order.index)}
    return row


class TooLong(BaseException):
    """Not an Exception: what tries several inputs must not take it for one that does not fit."""


def worker(kinds: list[str], path: Path) -> None:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)

    def too_long(*_: object) -> None:
        raise TooLong(f"more than {SECONDS_PER_MODEL} s")

    signal.signal(signal.SIGALRM, too_long)
    for kind in kinds:
        begin = time.monotonic()
        signal.alarm(SECONDS_PER_MODEL)
        try:
            row = check(kind)
        except BaseException as error:
            row = {"model": kind, "outcome": "not run", "why": short(error)}
        signal.alarm(0)
        row["seconds"] = round(time.monotonic() - begin, 1)
        torch.neuron.empty_cache()
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["model"]: row for row in map(json.loads, lines)}


def report(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown: the sums, and every model that is not equal."""
    sums = Counter(row["outcome"] for row in rows.values())
    out = ["| outcome | models |", "| --- | ---: |"]
    out += [f"| {name} | {count} |" for name, count in sums.most_common()]
    out += ["", "| model | outcome | why |", "| --- | --- | --- |"]
    for kind, row in sorted(rows.items(), key=lambda item: (item[1]["outcome"], item[0])):
        if row["outcome"] != "equal":
            parts = [f"{p} {row[p]}" for p in ("forward", "backward", "step") if p in row]
            why = row.get("why") or ", ".join(parts)
            out.append(f"| {kind} | {row['outcome']} | {why.replace('|', '/')} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", type=Path, default=Path("architectures.json"), help="one row a line; rows stay"
    )
    parser.add_argument("--only", help="model types, with commas")
    parser.add_argument(
        "--report", action="store_true", help="only print the table of what is there"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.only.split(","), arguments.json)
        return
    if not arguments.report:
        from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

        known = sorted(MODEL_MAPPING_NAMES)
        wanted = arguments.only.split(",") if arguments.only else known
        if unknown := set(wanted) - set(known):
            parser.error(f"transformers has no model type {', '.join(sorted(unknown))}")
        while left := [kind for kind in wanted if kind not in rows_of(arguments.json)]:
            # A process of its own for a few at a time: one that dies takes only itself along.
            done = subprocess.run(
                [
                    sys.executable,
                    __file__,
                    "--worker",
                    "--only",
                    ",".join(left[:25]),
                    "--json",
                    str(arguments.json),
                ],
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
                check=False,
            )
            if done.returncode != 0 and (
                rest := [k for k in left if k not in rows_of(arguments.json)]
            ):
                row = {
                    "model": rest[0],
                    "outcome": "not run",
                    "why": f"the process ended with {done.returncode}",
                }
                with arguments.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            print(
                f"{len(wanted) - len(left) + min(25, len(left))} of {len(wanted)}",
                file=sys.stderr,
                flush=True,
            )
    print(report(rows_of(arguments.json)))


if __name__ == "__main__":
    main()
