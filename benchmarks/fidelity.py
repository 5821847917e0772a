"""Published collective times beside ours: one parameter set a product, no tuning of single points.

    python benchmarks/fidelity.py [--json] [--all]

Each point of AWS's nccom-test tables D to K (those that say something about today's hardware), with the algorithm,
our time and the error. `--all` adds a third-party table that is not counted. Ends with 1 if the median error is above
15 %, or one above 50 % has no stated reason. Of table G the small sizes are printed and not counted.

AWS warns that its tables are illustrative, and does not name their instances: `where` says what we take each for, from
its date and size. All tables but P are in the AWS Neuron SDK documentation, tools/neuron-sys-tools/nccom-test.rst.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass

from collectives import load_cluster, plan
from collectives.topology import product_names

KI, MI, GI = 1 << 10, 1 << 20, 1 << 30

SETUP_NS = {
    "two streams": 88_000,
    "2023 runtime": 1_200_000,
}
"""Fitted, one number a test set-up: what nccom-test's two-stream mode adds to each op (table J, 1 KiB to 128 KiB), and
what the runtime of May 2023 added over two nodes (table K, from 32 KiB on). Not part of the simulated clock."""

LATENCY_2023 = (
    "below 1 KiB the runtime of 2023 took another path (520 to 780 us); the small-message floor has fallen from about "
    "150 to 6 us since, so the table is not one of today's latency"
)
FLOOR_G = (
    "table G has a floor of 300 us, against 6 to 10 us in D and F, and its sizes do not follow its own step factor: "
    "only its choice of algorithm and its rate at the largest size say something"
)


@dataclass(frozen=True)
class Table:
    """One published table. ``points`` are (bytes, microseconds, algorithm shown or None, reason or '')."""

    name: str
    what: str
    where: str
    product: str
    instances: int
    op: str
    ranks: range
    points: tuple[tuple[int, float, str | None, str], ...]
    setup: str = ""
    counted: bool = True


def _points(*pairs: tuple[int, float], until: int = 0, reason: str = "") -> tuple[tuple[int, float, None, str], ...]:
    return tuple((size, us, None, reason if size < until else "") for size, us in pairs)


TABLES = (
    Table("D", "32 ranks AG fp32", "2025-06; trn1.32xlarge, its full node", "trn1.32xlarge", 1, "all_gather", range(32),
          _points((KI, 6.19), (8 * KI, 6.55), (64 * KI, 8.18), (512 * KI, 23.11))),
    Table("E", "32 ranks AG fp32", "the same, another run", "trn1.32xlarge", 1, "all_gather", range(32),
          _points((KI, 6.16), (8 * KI, 6.48), (64 * KI, 8.17), (512 * KI, 23.16))),
    Table("F", "8 ranks AG fp32", "2026-02; trn2.48xlarge, two chips", "trn2.48xlarge", 1, "all_gather", range(8),
          _points((KI, 10.0), (8 * KI, 10.22), (64 * KI, 11.31), (512 * KI, 14.83))),
    Table("G", "16 ranks AR fp32", "2026-02; trn2.48xlarge, a row of four chips", "trn2.48xlarge", 1, "all_reduce",
          range(16), (
              (4, 299.91, "mesh", FLOOR_G), (32, 299.69, "mesh", FLOOR_G), (512, 299.82, "mesh", FLOOR_G),
              (8 * KI, 299.74, "mesh", FLOOR_G), (128 * KI, 574.15, "mesh", FLOOR_G), (2 * MI, 686.32, "rdh", FLOOR_G),
              (32 * MI, 2754.15, "kangaring", FLOOR_G), (512 * MI, 9689.51, "kangaring", ""))),
    Table("I", "4 ranks AG-v fp16", "2026-08; trn2.48xlarge, one chip", "trn2.48xlarge", 1, "all_gather", range(4),
          _points((2 * KI, 16.28))),
    Table("J", "4 x 16 ranks AR bf16, stream 0 of 2", "2026-08; trn2.48xlarge", "trn2.48xlarge", 1, "all_reduce",
          range(16), _points(
              (KI, 101.14), (2 * KI, 101.93), (4 * KI, 101.45), (8 * KI, 101.84), (16 * KI, 102.21), (32 * KI, 102.36),
              (64 * KI, 103.28), (128 * KI, 105.03), (256 * KI, 107.37), (512 * KI, 110.07), (MI, 117.67)),
          "two streams"),
    Table("J", "64 ranks AG fp32, stream 1 of 2, one of its two ops", "2026-08; trn2.48xlarge", "trn2.48xlarge", 1,
          "all_gather", range(64), _points((KI, 129.6)), "two streams"),
    Table("K", "64 ranks on 2 nodes AR fp32", "2023-05; 2 x trn1.32xlarge", "trn1.32xlarge", 2, "all_reduce", range(64),
          _points(
              (8, 520), (16, 520), (32, 523), (64, 525), (128, 553), (256, 709), (512, 782), (KI, 840), (2 * KI, 881),
              (4 * KI, 916), (8 * KI, 1013), (16 * KI, 1031), (32 * KI, 1174), (64 * KI, 1315), (128 * KI, 1315),
              (256 * KI, 1311), (512 * KI, 1312), (MI, 1328), (2 * MI, 1329), (4 * MI, 1378), (8 * MI, 1419),
              (16 * MI, 2138), (32 * MI, 2711), (64 * MI, 3963), (128 * MI, 6279), (256 * MI, 11954), (512 * MI, 21803),
              (GI, 41806), until=KI, reason=LATENCY_2023), "2023 runtime"),
    *(
        Table("P", f"{n} ranks, third party, unverified", "a plot without a name; trn1.32xlarge", "trn1.32xlarge", 1,
              "all_reduce", range(n), _points(*zip((KI, 64 * KI, MI, 32 * MI, GI), us, strict=True)), counted=False)
        for n, us in ((2, (2.1, 3.5, 18.7, 585, 18_996)), (8, (6.3, 11.6, 70.3, 893, 28_019)),
                      (16, (7.1, 11.7, 60.2, 934, 29_284)), (32, (9.1, 12.5, 63.9, 575, 16_218)))
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One point; times in microseconds, the error is ours against the published in per cent."""

    table: str
    what: str
    bytes: int
    published_us: float
    ours_us: float
    error_percent: float
    algorithm: str
    algorithm_shown: str | None
    reason: str
    counted: bool


def results() -> list[Result]:
    """Every point, priced now."""
    found = []
    for table in TABLES:
        cluster = load_cluster(table.product, instances=table.instances)
        for nbytes, published, shown, reason in table.points:
            made = plan(table.op, nbytes, table.ranks, cluster)
            ours = (made.time_ns + SETUP_NS.get(table.setup, 0)) / 1e3
            error = 100 * (ours / published - 1)
            counted = table.counted and (reason != FLOOR_G or nbytes >= 2 * MI)  # its switch points and large sizes
            found.append(Result(table.name, table.what, nbytes, published, ours, error, made.algorithm, shown, reason, counted))
    return found


def fitted() -> dict[str, tuple[float, str]]:
    """Every fitted parameter: its value and what it is fitted to."""
    found: dict[str, tuple[float, str]] = {}
    for product in sorted(product_names(), key=lambda name: name not in ("trn1.32xlarge", "trn2.48xlarge")):
        for name, entry in load_cluster(product).spec["fitted"].items():
            if not any(value == (entry["value"], entry["fitted_to"]) for value in found.values()):
                found[f"{product} {name}"] = (entry["value"], entry["fitted_to"])
    for name, value in SETUP_NS.items():
        found[f"benchmark {name} ns"] = (value, "see SETUP_NS")
    return found


def summary(points: list[Result]) -> dict[str, float | int]:
    """Median and worst error of the counted points, those above 50 % without a reason, and algorithms that differ."""
    counted = [abs(p.error_percent) for p in points if p.counted]
    return {
        "points": len(counted),
        "median_error_percent": statistics.median(counted),
        "worst_error_percent": max(counted),
        "above_50_percent_without_reason": sum(p.counted and abs(p.error_percent) > 50 and not p.reason for p in points),
        "above_50_percent_with_reason": sum(abs(p.error_percent) > 50 and bool(p.reason) for p in points),
        "algorithms_shown": sum(p.algorithm_shown is not None for p in points),
        "algorithms_that_differ": sum(p.algorithm_shown not in (None, p.algorithm) for p in points),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--all", action="store_true", help="also the third-party table P, which is not counted")
    arguments = parser.parse_args()
    points = [p for p in results() if arguments.all or p.table != "P"]
    totals = summary(points)
    if arguments.json:
        print(json.dumps({"points": [asdict(p) for p in points], "summary": totals, "fitted": fitted()}))
    else:
        _print(points, totals)
    good = totals["median_error_percent"] <= 15 and not totals["above_50_percent_without_reason"]
    return 0 if good and not totals["algorithms_that_differ"] else 1


def _print(points: list[Result], totals: dict[str, float | int]) -> None:
    notes: list[str] = []
    what = None
    for p in points:
        if p.what != what:
            what = p.what
            where = next(t.where for t in TABLES if t.what == what and t.name == p.table)
            print(f"\n{p.table}: {p.what} ({where})")
            print(f"{'bytes':>12} {'published us':>13} {'ours us':>10} {'error':>8}  algorithm")
        note = ""
        if p.reason and abs(p.error_percent) > 50:
            notes += [p.reason] if p.reason not in notes else []
            note = f" [{notes.index(p.reason) + 1}]"
        shown = "" if p.algorithm_shown in (None, p.algorithm) else f" (published: {p.algorithm_shown})"
        print(f"{p.bytes:>12} {p.published_us:>13.2f} {p.ours_us:>10.2f} {p.error_percent:>+7.1f}%  {p.algorithm}{shown}{note}")
    for i, reason in enumerate(notes, 1):
        print(f"\n[{i}] {reason}")
    print("\nFitted parameters:")
    for name, (value, source) in fitted().items():
        print(f"  {name} = {value:g}: {source}")
    print()
    for name, value in totals.items():
        print(f"{name.replace('_', ' ')}: {value:.4g}")


if __name__ == "__main__":
    sys.exit(main())
