"""``python -m`` for a TorchTitan checkout: its modules import triton's kernels, which a CPU does not have.

    python module.py tests.integration_tests.run_tests results --test_suite features
"""

import runpy
import sys
from pathlib import Path

from neuron_dist.titan import shims

if __name__ == "__main__":
    shims.stub_triton_kernels()
    sys.path[0] = str(Path.cwd())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
