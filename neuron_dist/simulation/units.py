"""Numbers as people read them, with their units: ``1.23 ms``, ``4.56 GB``, ``7.8 %``.

Traffic counts in powers of 1000, as nccom-test does; memory in powers of 1024, as torch does.
"""

from __future__ import annotations

__all__ = ["memory", "rate", "share", "time", "volume"]


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    value = value if abs(value) >= 0.005 else 0.0  # what a difference of means leaves of nothing
    size, unit = abs(value), 0
    while unit + 1 < len(units) and round(size) >= base:
        size, unit = size / base, unit + 1
    whole = size >= 100 or size == int(size)
    text = f"{size:.0f}" if whole else f"{size:.1f}" if size >= 10 else f"{size:.2f}"
    return f"{'-' if value < 0 else ''}{text} {units[unit]}"


def time(ns: float) -> str:
    """``850 ns``, ``12.3 us``, ``1.23 ms``, ``4.5 s``."""
    return _scaled(ns, 1000, ("ns", "us", "ms", "s"))


def volume(nbytes: float) -> str:
    """Bytes that move: ``12.3 MB``; 1 MB = 10^6 bytes."""
    return _scaled(nbytes, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def memory(nbytes: float) -> str:
    """Bytes that are held: ``1.5 GiB``."""
    return _scaled(nbytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def rate(per_second: float, unit: str = "B/s") -> str:
    """``96.3 GB/s``, or ``158 TFLOPS`` with that unit."""
    return _scaled(per_second, 1000, tuple(p + unit for p in ("", "k", "M", "G", "T", "P")))


def share(part: float) -> str:
    """``12.3 %`` of 0.123."""
    return f"{round(100 * part, 1) + 0.0:.1f} %"  # no minus before a zero
