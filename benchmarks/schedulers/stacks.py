"""The layers of stacks.toml, and what a sample of each costs on a unit of each device."""

import sys
from pathlib import Path

from hetero_pipe.planner.layers import DeviceType, LayerStack, StackLayer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BATCH = 4096  # samples of a unit between two averages of dense gradients
FLOAT = 4  # bytes

# What units share of a time; the rest is a step's fixed part. Invented: HeterPS measures its own.
COMPUTE_FRACTION = {"sparse": 0.995, "dense": 0.98}
COMM_FRACTION = {"sparse": 0.995, "dense": 0.5}  # averaging takes no less with more units


def load() -> tuple[list[dict], dict, dict]:
    """Returns the stacks, the devices and the price lists of stacks.toml."""
    tables = tomllib.loads(Path(__file__).with_name("stacks.toml").read_text(encoding="utf-8"))
    return tables["stack"], tables["device"], tables["prices"]


def build(stack: dict, devices: dict, prices: dict) -> LayerStack:
    """Returns a stack with the types of a price list."""
    types = tuple(
        DeviceType(
            name, devices[name]["kind"], each["price"], each["count"], devices[name]["network"]
        )
        for name, each in prices.items()
    )
    used = [devices[name] for name in prices]
    layers = tuple(layer(i, text, used) for i, text in enumerate(stack["layers"]))
    return LayerStack(stack["name"], layers, types)


def layer(at: int, text: str, devices: list[dict]) -> StackLayer:
    """Returns a layer: FLOPs of forward and backward (three times the forward) and bytes as time.

    A sparse layer pulls and pushes its rows over the network: key, weights and gradient. A dense
    one averages its gradients once a batch: 2 * parameters.
    """
    kind, _, shape = text.partition(" ")
    flops, touched, parameters, outputs = costs(kind, [int(n) for n in shape.split("x")])
    num_keys, dim = map(int, shape.split("x")) if kind == "embedding" else (0, 0)
    is_sparse = bool(num_keys)
    compute = [
        3 * flops / each["flops"] + 3 * FLOAT * touched / each["memory"] + num_keys * each["row"]
        for each in devices
    ]
    moved = num_keys * (8 + 2 * FLOAT * dim) + 2 * FLOAT * parameters / BATCH
    name = "sparse" if is_sparse else "dense"
    return StackLayer(
        f"{at}:{text.replace(' ', '-')}",
        name,
        compute=tuple(compute),
        comm=tuple(moved / each["network"] for each in devices),
        compute_fraction=COMPUTE_FRACTION[name],
        comm_fraction=COMM_FRACTION[name],
        cut_bytes=2 * FLOAT * outputs,
    )


def costs(kind: str, shape: list[int]) -> tuple[float, float, float, float]:
    """Returns of a sample FLOPs forward, floats read and written, parameters, floats it hands on.

    What a layer hands on is its own output; inputs that a later layer reads again
    are not counted.
    """
    first, last = shape[0], shape[-1]
    return {
        "embedding": (0, 2 * first * last, 0, first * last),
        "pool": (first * last, first * last, 0, 20 * last),
        "fc": (2 * first * last, first + last, first * last, last),
        "norm": (8 * first, 4 * first, 2 * first, first),
        "cross": (5 * first, 4 * first, 2 * first, first),
        "matrix": (2 * first * first, 4 * first, first * first, first),
        "fm": (4 * first * last, first * last, 0, first * last),
        "interact": (first * first * last, first * last + first * first / 2, 0, first * first / 2),
        "attention": (
            first * 2 * (4 * last * 36 + 36),
            first * (5 * last + 36),
            4 * last * 36 + 36,
            4 * last,
        ),
        "nce": (2 * (first + 1) * last, (first + 1) * last, 0, 1),
    }[kind]
