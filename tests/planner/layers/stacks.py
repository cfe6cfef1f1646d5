"""Random stacks of layers, and one that is easy to read."""

from hetero_pipe.planner.layers import DeviceType, LayerStack, StackLayer


def draw_stack(rng, *, num_layers, num_types, most_units):
    """Returns a stack whose limits bind as often as not, and whose best types differ by layer."""
    types = tuple(
        DeviceType(
            name=f"type{i}",
            kind=rng.choice(["cpu", "gpu"]),
            price_per_hour=rng.choice([0.04, 0.5, 1.0, 2.42]) * rng.uniform(0.8, 1.2),
            count=rng.randint(1, most_units),
            bandwidth=rng.choice([1e9, 1e10, float("inf")]),
            memory=rng.choice([float("inf"), 100.0]),
            step=rng.choice([0.0, 1e-5]),
            call=rng.choice([0.0, 1e-6]),
            message_byte=rng.choice([0.0, 1e-9]),
        )
        for i in range(num_types)
    )
    return LayerStack(
        "random",
        tuple(draw_layer(rng, f"layer{i}", num_types) for i in range(num_layers)),
        types,
        is_overlapped=rng.random() < 0.5,
    )


def draw_layer(rng, name, num_types):
    scale = rng.uniform(1e-5, 1e-4)
    compute = [scale * rng.uniform(0.2, 5) for _ in range(num_types)]
    if num_types > 1 and rng.random() < 0.2:
        compute[rng.randrange(num_types)] = float("inf")
    return StackLayer(
        name,
        rng.choice(["sparse", "dense"]),
        compute=tuple(compute),
        comm=tuple(scale * rng.uniform(0, 1) for _ in range(num_types)),
        compute_fraction=rng.choice([1.0, 0.99, 0.9, 0.5]),
        comm_fraction=rng.choice([1.0, 0.9, 0.0]),
        cut_bytes=rng.choice([0.0, 400.0, 20000.0]),
        shared_bytes=rng.choice(
            [(), tuple(rng.choice([0.0, 50.0, 150.0]) for _ in range(num_types))]
        ),
        own_bytes=rng.choice([0.0, 0.0, 30.0]),
    )


def two_layers(*, price=2.0, count=4, **settings):
    """Returns an embedding of 1 ms on a core and a dense layer of 2 ms on a GPU.

    On the other's type each takes ten times as long.
    """
    types = (
        DeviceType("core", "cpu", price_per_hour=0.1, count=100),
        DeviceType("gpu", "gpu", price_per_hour=price, count=count),
    )
    layers = (
        StackLayer("embedding", "sparse", (1e-3, 1e-2), (0.0, 0.0), **settings),
        StackLayer("dense", "dense", (2e-2, 2e-3), (0.0, 0.0), **settings),
    )
    return LayerStack("two layers", layers, types)
