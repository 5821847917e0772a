"""How each collective is called and what must come out: one function an op, found by its name in ``OPERATIONS``."""

import torch
import torch.distributed as dist

OPERATIONS = {}


def operation(function):
    OPERATIONS[function.__name__] = function
    return function


def _single(name, old_name):
    """A collective on single tensors under its new name, or the old one where torch does not have it yet."""
    return getattr(dist, name, None) or getattr(dist, old_name)


@operation
def all_reduce(c):
    tensor = c.put(c.content(c.rank))
    c.wait(dist.all_reduce(tensor, c.reduce_op(), async_op=c.case.async_op))
    c.check(tensor, c.reduced([c.content(r) for r in range(c.world_size)]))


@operation
def all_reduce_coalesced(c):
    parts = range(3)
    tensors = [c.put(c.content(c.rank, part)) for part in parts]
    work = dist.all_reduce_coalesced(tensors, c.reduce_op(), async_op=c.case.async_op)
    if c.case.async_op:
        work.wait()
    for part in parts:
        c.check(tensors[part], c.reduced([c.content(r, part) for r in range(c.world_size)]))


@operation
def reduce(c):
    tensor = c.put(c.content(c.rank))
    c.wait(dist.reduce(tensor, c.case.root, c.reduce_op(), async_op=c.case.async_op))
    if c.rank == c.case.root:
        c.check(tensor, c.reduced([c.content(r) for r in range(c.world_size)]))


@operation
def broadcast(c):
    tensor = c.put(c.content(c.rank))
    c.wait(dist.broadcast(tensor, c.case.root, async_op=c.case.async_op))
    c.check(tensor, c.content(c.case.root))


@operation
def all_gather(c):
    outputs = [c.empty() for _ in range(c.world_size)]
    c.wait(dist.all_gather(outputs, c.put(c.content(c.rank)), async_op=c.case.async_op))
    for rank, output in enumerate(outputs):
        c.check(output, c.content(rank))


@operation
def all_gather_uneven(c):
    shapes = [(r + 1, *c.case.shape) for r in range(c.world_size)]
    outputs = [c.empty(shape) for shape in shapes]
    mine = c.put(c.content(c.rank, shape=shapes[c.rank]))
    c.wait(dist.all_gather(outputs, mine, async_op=c.case.async_op))
    for rank, output in enumerate(outputs):
        c.check(output, c.content(rank, shape=shapes[rank]))


def _gather_single(c, call, stacked):
    contents = [c.content(r) for r in range(c.world_size)]
    expected = torch.stack(contents) if stacked or not c.case.shape else torch.cat(contents)
    output = torch.full(expected.shape, 5).to(c.case.dtype).to(c.device)
    c.wait(call(output, c.put(contents[c.rank]), async_op=c.case.async_op))
    c.check(output, expected)


@operation
def all_gather_into_tensor(c):
    _gather_single(c, dist.all_gather_into_tensor, stacked=False)


@operation
def all_gather_into_stack(c):
    _gather_single(c, dist.all_gather_into_tensor, stacked=True)


@operation
def all_gather_single(c):
    _gather_single(c, _single("all_gather_single", "all_gather_into_tensor"), stacked=False)


@operation
def reduce_scatter(c):
    inputs = [c.put(c.content(c.rank, part)) for part in range(c.world_size)]
    output = c.empty()
    c.wait(dist.reduce_scatter(output, inputs, c.reduce_op(), async_op=c.case.async_op))
    c.check(output, c.reduced([c.content(r, c.rank) for r in range(c.world_size)]))


@operation
def reduce_scatter_uneven(c):
    shapes = [(part + 1, *c.case.shape) for part in range(c.world_size)]
    inputs = [c.put(c.content(c.rank, part, shapes[part])) for part in range(c.world_size)]
    output = c.empty(shapes[c.rank])
    c.wait(dist.reduce_scatter(output, inputs, c.reduce_op(), async_op=c.case.async_op))
    mine = [c.content(r, c.rank, shapes[c.rank]) for r in range(c.world_size)]
    c.check(output, c.reduced(mine, [torch.Size(s).numel() for s in shapes]))


def _reduce_scatter_single(c, call, stacked):
    join = torch.stack if stacked or not c.case.shape else torch.cat
    mine = join([c.content(c.rank, part) for part in range(c.world_size)]).to(c.device)
    before = mine.clone()
    output = c.empty()
    c.wait(call(output, mine, c.reduce_op(), async_op=c.case.async_op))
    c.check(output, c.reduced([c.content(r, c.rank) for r in range(c.world_size)]))
    assert torch.equal(
        mine.cpu().view(-1).view(torch.uint8), before.cpu().view(-1).view(torch.uint8)
    ), "the input has changed"


@operation
def reduce_scatter_tensor(c):
    _reduce_scatter_single(c, dist.reduce_scatter_tensor, stacked=False)


@operation
def reduce_scatter_stack(c):
    _reduce_scatter_single(c, dist.reduce_scatter_tensor, stacked=True)


@operation
def reduce_scatter_single(c):
    _reduce_scatter_single(
        c, _single("reduce_scatter_single", "reduce_scatter_tensor"), stacked=False
    )


@operation
def gather(c):
    at_root = c.rank == c.case.root
    outputs = [c.empty() for _ in range(c.world_size)] if at_root else None
    c.wait(dist.gather(c.put(c.content(c.rank)), outputs, c.case.root, async_op=c.case.async_op))
    for rank, output in enumerate(outputs or []):
        c.check(output, c.content(rank))


@operation
def scatter(c):
    at_root = c.rank == c.case.root
    inputs = [c.put(c.content(r)) for r in range(c.world_size)] if at_root else None
    output = c.empty()
    c.wait(dist.scatter(output, inputs, c.case.root, async_op=c.case.async_op))
    c.check(output, c.content(c.rank))


@operation
def all_to_all(c):
    inputs = [c.put(c.content(c.rank, part)) for part in range(c.world_size)]
    outputs = [c.empty() for _ in range(c.world_size)]
    c.wait(dist.all_to_all(outputs, inputs, async_op=c.case.async_op))
    for rank, output in enumerate(outputs):
        c.check(output, c.content(rank, c.rank))


def _uneven(sender, receiver):
    """Rows that ``sender`` has for ``receiver``; none for some."""
    return (2 * sender + receiver) % 4


@operation
def all_to_all_uneven(c):
    ranks = range(c.world_size)

    def content(sender, receiver):
        return c.content(sender, receiver, (_uneven(sender, receiver), *c.case.shape))

    inputs = [c.put(content(c.rank, r)) for r in ranks]
    outputs = [c.empty(content(r, c.rank).shape) for r in ranks]
    c.wait(dist.all_to_all(outputs, inputs, async_op=c.case.async_op))
    for rank, output in enumerate(outputs):
        c.check(output, content(rank, c.rank))


@operation
def all_to_all_single(c):
    rows = [(2, *c.case.shape)] * c.world_size
    mine = c.put(torch.cat([c.content(c.rank, part, shape) for part, shape in enumerate(rows)]))
    expected = torch.cat([c.content(r, c.rank, rows[0]) for r in range(c.world_size)])
    output = torch.full(expected.shape, 5).to(c.case.dtype).to(c.device)
    c.wait(dist.all_to_all_single(output, mine, async_op=c.case.async_op))
    c.check(output, expected)


@operation
def all_to_all_single_splits(c):
    ranks = range(c.world_size)

    def content(sender, receiver):
        return c.content(sender, receiver, (_uneven(sender, receiver), *c.case.shape))

    mine = c.put(torch.cat([content(c.rank, r) for r in ranks]))
    expected = torch.cat([content(r, c.rank) for r in ranks])
    output = torch.full(expected.shape, 5).to(c.case.dtype).to(c.device)
    sends = [_uneven(c.rank, r) for r in ranks]
    receives = [_uneven(r, c.rank) for r in ranks]
    c.wait(dist.all_to_all_single(output, mine, receives, sends, async_op=c.case.async_op))
    c.check(output, expected)
