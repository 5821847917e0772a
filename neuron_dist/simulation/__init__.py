"""Simulated time: what a run would take on the simulated Trainium, beside what it computes.

The native core (``csrc/simulation``) keeps an int64 clock of nanoseconds for each stream of each rank, charges every
operator by the roofline of one logical core and every collective by the price of its schedule, and writes a trace.
This package reads what the core wrote; nothing in it touches a process group.

    roofline.py     what an operator costs on one logical core: the same arithmetic as the native clock
    intervals.py    spans of time: unions, overlaps, how a step divides
    trace.py        the trace of a run, one file a rank: its records, a reader and a writer
    program.py      records one rank's operators and collectives from PyTorch code on the meta device
    architecture.py, tensor_parallel.py, transformer.py
                    transformers of published shapes, to be recorded
    estimate.py     a training step's time from such programs, by formula: beside the clock, for clusters of any size
    replay.py       a trace once more, on links that groups share or on another cluster; it names the files behind it
    what_if.py      what a step would take with one part of the machine better, by replays

    figures.py      a run's steps and traffic, from a trace or from the native ledger; links.py: its busy links
    analysis.py     every number of a trace; busy, steps, transfers, kernels, hbm: one kind of number each
    session.py      one process's part: the clock's switch, the trace's file, where steps end (``end_step``)
    ledger.py       figures from the native core's ledgers; summary.py: the ten lines that end a run
    report.py       the page (sections, drawings, topology_svg, templates); to_json.py: the numbers alone
    chrome.py       the Chrome trace

Names that end in ``_ns`` are simulated nanoseconds; wall-clock times say ``wall`` or ``seconds``.
"""

from neuron_dist.simulation.session import end_step

__all__ = ["end_step"]
