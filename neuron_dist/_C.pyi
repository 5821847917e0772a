"""The native core, for type checkers: its functions are documented where they are bound, in ``csrc``."""

from typing import Any

def __getattr__(name: str) -> Any: ...
