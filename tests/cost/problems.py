"""A small model, and plans for it on clusters that are written down."""

from hetero_pipe.cost import Workload
from hetero_pipe.graph import BATCH, Call, Size, Table, Tensor, build_graph
from hetero_pipe.plan import STAGES, Plan, ProcessPlan, StagePlan, TablePlan, WorkersPlan

USERS = Table("users", 16, {"user": 1.0}, state_per_weight=1, single=("user",), distinct=0.9)
ITEMS = Table("items", 8, {"item": 1.0, "history": 5.0}, state_per_weight=2, single=("item",))
TABLES = (USERS, ITEMS)
ROWS = {"users": 1e6, "items": 1e5}


def activation(name, *sizes, dtype="float32", needs_gradient=True):
    return Tensor(name, tuple(map(Size.of, sizes)), dtype, needs_gradient=needs_gradient)


def parameter(name, *sizes):
    return Tensor(name, tuple(map(Size.of, sizes)), is_parameter=True, needs_gradient=True)


def model(hidden=64):
    """Two tables, pooled, and a matmul over both."""
    keys = {
        slot: activation(f"keys.{slot}", table.keys(slot), dtype="uint64", needs_gradient=False)
        for table in TABLES
        for slot in table.slots
    }
    calls, pooled = [], []
    for table in TABLES:
        inputs = tuple(keys[slot] for slot in table.slots)
        rows = activation(f"{table.name}.rows", table.rows, table.dim)
        pooled.append(activation(table.name, BATCH, len(table.slots) * table.dim))
        calls += [
            Call("pull", inputs, (rows,), {}, table.name, table.name, "m.py:1", table.name),
            Call(
                "pool",
                (rows, *inputs),
                (pooled[-1],),
                {"slots": ",".join(table.slots)},
                table.name,
                table.name,
                "m.py:1",
                table.name,
            ),
        ]
    both = activation("both", BATCH, 32)
    made, out = activation("made", BATCH, hidden), activation("out", BATCH, hidden)
    weight = parameter("weight", 32, hidden)
    calls += [
        Call("concat", tuple(pooled), (both,), {}, "deep", "deep", "m.py:2"),
        Call("matmul", (both, weight), (made,), {}, "deep", "deep", "m.py:2"),
        Call("relu", (made,), (out,), {}, "deep", "deep", "m.py:2"),
    ]
    return build_graph("Model", calls, inputs=list(keys.values()), outputs=[out], tables=TABLES)


def workload(**changes):
    return Workload(**({"graph": model(), "rows": ROWS, "num_dense": 4} | changes))


def plan(
    *processes,
    batch=1000,
    staleness=1,
    homes=None,
    cached=None,
    capacity=2,
    device="cpu",
    **workers,
):
    """Returns a plan; servers, if it has such processes, have addresses that nobody asks."""
    is_served = any(each.role == "server" for each in processes)
    homes, cached = homes or {}, cached or {}
    num_readers = sum(each.count for each in processes if each.role in ("whole", "sparse"))
    num_dense = sum(each.count for each in processes if each.role == "dense")
    return Plan(
        stages=tuple(
            StagePlan(name, device if name == "dense" else "cpu", capacity) for name in STAGES
        ),
        tables=tuple(
            TablePlan(
                table.name,
                table.dim,
                tuple(table.slots),
                ("127.0.0.1:1",) if is_served and homes.get(table.name, "host") == "host" else (),
                home=homes.get(table.name, "host"),
                cached_rows=cached.get(table.name, 0),
            )
            for table in TABLES
        ),
        staleness=staleness,
        batch_size=batch,
        processes=processes,
        workers=WorkersPlan(
            num_readers=max(num_readers, 1),
            dense=tuple(f"127.0.0.1:{i + 2}" for i in range(num_dense)),
            **workers,
        ),
    )


def servers(host="server", machines=1, per_machine=1):
    return ProcessPlan("server", host, "cpu", machines, per_machine)


def workers(role="whole", host="trainer", device="cpu", machines=1, per_machine=1):
    return ProcessPlan(role, host, device, machines, per_machine)
