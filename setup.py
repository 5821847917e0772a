"""Builds the native core; everything else about the package stands in pyproject.toml."""

import os
import platform
from pathlib import Path

# Building must not load what an earlier build left in this folder.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

if platform.system() != "Linux":
    raise SystemExit("neuron-dist needs Linux: device memory is a memfd and ranks sleep on futexes")

CSRC = Path("neuron_dist/csrc")
# torch's headers about profilers include Kineto's without its folder's name.
KINETO = [str(Path(folder) / "kineto") for folder in include_paths()[:1]]


class BuildNative(BuildExtension.with_options(use_ninja=True)):  # type: ignore[misc]
    """Keeps object files in one place, so that ``pip install -e .`` and ``build_ext`` share them."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = "build/native"


setup(
    ext_modules=[
        CppExtension(
            "neuron_dist._C",
            sorted(str(p) for p in CSRC.rglob("*.cpp")),
            include_dirs=[str(CSRC.resolve()), *KINETO],
            extra_compile_args=[
                "-O3",
                "-g0",
                # Rounding is part of the result: a*b+c must not fuse on some machines only.
                "-ffp-contract=off",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
                # torch's own headers, not ours
                "-Wno-missing-field-initializers",
                "-Wno-deprecated-declarations",
                "-Wno-unknown-pragmas",
            ],
        )
    ],
    cmdclass={"build_ext": BuildNative},
)
