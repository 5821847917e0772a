"""Simulated time: what a run would take on the simulated Trainium, beside what it computes.

The native core (``csrc/simulation``) keeps an int64 clock of nanoseconds for each stream of each rank, charges every
operator by the roofline of one logical core and every collective by the price of its schedule, and writes a trace.
This package reads what the core wrote; nothing in it touches a process group.

    roofline.py     what an operator costs on one logical core: the same arithmetic as the native clock
    intervals.py    spans of time: unions, overlaps, how a step divides
    trace.py        the trace of a run, one file a rank: its records, a reader and a writer

    figures.py      a run's steps and traffic, from a trace or from the native ledger; links.py: its busy links
    analysis.py     every number of a trace; busy, operations, kernels, hbm: one kind of number each
    summary.py      the ten lines that end a run
    report.py       the page (sections, drawings, topology_svg, templates); to_json.py: the numbers alone
    chrome.py       the Chrome trace

Names that end in ``_ns`` are simulated nanoseconds; wall-clock times say ``wall`` or ``seconds``.
"""
