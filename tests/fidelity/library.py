"""Functions that stand in the files of installed packages, as far as Python can see."""

from pathlib import Path


def function_in(package, source, name="function", file="made_for_tests.py", **names):
    """The function ``name`` that ``source`` defines, as if it stood in ``file`` of ``package``."""
    namespace = {"__name__": f"{package.__name__}.made", **names}
    exec(compile(source, str((Path(package.__file__).parent / file).resolve()), "exec"), namespace)
    return namespace[name]
