"""Imports TorchTitan with its models, which takes seconds; ranks forked afterwards have them.

The device that TorchTitan is imported for does not matter: a rank's check sets its own.
"""

import importlib
import logging

from neuron_dist.titan import shims
from neuron_dist.titan.corpus import python_corpus
from neuron_dist.titan.run import offline

offline()
shims.before_import("cpu")
logging.disable(logging.CRITICAL)  # torchao tells of the CUDA kernels that it does not find
for name in ("trainer", "models.llama3", "models.qwen3", "models.deepseek_v3", "models.gpt_oss"):
    importlib.import_module(f"torchtitan.{name}")
logging.disable(logging.NOTSET)
python_corpus()
