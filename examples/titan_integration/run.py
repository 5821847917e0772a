#!/usr/bin/env python
"""TorchTitan's own integration tests on neuron-dist: its runner, its lists of cases, our ``run_train.sh``.

    python examples/titan_integration/run.py --checkout ~/torchtitan --out results       # as its run_tests.py runs them
    python examples/titan_integration/run.py --out results --only pp_1f1b hsdp             # cases of the installed wheel

A checkout's runner asks for nothing but a ``run_train.sh`` in the current directory. So this makes a directory that has
all that the checkout has, with ours in the place of its own, and calls the runner there, once a case. The wheel has the
configs of the cases but neither runner nor assets: without a checkout they are run one after the other, on text of the
Python installation. What needs CUDA is named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONFIGS = "torchtitan_recipes.tests.features"
# name -> ranks, configs to run one after the other in the same folder
WHEEL: dict[str, tuple[int, list[str]]] = {
    "default": (2, ["llama3_debugmodel_default"]),
    "2d_eager": (2, ["llama3_debugmodel_tp2"]),
    "ce_loss_tp": (2, ["llama3_debugmodel_ce_loss_tp2"]),
    "tp_no_sp": (2, ["llama3_debugmodel_tp2_no_sp"]),
    "1d_compile": (2, ["llama3_debugmodel_compile"]),
    "1d_compile_sac_op": (2, ["llama3_debugmodel_compile_sac_op"]),
    "2d_compile": (2, ["llama3_debugmodel_tp2_compile"]),
    "2d_asynctp_compile": (2, ["llama3_debugmodel_tp2_asynctp_compile_spmd_types"]),
    "full_checkpoint": (2, ["llama3_debugmodel_full_checkpoint_save", "llama3_debugmodel_full_checkpoint_load"]),
    "hf_checkpoint_save": (2, ["llama3_debugmodel_hf_checkpoint_save"]),
    "last_save_model_only_bf16": (2, ["llama3_debugmodel_last_save_model_only_bf16"]),
    "pp_1f1b": (2, ["llama3_debugmodel_pp2_1f1b"]),
    "pp_dp_1f1b": (4, ["llama3_debugmodel_fsdp2_pp2_1f1b", "llama3_debugmodel_fsdp2_pp2_1f1b_layers_per_stage"]),
    "pp_tp": (4, ["llama3_debugmodel_tp2_pp2_gpipe"]),
    "pp_dp_tp": (8, ["llama3_debugmodel_fsdp2_tp2_pp2_save", "llama3_debugmodel_fsdp2_tp2_pp2_load"]),
    "3d_compile": (8, ["llama3_debugmodel_fsdp2_tp2_pp2_compile"]),
    "pp_looped_1f1b": (
        4,
        ["llama3_debugmodel_pp4_interleaved_1f1b", "llama3_debugmodel_pp4_interleaved_1f1b_layers_per_stage"],
    ),
    "pp_looped_zero_bubble": (4, ["llama3_debugmodel_pp4_zero_bubble"]),
    "pp_zbv": (2, ["llama3_debugmodel_pp2_zbv"]),
    "pp_custom_csv": (2, ["llama3_debugmodel_pp2_custom_csv"]),
    "optimizer_bf16_states": (2, ["llama3_debugmodel_optimizer_bf16_states"]),
    "ddp": (4, ["llama3_debugmodel_ddp4"]),
    "hsdp": (4, ["llama3_debugmodel_hsdp2x2"]),
    "cp": (4, ["llama3_debugmodel_cp4"]),
    "hsdp+tp": (8, ["llama3_debugmodel_hsdp2x2_tp2"]),
    "fsdp+cp": (4, ["llama3_debugmodel_fsdp2_cp2"]),
    "ddp+cp": (4, ["llama3_debugmodel_ddp2_cp2"]),
    "hsdp+cp": (8, ["llama3_debugmodel_hsdp2x2_cp2"]),
    "fsdp+tp+cp": (8, ["llama3_debugmodel_fsdp2_tp2_cp2"]),
    "fsdp_reshard_always": (2, ["llama3_debugmodel_fsdp_reshard_always"]),
    "optional_checkpoint": (
        4,
        ["llama3_debugmodel_optional_checkpoint_save", "llama3_debugmodel_optional_checkpoint_load_tp2"],
    ),
    "gradient_accumulation": (2, ["llama3_debugmodel_gradient_accumulation"]),
    "validation_tp_cp_pp": (8, ["llama3_debugmodel_validation_tp2_cp2_pp2"]),
    "fused_swiglu": (2, ["llama3_debugmodel_fused_swiglu_tp2"]),
    "fused_grouped_experts": (4, ["deepseek_v3_debugmodel_fused_grouped_experts_tp2_ep4"]),
    "varlen_attn": (4, ["llama3_debugmodel_varlen_attn_fsdp4_sac"]),
    "float8_emulate_lora": (4, ["llama3_debugmodel_float8_emulate_lora_tp2_pp2"]),
    "torchcomms_cp": (4, ["llama3_debugmodel_torchcomms_cp2_pp2_compile"]),
    "torchcomms_tp": (4, ["llama3_debugmodel_torchcomms_tp2_pp2_compile"]),
    "sft": (2, ["llama3_debugmodel_sft"]),
    "seed_checkpoint": (1, ["llama3_debugmodel_seed_checkpoint"]),
}
# what a name says about what its case needs
NEEDS_CUDA = {
    "varlen": "flash attention of variable length is CUDA's",
    "fused_swiglu": "a triton kernel",
    "fused_grouped_experts": "a triton kernel",
    "asynctp": "symmetric memory is CUDA's",
    "torchcomms": "the package torchcomms",
    "minimal_async_ep": "triton kernels",
}
WITHOUT_CHECKOUT = {
    "pp_custom_csv": "tests/assets/custom_schedule.csv of a checkout",
    "sft": "tests/assets/sft_test of a checkout",
}


@dataclass(frozen=True)
class Case:
    """A case of the list, and the commands that it consists of."""

    name: str
    ranks: int
    commands: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="a TorchTitan checkout of the installed version")
    parser.add_argument("--out", type=Path, required=True, help="a folder for logs and checkpoints; must be empty")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these cases")
    parser.add_argument("--ranks", type=int, default=8, help="leave cases of more ranks out")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a case may take")
    parser.add_argument("--args", default="", help="more TorchTitan flags for the wheel's cases, such as '--training.steps 3'")
    options = parser.parse_args()
    out = options.out.resolve()
    if out.exists() and any(out.iterdir()):
        parser.error(f"--out: {out} is not empty")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        cases = of_checkout(options.checkout.resolve(), place, out) if options.checkout else of_wheel(place, out, options.args)
        if unknown := set(options.only) - {case.name for case in cases}:
            parser.error(f"--only: no case {min(unknown)!r}; known: {', '.join(case.name for case in cases)}")
        chosen = [case for case in cases if not options.only or case.name in options.only]
        verdicts = {}
        for case in tqdm(chosen, unit="case"):
            verdicts[case.name] = verdict(case, place, out, options)
            tqdm.write(f"{case.name:<28}{case.ranks:>3} ranks  {verdicts[case.name]}")
    passed = sum(v.startswith("passed") for v in verdicts.values())
    failed = sum(v.startswith("failed") for v in verdicts.values())
    print(f"{passed} passed, {failed} failed, {len(verdicts) - passed - failed} left out; logs in {out}")
    sys.exit(1 if failed else 0)


def of_wheel(place: Path, out: Path, more: str) -> list[Case]:
    """The cases of the installed TorchTitan, with assets that are made here."""
    from neuron_dist.titan.corpus import python_corpus
    from neuron_dist.titan.tokenizer import tokenizer_folder

    assets = place / "tests" / "assets"
    (assets / "c4_test").mkdir(parents=True)
    (assets / "tokenizer").symlink_to(tokenizer_folder())
    rows = "".join(json.dumps({"text": text}) + "\n" for text in python_corpus(2_000_000))
    (assets / "c4_test" / "data.json").write_text(rows)
    (place / "run_train.sh").symlink_to(HERE / "run_train.sh")
    return [
        Case(
            name,
            ranks,
            [
                f"MODULE={CONFIGS} CONFIG={config} NGPU={ranks} LOG_RANK={','.join(map(str, range(ranks)))} "
                f"./run_train.sh --dump_folder {out / name} {more}"
                for config in configs
            ],
        )
        for name, (ranks, configs) in WHEEL.items()
    ]


def of_checkout(checkout: Path, place: Path, out: Path) -> list[Case]:
    """The cases of a checkout's list ``features``, as its runner runs them."""
    for entry in checkout.iterdir():
        if entry.name != "run_train.sh":
            (place / entry.name).symlink_to(entry)
    (place / "run_train.sh").symlink_to(HERE / "run_train.sh")
    listing = (
        "import json; from tests.integration_tests.features import build_features_test_list as f; "
        "print('CASES', json.dumps([(t.test_name, t.ngpu) for t in f() if not t.disabled]))"
    )
    done = subprocess.run([sys.executable, "-c", listing], cwd=place, env=environment(), capture_output=True, text=True)
    found = next((line for line in done.stdout.splitlines() if line.startswith("CASES ")), None)
    if found is None:
        sys.exit(f"{checkout}: its tests/integration_tests/features.py cannot be read:\n{done.stderr[-2000:]}")
    runner = f"{sys.executable} -m tests.integration_tests.run_tests"
    return [
        Case(name, ranks, [f"{runner} {out / name} --test_suite features --test_name '{name}' --ngpu {ranks}"])
        for name, ranks in json.loads(found.removeprefix("CASES "))
    ]


def verdict(case: Case, place: Path, out: Path, options: argparse.Namespace) -> str:
    """Runs a case; what came of it."""
    needs = next((why for word, why in NEEDS_CUDA.items() if word in case.name), None)
    if needs is None and options.checkout is None:
        needs = WITHOUT_CHECKOUT.get(case.name)
    if needs:
        return f"left out: needs {needs}"
    if case.ranks > options.ranks:
        return f"left out: {case.ranks} ranks"
    start = time.monotonic()
    log = out / f"{case.name}.log"
    for command in case.commands:
        with log.open("a") as file:
            file.write(f"$ {command}\n")
            file.flush()
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=place, env=environment(), stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(options.timeout)
            except subprocess.TimeoutExpired:
                return f"failed: still running after {options.timeout:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):  # the launcher, if it is there; its ranks end with it
                    os.killpg(process.pid, signal.SIGKILL)
        if status != 0:
            return f"failed: {reason(log.read_text(errors='replace'))}"
    losses = re.findall(r"loss: +(?:\x1b\[[\d;]*m)?([\d.]+)", log.read_text(errors="replace"))
    return f"passed in {time.monotonic() - start:.0f} s" + (f", last loss {losses[-1]}" if losses else "")


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, "PYTHONPATH": path, "PYTHON": sys.executable, **offline}


def reason(log: str) -> str:
    """The exception that the launcher told first, or the last line."""
    told = re.search(r"failed first:.*?^([\w.]+(?:Error|Exception)[^\n]*)", log, re.DOTALL | re.MULTILINE)
    return (told[1] if told else log.strip().splitlines()[-1])[:160]


if __name__ == "__main__":
    main()
