"""The Chrome trace-event format as a JSON schema, and the rules that a schema cannot say.

After "Trace Event Format" (the Chromium project), for the phases that are written here: X, M, C, s, t, f.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

from jsonschema import Draft202012Validator

NUMBER, WHOLE, TEXT = (
    {"type": "number", "minimum": 0},
    {"type": "integer", "minimum": 0},
    {"type": "string", "minLength": 1},
)
PLACE = {
    "pid": {"type": "integer", "minimum": 1},
    "tid": {"type": "integer", "minimum": 1},
    "ts": NUMBER,
    "name": TEXT,
}


def _event(phases, required, **properties):
    keys = {"ph": {"enum": phases}, **PLACE, **properties}
    return {
        "if": {"properties": {"ph": {"enum": phases}}},
        "then": {
            "properties": keys,
            "required": [*PLACE, *required],
            "additionalProperties": False,
        },
    }


NAMES = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph"],
                "properties": {"ph": {"enum": ["X", "M", "C", "s", "t", "f"]}},
                "allOf": [
                    _event(["X"], ["dur", "cat"], dur=NUMBER, cat=TEXT, args={"type": "object"}),
                    _event(
                        ["M"],
                        ["args"],
                        name={"enum": list(NAMES)},
                        args={"type": "object", "minProperties": 1, "maxProperties": 1},
                    ),
                    _event(
                        ["C"],
                        ["args"],
                        args={"type": "object", "minProperties": 1, "additionalProperties": NUMBER},
                    ),
                    _event(["s", "t", "f"], ["id", "cat"], id=WHOLE, cat=TEXT, bp={"const": "e"}),
                ],
            },
        },
    },
}


def check(document):
    """Raises AssertionError that names the event; returns the events by phase."""
    validator = Draft202012Validator(SCHEMA)
    error = next(validator.iter_errors(document), None)
    assert error is None, f"{list(error.path)}: {error.message}"
    phases = defaultdict(list)
    for event in document["traceEvents"]:
        phases[event["ph"]].append(event)
    _metadata(phases)
    _nesting(phases["X"])
    _flows(phases)
    counters = defaultdict(list)
    for event in phases["C"]:
        counters[event["pid"], event["name"]].append(event["ts"])
    for key, times in counters.items():
        assert times == sorted(times), f"counter {key} goes back in time"
    return phases


def _metadata(phases):
    """Every process and thread with slices has exactly one name."""
    for what, key in (
        ("process_name", lambda e: e["pid"]),
        ("thread_name", lambda e: (e["pid"], e["tid"])),
    ):
        named = [key(e) for e in phases["M"] if e["name"] == what]
        assert len(named) == len(set(named)), f"{what} twice"
        missing = {key(e) for e in phases["X"]} - set(named)
        assert not missing, f"no {what} for {missing}"
    for event in phases["M"]:
        assert set(event["args"]) == {NAMES[event["name"]]}, event


def _nesting(slices):
    """Slices of a thread follow one another: none overlaps the one before."""
    threads = defaultdict(list)
    for event in slices:
        threads[event["pid"], event["tid"]].append(
            (nanoseconds(event["ts"]), nanoseconds(event["dur"]), event["name"])
        )
    for thread, spans in threads.items():
        spans.sort()
        for (start, duration, name), (after, _, other) in itertools.pairwise(spans):
            assert after >= start + duration, (
                f"{thread}: {other} begins at {after}, before {name} has ended"
            )


def _flows(phases):
    """Each flow has one start and one end, goes forward, and each of its events is inside a slice of its thread."""
    spans = defaultdict(list)
    for event in phases["X"]:
        start = nanoseconds(event["ts"])
        spans[event["pid"], event["tid"]].append((start, start + nanoseconds(event["dur"])))
    ids = defaultdict(lambda: defaultdict(list))
    for phase in "stf":
        for event in phases[phase]:
            ids[event["id"]][phase].append(event)
            at = nanoseconds(event["ts"])
            inside = any(start <= at < end for start, end in spans[event["pid"], event["tid"]])
            assert inside, f"flow {event['id']}: {phase} at {at} is in no slice"
    for number, found in ids.items():
        assert len(found["s"]) == len(found["f"]) == 1, (
            f"flow {number}: {len(found['s'])} s, {len(found['f'])} f"
        )
        assert found["f"][0]["bp"] == "e"
        places = [(e["pid"], e["tid"]) for events in found.values() for e in events]
        assert len(places) == len(set(places)) > 1, f"flow {number} ties a thread to itself"


def nanoseconds(us):
    return round(us * 1000)
