"""What `test_emulated_collectives.py` runs on three devices, each of a process of its own.

Rank r's numbers are random, drawn from the seed r: so each rank knows all ranks'. Its
device sends and receives 50 MB a second.
"""

from functools import cache

import numpy as np
import paddle
import paddle.distributed as dist

MEGABYTE = (1 << 18,)  # of float32; a socket takes a few hundred KB at once
REDUCTIONS = {
    dist.ReduceOp.SUM: np.add,
    dist.ReduceOp.MAX: np.maximum,
    dist.ReduceOp.MIN: np.minimum,
    dist.ReduceOp.PROD: np.multiply,
}


@cache
def numbers(rank, shape, dtype="float32"):
    return (np.random.default_rng(rank).normal(size=shape) * 9).astype(dtype)


def tensor(array):
    made = paddle.to_tensor(array)
    assert str(made.place) == f"Place(emulated:{RANK})"
    return made


def of_all(shape, dtype="float32"):
    return [numbers(rank, shape, dtype) for rank in range(SIZE)]


def reduced(reduction, arrays):
    """The reduction in the order of the ranks, to the bit."""
    total = arrays[0]
    for array in arrays[1:]:
        total = REDUCTIONS[reduction](total, array)
    return total


def check_all_reduce():
    for dtype in ("float32", "float64", "int32", "int64"):
        for shape in ((1,), (3, 5), MEGABYTE):
            for reduction in REDUCTIONS:
                found = tensor(numbers(RANK, shape, dtype))
                dist.all_reduce(found, op=reduction)
                np.testing.assert_array_equal(found, reduced(reduction, of_all(shape, dtype)))


def check_reduce():
    for root in range(SIZE):
        found = tensor(numbers(RANK, (7,)))
        dist.reduce(found, dst=root)
        total = reduced(dist.ReduceOp.SUM, of_all((7,)))
        np.testing.assert_array_equal(found, total if root == RANK else numbers(RANK, (7,)))


def check_reduce_scatter():
    found = paddle.zeros([5])
    dist.reduce_scatter(found, [tensor(part) for part in numbers(RANK, (SIZE, 5))])
    total = reduced(dist.ReduceOp.SUM, of_all((SIZE, 5)))
    np.testing.assert_array_equal(found, total[RANK])


def check_broadcast():
    for dtype in ("float32", "int64", "bool", "float16"):
        for root in range(SIZE):
            found = tensor(numbers(RANK, (1000,), dtype))
            dist.broadcast(found, src=root)
            np.testing.assert_array_equal(found, numbers(root, (1000,), dtype))


def check_all_gather():
    for size in (4, *MEGABYTE):
        found = paddle.zeros([SIZE * size])
        dist.stream.all_gather(found, tensor(numbers(RANK, (size,))))
        np.testing.assert_array_equal(found, np.concatenate(of_all((size,))))


def check_scatter():
    found = paddle.zeros([5])
    parts = [tensor(part) for part in numbers(1, (SIZE, 5))]
    dist.scatter(found, parts if RANK == 1 else None, src=1)
    np.testing.assert_array_equal(found, numbers(1, (SIZE, 5))[RANK])


def check_all_to_all():
    for size in (3, *MEGABYTE):
        found = paddle.zeros([SIZE, size])
        dist.stream.alltoall(found, tensor(numbers(RANK, (SIZE, size))))
        expected = [array[RANK] for array in of_all((SIZE, size))]
        np.testing.assert_array_equal(found, expected)


def check_send_and_recv():
    """Around a ring, two tensors to each, which arrive in order."""
    for shape in ((5,), MEGABYTE):
        sent = tensor(numbers(RANK, shape))
        for turn in range(2):
            found = paddle.zeros(shape)
            for rank in range(SIZE):
                if rank == RANK:
                    dist.send(sent * (turn + 1), dst=(RANK + 1) % SIZE)
                elif (rank + 1) % SIZE == RANK:
                    dist.recv(found, src=rank)
            np.testing.assert_array_equal(found, numbers((RANK - 1) % SIZE, shape) * (turn + 1))


def check_a_group_of_some():
    some = dist.new_group([0, 2])
    if RANK != 1:
        found = tensor(numbers(RANK, (9,)))
        dist.all_reduce(found, group=some)
        np.testing.assert_array_equal(found, numbers(0, (9,)) + numbers(2, (9,)))


def check_that_the_host_goes_on_while_a_sum_takes_its_time():
    """Of 32 MB, which take most of a second."""
    array = np.full(1 << 22, RANK, np.float32)
    found = tensor(array)
    dist.all_reduce(found)
    has_summed = paddle.device.current_stream().record_event()
    assert not has_summed.query()
    np.testing.assert_array_equal(found, np.full(1 << 22, sum(range(SIZE)), np.float32))
    assert has_summed.query()


if __name__ == "__main__":
    dist.init_parallel_env()
    RANK, SIZE = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "XCCL"
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            dist.barrier()
            print(name, "holds", flush=True)
