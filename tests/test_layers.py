"""The packages import in one direction: launch -> neuron_dist -> collectives, and configs is data."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "configs": set(),
    "collectives": {"numpy", "yaml"},
    "neuron_dist": {"collectives", "configs"},
    "launch": {"neuron_dist", "collectives", "configs"},
}
"""Our own packages that a package may import; for the torch-free ones, everything beside the standard library."""
TORCH_FREE = {"configs", "collectives"}


def imported(file):
    """Top-level names that a file imports, anywhere in it, with their lines."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0], node.lineno


def violations(package):
    allowed = MAY_IMPORT[package] | {package}
    for file in sorted((ROOT / package).rglob("*.py")):
        for name, line in imported(file):
            own = name in MAY_IMPORT and name not in allowed
            foreign = package in TORCH_FREE and name not in allowed | sys.stdlib_module_names
            if own or foreign:
                yield f"{file.relative_to(ROOT)}:{line}: {package} must not import {name}"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_import_upward(package):
    assert (ROOT / package).is_dir()
    assert not list(violations(package))


def test_torch_free_packages_do_not_load_torch():
    """Also not by way of another module: a fresh interpreter is the proof."""
    import subprocess

    program = (
        "import sys, collectives.planner, collectives.topology as t; t.load_cluster(); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
