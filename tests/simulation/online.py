"""The native clock's rules once more, as plainly as they can be said: writes the traces that a replay must give back.

Everything happens in the order of the calls; a collective is over when its last rank has called it.
"""

import math
from dataclasses import replace

from collectives import load_cluster, plan
from neuron_dist import _C
from neuron_dist.simulation.roofline import Roofline
from neuron_dist.simulation.trace import NOBODY, Kind, TraceWriter, file_name, read

DTYPES = {0: "uint8", 5: "float16", 6: "float32", 15: "bfloat16", 23: "float8_e5m2"}


def header(rank, world, cluster):
    described = {
        "product": cluster.product, "instances": cluster.instances, "lnc": cluster.lnc, "digest": cluster.digest,
        "name": str(cluster),
    }  # fmt: skip
    return {
        "rank": rank, "world_size": world, "cluster": described, "dtypes": {str(k): v for k, v in DTYPES.items()},
        "torch": "2.13.0", "command": "train.py", "hbm_bytes": cluster.hbm_bytes_per_core, "run": "r",
    }  # fmt: skip


def rounded(ns):
    return math.floor(ns + 0.5)


class Operation:
    def __init__(self, group, op, root, number):
        self.group, self.op, self.root, self.number = group, op, root, number
        self.ready, self.fields, self.ends = {}, {}, {}


class Online:
    """A run of some ranks. ``groups``: lists of global ranks."""

    def __init__(self, folder, world, groups=(), cluster=None, roofline=None):
        self.cluster = cluster or load_cluster()
        self.roofline = roofline or Roofline.of(self.cluster)
        self.folder, self.groups = folder, [list(g) for g in groups]
        self.dispatch = rounded(self.roofline.dispatch_ns)
        self.writers = [TraceWriter(folder, header(r, world, self.cluster)) for r in range(world)]
        self.numbers = [{} for _ in range(world)]
        """Each rank has its own numbers of the groups, in an order of its own."""
        for rank, writer in enumerate(self.writers):
            mine = [g for g, ranks in enumerate(self.groups) if rank in ranks]
            for number, g in enumerate(mine if rank % 2 else mine[::-1]):
                self.numbers[rank][g] = number + 3
                writer.group(number + 3, f"pg{g}", f"mesh_{g}" if g % 2 else "", self.groups[g])
        self.stream = [{} for _ in range(world)]
        self.events = [{} for _ in range(world)]
        self.host = [0] * world
        self.works = [{} for _ in range(world)]
        self.step_start, self.next_work = [0] * world, [0] * world
        self.free, self.calls, self.queue = {}, {}, {}
        self.channel_free, self.sent, self.received, self.messages = {}, {}, {}, {}
        self.late = []

    def of(self, rank, stream):
        return self.host[rank] if stream < 0 else self.stream[rank].get(stream, 0)

    def kernel(self, rank, stream=0, flops=0, nbytes=0, dtype=6, moves=0):
        self.host[rank] += self.dispatch
        start = max(self.of(rank, stream), self.host[rank])
        end = start + self.roofline.duration_ns(flops, nbytes, DTYPES.get(dtype, ""), moves)
        self.stream[rank][stream] = end
        self.writers[rank].add(
            Kind.KERNEL,
            name="aten::mm",
            dtype=dtype,
            stream=stream,
            start_ns=start,
            end_ns=end,
            flag=moves,
            a=flops,
            b=nbytes,
        )

    def record(self, rank, stream, event):
        self.events[rank][event] = self.of(rank, stream)
        self.writers[rank].add(Kind.RECORD, stream=stream, a=event, start_ns=self.of(rank, stream))

    def wait(self, rank, stream, event):
        self.stream[rank][stream] = max(self.of(rank, stream), self.events[rank].get(event, 0))
        self.writers[rank].add(Kind.WAIT, stream=stream, a=event, start_ns=self.of(rank, stream))

    def host_wait(self, rank, *, stream=None, event=None):
        time = self.of(rank, stream) if event is None else self.events[rank].get(event, 0)
        self.host[rank] = max(self.host[rank], time)
        self.writers[rank].add(
            Kind.HOST_WAIT,
            stream=stream or 0,
            flag=event is not None,
            a=event or 0,
            start_ns=self.host[rank],
        )

    def work(self, rank):
        self.next_work[rank] += 1
        return self.next_work[rank]

    def _issue(self, rank, g, op, stream, nbytes, number, peer, work, flag2=0):
        self.host[rank] += self.dispatch
        ready = max(self.of(rank, stream), self.host[rank])
        fields = {
            "name": op, "dtype": 6, "group": self.numbers[rank][g], "a": number, "b": nbytes, "c": work, "d": peer,
            "e": nbytes // 4, "flag2": flag2,
        }  # fmt: skip
        self.writers[rank].add(Kind.ISSUE, stream=stream, start_ns=ready, **fields)
        return ready, fields

    def call(self, rank, g, op, nbytes, stream=0, root=None, work=None):
        """The next collective of a group on this rank."""
        work = self.work(rank) if work is None else work
        number = self.calls[rank, g] = self.calls.get((rank, g), 0) + 1
        operation = self.queue.setdefault((g, number), Operation(g, op, root, number))
        assert (operation.op, operation.root) == (op, root)
        operation.ready[rank], operation.fields[rank] = self._issue(
            rank, g, op, stream, nbytes, number, NOBODY if root is None else root, work
        )
        self.works[rank].setdefault(work, []).append(lambda: operation.ends.get(rank))
        if len(operation.ready) == len(self.groups[g]):
            self._complete(operation)
        return work

    def price(self, op, nbytes, ranks, root=0):
        """(ns, algorithm): the schedule of the size class, with these bytes."""
        p = plan(op, _C.size_class(nbytes), ranks, self.cluster, root=root)
        return rounded(p.ready.pricer.price(nbytes).time_ns), p.algorithm

    def _complete(self, operation):
        ranks = self.groups[operation.group]
        assert self.free.get(("done", operation.group), 0) == operation.number - 1
        start = max(self.free.get(operation.group, 0), *operation.ready.values())
        algorithm, end = "", start
        if len(ranks) > 1:
            # all take the first rank's account, but where each knows its own sizes only, the dearest
            own = operation.op in ("all_to_all", "gather", "scatter")
            sizes = [operation.fields[r]["b"] for r in (ranks if own else ranks[:1])]
            costs = [self.price(operation.op, b, ranks, operation.root or 0) for b in sizes]
            algorithm, end = costs[0][1], start + max(ns for ns, _ in costs)
        self.free[operation.group], self.free["done", operation.group] = end, operation.number
        for rank in ranks:
            operation.ends[rank] = end
            self._done(rank, Kind.COLLECTIVE, 1000, operation.fields[rank], start, end, algorithm)

    def _done(self, rank, kind, stream, fields, start, end, algorithm):
        note = dict(fields, stream=stream, start_ns=start, end_ns=end, name2=algorithm)
        if (rank + fields["c"]) % 3:
            self.writers[rank].add(kind, **note)
        else:
            self.late.append((rank, kind, note))  # noticed by a driving thread, later

    def flush(self, count=1):
        """Writes what driving threads noticed late."""
        for _ in range(min(count, len(self.late))):
            rank, kind, note = self.late.pop(0)
            self.writers[rank].add(kind, **note)

    def send(self, rank, g, peer, nbytes, stream=0, eager=False, work=None):
        """``peer`` as a group rank."""
        work = self.work(rank) if work is None else work
        channel = g, self.groups[g].index(rank), peer
        number = self.sent[channel] = self.sent.get(channel, -1) + 1
        ready, fields = self._issue(rank, g, "send", stream, nbytes, number, peer, work, 4 * eager)
        ranks = [rank, self.groups[g][peer]]
        if ranks[0] == ranks[1]:
            cost = replace(self.roofline, launch_ns=0.0).duration_ns(0, 2 * nbytes)
        else:
            cost, _ = self.price("send", nbytes, ranks)
        leaves = max(ready, self.channel_free.get(channel, 0))
        self.channel_free[channel] = leaves + cost
        message = self.messages.setdefault((channel, number), {})
        message |= {"leaves": leaves, "cost": cost, "eager": eager, "sender": (rank, fields)}
        self.works[rank].setdefault(work, []).append(lambda: message.get("send_end"))
        if eager:
            message["send_end"] = leaves + cost
            self._done(rank, Kind.MESSAGE, 1001, fields, leaves, leaves + cost, "p2p")
        self._meet(message)
        return work

    def recv(self, rank, g, peer, nbytes, stream=0, work=None, anybody=False):
        work = self.work(rank) if work is None else work
        channel = g, peer, self.groups[g].index(rank)
        number = self.received[channel] = self.received.get(channel, -1) + 1
        ready, fields = self._issue(
            rank, g, "recv", stream, nbytes, 0, NOBODY if anybody else peer, work
        )
        message = self.messages.setdefault((channel, number), {})
        message |= {"ready": ready, "receiver": (rank, fields | {"a": number, "d": peer})}
        self.works[rank].setdefault(work, []).append(lambda: message.get("recv_end"))
        self._meet(message)
        return work

    def _meet(self, message):
        if not {"leaves", "ready"} <= message.keys():
            return
        start = max(message["leaves"], message["ready"])
        if message["eager"]:
            end = max(message["ready"], message["leaves"] + message["cost"])
        else:
            end = start + message["cost"]
            message["send_end"] = end
            self._done(
                message["sender"][0], Kind.MESSAGE, 1001, message["sender"][1], start, end, "p2p"
            )
        message["recv_end"] = end
        self._done(
            message["receiver"][0], Kind.MESSAGE, 1001, message["receiver"][1], start, end, "p2p"
        )

    def work_wait(self, rank, stream, work):
        """Waits, or does nothing and returns False where the real program would still block."""
        ends = [end() for end in self.works[rank].get(work, [])]
        if None in ends:
            return False
        time = max([self.of(rank, stream), *ends])
        if stream < 0:
            self.host[rank] = time
        else:
            self.stream[rank][stream] = time
        self.writers[rank].add(Kind.WORK_WAIT, stream=stream, c=work, start_ns=time)
        return True

    def at_end(self, rank, work, kernels, event=None, copies=False):
        """What follows on a work's end: copies that belong to it, or a callback that records an event."""
        ends = [end() for end in self.works[rank].get(work, [])]
        if None in ends:
            return
        stream, end = work + (1 << 29 if copies else 1 << 30), max(ends, default=0)
        host, self.host[rank], self.stream[rank][stream] = self.host[rank], end, end
        self.writers[rank].add(Kind.WORK_WAIT, stream=stream, c=work, start_ns=end)
        for nbytes in kernels:
            self.kernel(rank, stream, nbytes=nbytes)
        if event is not None:
            self.record(rank, stream, event)
        self.host[rank] = host
        over = self.stream[rank].pop(stream)
        if copies:
            self.works[rank][work].append(lambda: over)

    def step(self, rank, number):
        end = max(self.host[rank], *self.stream[rank].values(), 0)
        self.writers[rank].add(
            Kind.STEP, a=number, start_ns=self.step_start[rank], end_ns=end, e=17
        )
        self.step_start[rank] = end

    def traces(self):
        """Closes the files and reads them."""
        self.flush(len(self.late))
        for writer in self.writers:
            writer.close()
        assert (self.folder / file_name(0)).exists()
        return read(self.folder)
