"""Group: some workers of a plan, and what they do together.

Words go over their meeting, tensors through `paddle.distributed`: gloo on a CPU, NCCL
on GPUs, xccl on a custom device. Of gloo in Paddle 3.3, found by experiment: an
all-reduce releases the GIL and may run in any thread; the death of a peer fails it at
once; and a peer that is 30 seconds late fails it too. So a sum is begun when all have
met, never before.
"""

import fcntl
import logging
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.errors import ConfigError, HeteroPipeError, StageError, WorkerLost
from hetero_pipe.nn.device import Device
from hetero_pipe.pipeline import Channel, Meeting
from hetero_pipe.plan import Worker, WorkersPlan

__all__ = ["Group", "Groups", "join_groups"]

logger = logging.getLogger(__name__)


class Group:
    """Some workers of a plan. Each calls the same methods in the same order.

    Used by one thread at a time; `close` by any.

    Args:
        channel: Where they meet; None is a group of one.
        rank: Of this worker among them.
        device: Of `sum`; None in a group of one.

    Attributes:
        rank: Of this worker, from 0.
        size: Workers.
    """

    def __init__(self, channel: Channel | None, *, rank: int, device: Device | None) -> None:
        self._channel = channel
        self._device = device
        self.rank = rank
        self.size = 1 if channel is None else len(channel.ranks)

    @staticmethod
    def solo() -> "Group":
        """Returns the group of one worker, who waits for nobody."""
        return Group(None, rank=0, device=None)

    def gather(self, value: Any) -> list[Any]:  # as a Channel's
        """Returns what each worker gives, by rank; waits for all, however long that takes.

        Args:
            value: Of None, bool, numbers, texts, arrays, and lists and dicts by
                text of them.

        Raises:
            Closed: The group was closed.
            WorkerLost: One is gone; the message names it.
        """
        return [value] if self._channel is None else self._channel.gather(value)

    def barrier(self) -> None:
        """Returns when all have come here. Raises as `gather` does."""
        self.gather(None)

    def sum(self, arrays: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """Returns the sums over the workers of each array, equal bits on all of them.

        Called right after a `gather`: Paddle waits 30 seconds for a late one.

        Args:
            arrays: float32, of equal shapes on all workers.

        Raises:
            DeviceOutOfMemory: They do not fit once more.
            WorkerLost: One is gone; the message names it.
        """
        if self._channel is None or not arrays:
            return list(arrays)
        assert self._device is not None, "several workers have one each"
        try:
            # Also in the thread of an Averager, beside the one that trains.
            with self._device.launching():
                # A copy: what the arrays share memory with stays as it is.
                flat = self._device.to_tensor(np.concatenate([a.reshape(-1) for a in arrays]))
                paddle.distributed.all_reduce(flat)
                total = self._device.to_array(flat)  # where a device tells what became of it
        except (RuntimeError, OSError) as error:
            raise self._lost(error) from error
        ends = np.cumsum([array.size for array in arrays])[:-1]
        parts = np.split(total, ends)
        return [part.reshape(a.shape) for part, a in zip(parts, arrays, strict=True)]

    def broadcast(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Returns the arrays of rank 0. Raises as `gather` does."""
        held = self.gather(dict(arrays) if self.rank == 0 else None)[0]
        return dict(held)

    def launching(self) -> AbstractContextManager[None]:
        """Returns the `launching` of its device, for what is done with what `sum` gave."""
        return nullcontext() if self._device is None else self._device.launching()

    def branch(self, name: str) -> "Group":
        """Returns a group of the same workers that is closed by itself."""
        channel = None if self._channel is None else self._channel.branch(name)
        return Group(channel, rank=self.rank, device=self._device)

    def close(self) -> None:
        """Makes a wait for the others, and later ones, raise `pipeline.Closed`."""
        if self._channel is not None:
            self._channel.close()

    def _lost(self, error: Exception) -> WorkerLost:
        assert self._channel is not None
        reason = self._channel.await_failure()
        return WorkerLost(reason or f"a worker must be there for an all-reduce, got {error}")


class Groups:
    """The groups that one worker is in. A context manager; closed, it says goodbye.

    Args:
        meeting: Of all workers; None if there is but one.
        world: All of them, those that read first.
        readers: Whole or sparse workers; None if this is none of them.
        dense: Whole or dense workers, which hold replicas of the dense part.
    """

    def __init__(
        self, meeting: Meeting | None, *, world: Group, readers: Group | None, dense: Group | None
    ) -> None:
        self._meeting = meeting
        self.world = world
        self._readers = readers
        self._dense = dense

    @staticmethod
    def solo() -> "Groups":
        """Returns the groups of a worker that is alone."""
        group = Group.solo()
        return Groups(None, world=group, readers=group, dense=group)

    @property
    def readers(self) -> Group:
        """Those that read; of a reader alone."""
        assert self._readers is not None, "a dense worker does not read"
        return self._readers

    @property
    def dense(self) -> Group:
        """Those that hold a replica of the dense part; of one of them alone."""
        assert self._dense is not None, "a sparse worker has no dense part"
        return self._dense

    def fail(self, error: BaseException) -> None:
        """Tells all others that this worker cannot go on: their waits raise WorkerLost."""
        if self._meeting is not None:
            is_of_another = isinstance(error, HeteroPipeError) and error.is_of_another
            self._meeting.fail(_reason(error), is_of_another=is_of_another)

    def explain(self, error: BaseException) -> BaseException:
        """Returns an error; for one that another worker is lost, one that tells of the first.

        Whatever noticed the loss: a server, a link to another worker, a sum. Waits a
        little for the news, which the meeting may have later.
        """
        if self._meeting is None or not isinstance(error, WorkerLost):
            return error
        reason = self._meeting.await_failure()
        if reason is None or reason in str(error):
            return error
        explained = WorkerLost(reason)
        explained.__cause__ = error
        return explained

    def ask_to_stop(self, error: BaseException) -> None:
        """Asks all workers to end their steps as this one does, stopped by an error."""
        if self._meeting is not None:
            is_interrupt = isinstance(error, KeyboardInterrupt)
            reason = "was interrupted" if is_interrupt else f"was stopped: {_text(error)}"
            self._meeting.ask_to_stop(reason, is_interrupt=is_interrupt)

    def news(self) -> BaseException | None:
        """Returns why this worker should end its steps; None if it should not.

        Never waits.

        Returns:
            KeyboardInterrupt: A worker was interrupted.
            WorkerLost: One failed, or was stopped otherwise.
        """
        if self._meeting is None:
            return None
        if self._meeting.failure is not None:
            return WorkerLost(self._meeting.failure)
        stop = self._meeting.stop
        if stop is None:
            return None
        return (KeyboardInterrupt if stop.is_interrupt else WorkerLost)(stop.reason)

    def forget_stop(self) -> None:
        """Is called by those that read when all have ended their steps."""
        if self._meeting is not None:
            self._meeting.forget_stop()

    def close(self) -> None:
        """Says goodbye and gives up the connections."""
        if self._meeting is None:
            return
        self._meeting.leave()
        if self._dense is not None and self._dense.size > 1 and _is_initialized():
            paddle.distributed.destroy_process_group()


def _reason(error: BaseException) -> str:
    """Returns what goes behind the name of a worker that failed."""
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    if type(error) is StageError:  # which says where, and what it was
        return f"failed: {error}"
    place = error.place if isinstance(error, HeteroPipeError) else None
    return f"failed{f' in {place}' if place else ''}: {_text(error)}"


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def join_groups(workers: WorkersPlan, worker: Worker, *, device: Device, seconds: float) -> Groups:
    """Meets the other workers of a plan and returns the groups of this one.

    The ranks of the world are those of the readers, then those of the dense workers.
    Paddle knows those alone that have a dense part.

    Args:
        workers: All of them.
        worker: This one.
        device: Of its dense part.
        seconds: To wait until all are there.

    Raises:
        ConfigError: The coordinator's address cannot be listened on.
        PlanError: The plan has no such worker.
        WorkerLost: Some did not come in time.
    """
    worker.check(workers)
    if workers.num_processes == 1:
        return Groups.solo()
    assert worker.coordinator is not None, "Worker.check refuses it"
    readers = range(workers.num_readers)
    dense = range(workers.num_readers, workers.num_processes) if workers.dense else readers
    is_dense = worker.stage == "dense"
    rank = worker.rank + (workers.num_readers if is_dense else 0)
    of_readers = "sparse worker" if workers.dense else "worker"
    roles = [f"{of_readers} {i}" for i in readers]
    roles += [f"dense worker {i}" for i in range(len(workers.dense))]
    meeting = Meeting(
        worker.coordinator,
        rank=rank,
        roles=roles,
        seconds=seconds,
    )
    # gloo knows no other device than the CPU.
    is_gloo = device.collectives["PADDLE_DISTRI_BACKEND"] == "gloo"
    sums_on = Device("cpu") if is_gloo else device
    try:

        def group(name: str, ranks: range) -> Group | None:
            if rank not in ranks:
                return None
            channel = meeting.channel(name, ranks) if len(ranks) > 1 else None
            return Group(channel, rank=ranks.index(rank), device=sums_on)

        world = group("world", range(workers.num_processes))
        assert world is not None
        groups = Groups(
            meeting, world=world, readers=group("readers", readers), dense=group("dense", dense)
        )
        if rank in dense and len(dense) > 1:
            first = workers.dense[0] if workers.dense else worker.coordinator
            host = first.rpartition(":")[0]
            _start_paddle(groups.dense, host, meeting.local_address, device, seconds)
    except BaseException:
        meeting.leave()
        raise
    logger.info(
        "%s of %d meets the others at %s", roles[rank], workers.num_processes, worker.coordinator
    )
    return groups


def _start_paddle(group: Group, host: str, local: str, device: Device, seconds: float) -> None:
    """Makes Paddle's default group of the workers of `group`."""
    if _is_initialized():
        raise ConfigError(
            "several workers make the default group of paddle.distributed themselves, got it made "
            "before; leave init_parallel_env out, and close a Trainer before the next one"
        )
    port = group.gather(_free_port(host) if group.rank == 0 else None)[0]
    if group.rank:
        # Paddle sleeps 3 seconds after a first try that comes before rank 0 listens.
        _await_listener(host, port, seconds)
    endpoints = [f"{host}:{port + i}" for i in range(group.size)]  # names, that nobody listens on
    environment = {
        "PADDLE_MASTER": f"{host}:{port}",
        "PADDLE_TRAINERS_NUM": str(group.size),
        "PADDLE_TRAINER_ID": str(group.rank),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[group.rank],
        **device.collectives,
    }
    interface = _interface_of(local)
    if interface is not None and "GLOO_SOCKET_IFNAME" not in os.environ:
        # Else gloo takes what the host's name resolves to, which other hosts may not reach.
        environment["GLOO_SOCKET_IFNAME"] = interface
    # All are here now. One that is killed within this call is noticed late, for Paddle waits for it
    # up to 900 seconds and holds the GIL; whoever started the workers ends them.
    # Paddle prints flags to stdout, which belongs to the caller.
    with _environment(environment, without=("PADDLE_WITH_GLOO",)), redirect_stdout(sys.stderr):
        paddle.distributed.init_parallel_env()
    # A device's connections are made by the first sum, which waits for the others however long
    # that takes. Now all are here.
    group.sum([np.zeros(1, np.float32)])
    device.enter()  # Paddle has changed it


@contextmanager
def _environment(values: Mapping[str, str], *, without: Sequence[str]) -> Iterator[None]:
    """Sets the environment for a call that takes its arguments from there alone."""
    names = [*values, *without]
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _is_initialized() -> bool:
    return bool(paddle.distributed.is_initialized())


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def _await_listener(host: str, port: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError):
            socket.create_connection((host, port), timeout=1).close()
            return
        if time.monotonic() > deadline:
            raise WorkerLost(f"the first dense worker must listen on {host}:{port}, got nothing")
        time.sleep(0.02)


def _interface_of(address: str) -> str | None:
    """Returns the network interface of an IPv4 address of this host; None if there is none."""
    siocgifaddr = 0x8915  # of Linux's ioctl, netdevice(7)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                request = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), siocgifaddr, request)[20:24]
                if socket.inet_ntoa(found) == address:
                    return name
    return None
