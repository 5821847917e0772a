"""What a wrong recipe says: file, line, key, value, what was expected, the nearest right spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dist.titan import source as yaml_source
from neuron_dist.titan.check import check
from neuron_dist.titan.layout import Layout
from neuron_dist.titan.problems import RecipeError
from neuron_dist.titan.recipe import find, load, recipe_names
from neuron_dist.titan.shims import torch_knows_spmd_types

RECIPE = """\
module: llama3
config: llama3_debugmodel
launch:
  ranks: 4
data:
  corpus: python
training:
  seq_len: 256
  local_batch_size: 2
  steps: 2
parallelism:
  data_parallel_shard_degree: 2
  tensor_parallel_degree: 2
"""


def refused(
    tmp_path: Path, text: str = RECIPE, *settings: str, ranks: int | None = 4, **options: str
) -> str:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError) as caught:
        check(str(file), settings, ranks=ranks, **{"device": "cpu", "backend": "gloo", **options})  # type: ignore[arg-type]
    return str(caught.value)


def test_the_recipe_itself_is_right(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE)
    plan = check(
        str(file),
        ["optimizer.param_groups.0.optimizer_kwargs.lr=1e-3"],
        ranks=4,
        device="cpu",
        backend="gloo",
    )
    assert plan.config.training.steps == 2
    assert plan.config.optimizer.param_groups[0].optimizer_kwargs["lr"] == 1e-3
    assert "betas" in plan.config.optimizer.param_groups[0].optimizer_kwargs
    assert (plan.layout.data, plan.layout.tensor, plan.layout.metrics_rank) == (2, 2, 0)
    assert plan.cluster.cores == 64


@pytest.mark.parametrize(
    "schedule, rank", [("1F1B", 1), ("Interleaved1F1B", 1), ("ZBVZeroBubble", 0), ("DualPipeV", 0)]
)
def test_the_loss_is_known_where_the_last_stage_is(schedule, rank):
    assert Layout(2, 1, 1, 1, 1, 2, 1, schedule).metrics_rank == rank


# setting -> what the message has to hold, beside the key and --set
SETTINGS = [
    ("training.stepz=5", ["training.stepz: 5", "did you mean 'steps'"]),
    ("trainning.steps=5", ["trainning", "did you mean 'training'"]),
    ("training.steps=many", ["'many'", "expected a whole number"]),
    ("training.steps=true", ["true", "expected a whole number"]),
    ("training.steps='5'", ["expected a whole number"]),
    ("training.steps=0", ["expected 1 or more"]),
    ("training.dtype=bfloat", ["expected one of bfloat16, float32", "did you mean 'bfloat16'"]),
    ("training=5", ["expected a section with some of local_batch_size"]),
    ("training.max_norm=[1]", ["expected a number"]),
    ("compile.components=model", ["expected a list, each text"]),
    ("activation_checkpoint=selectiv", ["did you mean 'selective'"]),
    ("model_spec=x", ["is chosen by module and config"]),
    ("optimizer.param_groups.3.pattern=x", ["expected an index below 1"]),
    ("checkpoint.interval=0", ["at least 1"]),
    ("parallelism.tensor_parallel_degree=3", ["multiply to 6, expected 4"]),
    ("parallelism.tensor_parallel_degree=-2", ["expected 1 or more"]),
    ("parallelism.data_parallel_shard_degree=-1 parallelism.tensor_parallel_degree=3", ["do not divide 4 ranks"]),
    ("parallelism.pipeline_parallel_degree=2", ["multiply to 8, expected 4"]),
    ("training.seq_len=255", ["expected a multiple of 2 (tensor_parallel_degree), such as 25"]),
    ("training.seq_len=1000000", ["expected at most", "longest sequence"]),
    ("training.seq_len=320 parallelism.data_parallel_shard_degree=1 parallelism.context_parallel_degree=2", ["multiple of 256"]),
    ("training.global_batch_size=6", ["expected a multiple of 4", "such as"]),
    ("launch.ranks=8", ["but 4 were started", "--nproc-per-node 8"]),
    ("cluster.product=trn2.48xlrge", ["did you mean 'trn2.48xlarge'"]),
    ("cluster.lnc=3", ["expected 1 or 2"]),
    ("cluster.instances=0", ["from 1 up"]),
    ("cluster.nodes=1", ["unknown key in cluster"]),
    ("data.corpus=python data.path=/nowhere/at/all", ["stands beside data.corpus"]),
    ("data.path=/nowhere/at/all", ["no such file or folder"]),
    ("data.tokenizer=/nowhere", ["tokenizer.json"]),
    ("data.corpus=pyhton", ["did you mean 'python'"]),
    ("module=lama3", ["did you mean 'llama3'"]),
    ("config=llama3_debug_model", ["did you mean 'llama3_debugmodel'"]),
    ("config=llama3_debugmodel_varlen_attn parallelism.data_parallel_shard_degree=1 parallelism.context_parallel_degree=2", ["variable-length attention"]),
    ("config=llama3_debugmodel_dist_gemm", ["needs torch 2.14"]),
    ("config=llama3_debugmodel_nvfp4", ["NVFP4 is only supported on SM100"]),
    ("compile.enable=true", ["needs torch 2.14", "compile.components: [loss]"]),
    ("compile.enable=true compile.enable_async_tensor_parallel=true", ["needs torch 2.14"]),
    ("parallelism.enable_fsdp_symm_mem=true", ["enable_fsdp_symm_mem is only supported"]),
    ("config=llama3_8b parallelism.tensor_parallel_degree=3 parallelism.data_parallel_shard_degree=1", ["32 attention heads"]),
    ("parallelism.pipeline_parallel_degree=2 parallelism.tensor_parallel_degree=1 parallelism.pipeline_parallel_schedule=1F2B", ["did you mean '1F1B'"]),
    ("parallelism.pipeline_parallel_degree=2 parallelism.tensor_parallel_degree=1 training.local_batch_size=3 parallelism.pipeline_parallel_microbatch_size=2", ["divisible"]),
    ("parallelism.spmd_backend=spmdtypes", ["did you mean 'spmd_types'"]),
    ("checkpoint.create_seed_checkpoint=true", ["is made by one rank, not 4"]),
    ("steps", ["expected section.key=value"]),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "expected"), SETTINGS, ids=[s for s, _ in SETTINGS])
def test_wrong_setting_is_refused(tmp_path: Path, settings: str, expected: list[str]) -> None:
    parts = settings.split(" ")
    message = refused(tmp_path, RECIPE, *parts)
    assert "--set" in message
    for text in expected:
        assert text in message
    assert "Traceback" not in message


def test_file_and_line_are_named(tmp_path: Path) -> None:
    message = refused(tmp_path, RECIPE.replace("seq_len", "seq_length"))
    assert "mine.yaml:8: training.seq_length: 256" in message
    assert "did you mean 'seq_len'" in message


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        RECIPE,
        "training.stepz=5",
        "training.dtype=half",
        "parallelism.tensor_parallel_degree=3",
    )
    for key in (
        "training.stepz",
        "training.dtype",
        "parallelism.tensor_parallel_degree",
        "training.seq_len",
    ):
        assert f"{key}: " in message


def test_degrees_that_do_not_divide_the_heads(tmp_path: Path) -> None:
    text = RECIPE.replace("ranks: 4", "ranks: 32").replace(
        "tensor_parallel_degree: 2", "tensor_parallel_degree: 16"
    )
    assert "16 key-value heads" not in refused(tmp_path, text, "training.stepz=1", ranks=32)
    text = text.replace("ranks: 32", "ranks: 64").replace(
        "tensor_parallel_degree: 16", "tensor_parallel_degree: 32"
    )
    assert "does not divide the 16 attention heads of layer 0" in refused(tmp_path, text, ranks=64)


def test_a_pipeline_stage_without_attention_to_split(tmp_path: Path) -> None:
    degrees = [
        "parallelism.pipeline_parallel_degree=2",
        "parallelism.context_parallel_degree=2",
        "parallelism.data_parallel_shard_degree=1",
        "parallelism.tensor_parallel_degree=1",
        "training.seq_len=256",
        "model.n_layers=4",
    ]
    message = refused(tmp_path, RECIPE, *degrees)
    assert "stage 3 of 4 has no layer whose attention could be split" in message
    degrees.append("parallelism.pipeline_parallel_schedule=1F1B")
    assert "stage" not in refused(tmp_path, RECIPE, *degrees, "training.stepz=1")


def test_too_many_pipeline_stages(tmp_path: Path) -> None:
    degrees = [
        "parallelism.pipeline_parallel_degree=16",
        "parallelism.data_parallel_shard_degree=1",
        "parallelism.tensor_parallel_degree=1",
    ]
    message = refused(
        tmp_path, RECIPE, *degrees, "launch.ranks=16", "training.local_batch_size=16", ranks=16
    )
    assert "6 layers do not split" in message


def test_more_ranks_than_cores(tmp_path: Path) -> None:
    text = RECIPE.replace("ranks: 4", "ranks: 80").replace("shard_degree: 2", "shard_degree: 40")
    assert "cluster.instances: 2 would do" in refused(tmp_path, text, ranks=80)


def test_gloo_does_not_move_neuron_tensors(tmp_path: Path) -> None:
    assert "--device cpu" in refused(tmp_path, device="neuron", backend="gloo")


def test_our_sections_and_torchtitans_are_told_together(tmp_path: Path) -> None:
    settings = ("launch.rank=2", "cluster.product=trn9", "training.stepz=5", "model.n_layers=many")
    message = refused(tmp_path, RECIPE, *settings)
    assert "the recipe has 4 problems" in message
    assert all(f"--set: {setting.partition('=')[0]}: " in message for setting in settings)
    message = refused(tmp_path, RECIPE.replace("llama3_debugmodel", "llama3_debugmodle"), "launch.rank=2")
    assert "the recipe has 2 problems" in message and "did you mean 'llama3_debugmodel'" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("module: llama3\n  config: x\n", "is not valid YAML"),
        ("- a\n- b\n", "expected a mapping"),
        ("config: llama3_debugmodel\n", "TorchTitan module to train"),
        ("module: llama3\nmodule: qwen3\nconfig: x\n", "stands twice"),
    ],
)
def test_wrong_file_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refused(tmp_path, text)


def test_recipe_is_found_by_name_or_path(tmp_path: Path) -> None:
    assert "llama3_debug" in recipe_names()
    assert find("llama3_debug").name == "llama3_debug.yaml"
    with pytest.raises(RecipeError, match="did you mean 'llama3_debug'"):
        find("llama3_debgu")
    with pytest.raises(RecipeError, match="no such file"):
        find(str(tmp_path / "llama3.yaml"))


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_are_right(name: str) -> None:
    if name == "layouts/tp2_async" and not torch_knows_spmd_types():
        with pytest.raises(RecipeError, match=r"needs torch 2\.14"):
            check(name, device="cpu", backend="gloo")
        return
    assert check(name, device="cpu", backend="gloo").recipe.name == name


def test_settings_keep_the_rest_of_a_section(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE)
    recipe = load(str(file), ["training.steps=7", "parallelism={tensor_parallel_degree: 1}"])
    assert recipe.titan["training"] == {"seq_len": 256, "local_batch_size": 2, "steps": 7}
    assert recipe.titan["parallelism"] == {
        "data_parallel_shard_degree": 2,
        "tensor_parallel_degree": 1,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8e-4", 8e-4),
        ("1.5", 1.5),
        ("no", "no"),
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ("5", 5),
        (".5", 0.5),
    ],
)
def test_values_are_those_of_yaml_1_2(text: str, value: object) -> None:
    parsed = yaml_source.parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)
