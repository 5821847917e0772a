"""Random runs of several ranks for hypothesis, executed by :mod:`tests.simulation.online`."""

from hypothesis import strategies as st

from tests.simulation.online import Online

WORLD = 5
GROUPS = ([0, 1, 2, 3, 4], [0, 1], [1, 2, 3], [4], [3, 0], [0, 1])
"""Also one of one rank, one in another order than its ranks', and two of the same ranks."""
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "gather", "barrier")
SIZES = (0, 4, 1 << 12, 1 << 20, 5 << 20)
DTYPES = (6, 15, 0, 23)

number = st.integers(0, 2**16)
action = st.tuples(
    st.sampled_from(
        ["kernel"] * 4
        + [
            "record",
            "wait",
            "host_wait",
            "call",
            "call",
            "call",
            "send",
            "recv",
            "work_wait",
            "work_wait",
            "flush",
            "copies",
            "callback",
            "step",
        ]
    ),
    st.integers(0, WORLD - 1),
    st.integers(0, 2),
    number,
    number,
)
actions = st.lists(action, max_size=120)


class Script:
    """Carries out actions in a way that real ranks could: nobody waits for what has not happened yet."""

    def __init__(self, online: Online) -> None:
        self.online, self.plans, self.steps = online, {}, [0] * WORLD
        self.pending = {}

    def do(self, what, rank, stream, x, y):
        online = self.online
        if what == "kernel":
            online.kernel(
                rank,
                stream,
                flops=x * 10**6 * (y % 3),
                nbytes=y * 100,
                dtype=DTYPES[x % 4],
                moves=(x + y) % 5 % 3,
            )
        elif what == "record":
            online.record(rank, stream, x % 3)
        elif what == "wait":
            online.wait(rank, stream, x % 3)
        elif what == "host_wait":
            online.host_wait(rank, **({"stream": stream} if x % 2 else {"event": y % 3}))
        elif what == "call":
            mine = [g for g, ranks in enumerate(GROUPS) if rank in ranks]
            self.call(rank, mine[x % len(mine)], stream - (y % 4 == 0), x, y)
        elif what in ("send", "recv"):
            self.message(what, rank, stream - (y % 4 == 0), x, y)
        elif what == "work_wait":
            works = list(online.works[rank])
            if works:
                online.work_wait(rank, stream - (y % 3 == 0), works[x % len(works)])
        elif what in ("copies", "callback"):
            works = list(online.works[rank])
            if works:
                sizes = [10**6 * (y % 3), 10**4][: x % 3]
                event = None if what == "copies" else x % 3
                online.at_end(rank, works[y % len(works)], sizes, event, what == "copies")
        elif what == "flush":
            online.flush(x % 3)
        elif what == "step":
            online.step(rank, self.steps[rank])
            self.steps[rank] += 1

    def call(self, rank, g, stream, x, y, work=None):
        """The group's next collective on this rank; the first rank that comes to it chooses what it is."""
        key = g, self.online.calls.get((rank, g), 0)
        if key not in self.plans:
            op = OPS[x % len(OPS)]
            root = y % len(GROUPS[g]) if op in ("broadcast", "gather") else None
            self.plans[key] = op, 0 if op == "barrier" else SIZES[y % len(SIZES)], root
        op, nbytes, root = self.plans[key]
        if op in ("all_to_all", "gather"):
            nbytes += 4 * rank  # each has its own
        self.online.call(rank, g, op, nbytes, stream, root, work)

    def message(self, what, rank, stream, x, y):
        """Of groups 0 and 2: size and kind are a function of channel and number, so that both ends agree."""
        g = 2 if rank in GROUPS[2] and x % 2 else 0
        me, peer = GROUPS[g].index(rank), y % len(GROUPS[g])
        channel = (g, me, peer) if what == "send" else (g, peer, me)
        count = (self.online.sent if what == "send" else self.online.received).get(channel, -1) + 1
        nbytes = SIZES[(sum(channel) + 3 * count) % len(SIZES)]
        work = self.online.next_work[rank] if x % 5 == 0 and self.online.next_work[rank] else None
        if what == "send":
            self.online.send(
                rank, g, peer, nbytes, stream, eager=(count + peer) % 2 == 0, work=work
            )
        else:
            self.online.recv(rank, g, peer, nbytes, stream, work=work, anybody=x % 7 == 0)

    def finish(self):
        """What some ranks called, the others call too; messages get their other end; everybody waits for everything."""
        online = self.online
        for g, ranks in enumerate(GROUPS):
            most = max(online.calls.get((r, g), 0) for r in ranks)
            for rank in ranks:
                while online.calls.get((rank, g), 0) < most:
                    self.call(rank, g, 0, 0, 0)
        for channel in sorted(set(online.sent) | set(online.received)):
            g, source, target = channel
            while online.sent.get(channel, -1) < online.received.get(channel, -1):
                self.end_of_message("send", GROUPS[g][source], g, source, target)
            while online.received.get(channel, -1) < online.sent.get(channel, -1):
                self.end_of_message("recv", GROUPS[g][target], g, source, target)
        for rank in range(WORLD):
            for work in list(online.works[rank]):
                assert online.work_wait(rank, rank % 2, work)
            online.step(rank, self.steps[rank])

    def end_of_message(self, what, rank, g, source, target):
        channel = g, source, target
        count = (self.online.sent if what == "send" else self.online.received).get(channel, -1) + 1
        nbytes = SIZES[(sum(channel) + 3 * count) % len(SIZES)]
        if what == "send":
            self.online.send(rank, g, target, nbytes, 0, eager=(count + target) % 2 == 0)
        else:
            self.online.recv(rank, g, source, nbytes, 0)


def run(folder, todo, finish=True, **options):
    """The traces of a run of these actions."""
    online = Online(folder, WORLD, GROUPS, **options)
    script = Script(online)
    for step in todo:
        script.do(*step)
    if finish:
        script.finish()
    return online.traces()
