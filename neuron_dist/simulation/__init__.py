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

Names that end in ``_ns`` are simulated nanoseconds; wall-clock times say ``wall`` or ``seconds``.
"""
