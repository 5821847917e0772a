"""examples/titan_integration: the runner of a checkout drives the launcher; the wheel's cases are all there."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "titan_integration"
RUNNER = '''
import argparse, subprocess
from tests.integration_tests.features import build_features_test_list

parser = argparse.ArgumentParser()
parser.add_argument("output_dir")
parser.add_argument("--test_suite")
parser.add_argument("--test_name")
parser.add_argument("--ngpu")
args = parser.parse_args()
for case in build_features_test_list():
    if case.test_name == args.test_name:
        for config in case.configs:
            variables = f"MODULE={config.__module__} CONFIG={config.__name__} NGPU={case.ngpu} LOG_RANK=0,1"
            folder = f"--dump_folder {args.output_dir}/{case.test_name}"
            subprocess.run(f"{variables} ./run_train.sh {folder} --training.steps 2", shell=True, check=True)
'''
FEATURES = '''
from types import SimpleNamespace
import torchtitan_recipes.tests.features as recipes

def build_features_test_list():
    return [
        SimpleNamespace(test_name=name, ngpu=ngpu, disabled=disabled, configs=[getattr(recipes, config)])
        for name, ngpu, disabled, config in [
            ("hsdp", 4, False, "llama3_debugmodel_hsdp2x2"),
            ("fsdp_reshard_always", 2, False, "llama3_debugmodel_fsdp_reshard_always"),
            ("cp", 4, True, "llama3_debugmodel_cp4"),
            ("2d_asynctp_compile", 2, False, "llama3_debugmodel_tp2_asynctp_compile_spmd_types"),
        ]
    ]
'''


@pytest.fixture
def checkout(tmp_path):
    """What run.py needs of a TorchTitan checkout, with a short runner and four of its cases."""
    from neuron_dist.titan.tokenizer import tokenizer_folder

    tests = tmp_path / "torchtitan" / "tests"
    (tests / "integration_tests").mkdir(parents=True)
    (tests / "__init__.py").touch()
    (tests / "integration_tests" / "__init__.py").touch()
    (tests / "integration_tests" / "run_tests.py").write_text(RUNNER)
    (tests / "integration_tests" / "features.py").write_text(FEATURES)
    (tests / "assets" / "c4_test").mkdir(parents=True)
    (tests / "assets" / "tokenizer").symlink_to(tokenizer_folder())
    rows = '{"text": "One token after the other, and what stands between them is left out."}\n' * 200
    (tests / "assets" / "c4_test" / "data.json").write_text(rows)
    (tests.parent / "run_train.sh").write_text("exit 1\n")
    return tests.parent


def run(*arguments, **variables):
    command = [sys.executable, FOLDER / "run.py", *arguments]
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_a_checkout_drives_the_launcher(checkout, tmp_path):
    out = tmp_path / "out"
    status, said = run("--checkout", checkout, "--out", out, "--ranks", "2", SEQ_LEN="32")
    log = out / "fsdp_reshard_always.log"
    assert status == 0, said + (log.read_text() if log.exists() else "")
    assert "fsdp_reshard_always           2 ranks  passed in " in said
    assert "last loss" in said
    assert "hsdp                          4 ranks  left out: 4 ranks" in said
    assert "left out: needs symmetric memory, which is CUDA's" in said
    assert "1 passed, 0 failed, 2 left out" in said
    text = log.read_text()
    assert "[rank0]" in text and "[rank1]" in text and "step:  2" in text


def test_what_cannot_be_run_is_said(tmp_path):
    status, said = run("--out", tmp_path, "--only", "pp_1f1bb")
    assert status != 0 and "no case 'pp_1f1bb'" in said
    (tmp_path / "file").touch()
    status, said = run("--out", tmp_path)
    assert status != 0 and f"{tmp_path} is not empty" in said


def test_all_configs_of_the_wheel_are_cases():
    package = importlib.util.find_spec("torchtitan_recipes")
    source = Path(package.submodule_search_locations[0], "tests", "features.py").read_text()
    functions = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    data = yaml.safe_load((FOLDER / "cases.yaml").read_text())
    listed = [config for case in data["cases"].values() for config in case["configs"]]
    assert set(listed) == {name for name in functions if not name.startswith("_")}
