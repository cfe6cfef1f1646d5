"""All that differs between devices: copies in, copies out, what they draw from.

On the CPU a tensor is the array's memory and nothing is copied. On any other
device copies run beside the kernels, each in a stream of its own::

    copy in     | batch 1 | batch 2 |         | batch 3 |
    kernels               | batch 1      | batch 2      | batch 3
    copy out                        | gradients 1 | gradients 2

`Device.upload` starts a copy in, `Device.download` a copy out; both return at
once. A buffer is used again when an event tells that its copy has ended: those
of the host when they are copied from, those of the device when the batch that
is in them was given back.

Paddle keeps the current stream for a device, not for a thread. So whoever
launches kernels and whoever switches the stream for a copy take turns, in
`Device.launching`. Waiting is done outside of it: that is when batch 2 goes in.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.data import aligned_empty
from hetero_pipe.errors import ConfigError, DeviceOutOfMemory

__all__ = [
    "Device",
    "Download",
    "Upload",
    "available_devices",
    "current_device",
    "take_device",
]


class Device:
    """Where dense work runs, and how arrays get there and back.

    `upload` may be called from any thread, and `Download.wait`; the rest by the
    one that is in `launching`.

    Args:
        name: As Paddle names it: `cpu`, `gpu:0`, or that of a custom device.

    Raises:
        ConfigError: Paddle has no such device.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            place = paddle.set_device(name)
        except (ValueError, RuntimeError, OSError) as error:
            raise ConfigError(
                f"a device is one that Paddle has, got {name!r}; this Paddle has "
                f"{', '.join(available_devices())}"
            ) from error
        is_cpu = name == "cpu"
        self._copies = None if is_cpu else _Copies(name, place)
        # On the CPU there is no stream, and each thread computes by itself.
        self._turn: AbstractContextManager[Any] = nullcontext() if is_cpu else threading.RLock()

    def enter(self) -> None:
        """Makes this the device of the calling thread."""
        paddle.set_device(self.name)

    @property
    def collectives(self) -> Mapping[str, str]:
        """How `paddle.distributed` is told by the environment what this device sums by.

        That is NCCL on GPUs, xccl (what comes with it) on a custom device, and gloo
        elsewhere, which sums on the CPU alone.
        """
        kind, _, index = self.name.partition(":")
        if kind == "gpu":
            return {"PADDLE_DISTRI_BACKEND": "nccl", "FLAGS_selected_gpus": index or "0"}
        if kind in (paddle.device.get_all_custom_device_type() or ()):
            return {
                "PADDLE_DISTRI_BACKEND": "xccl",
                "PADDLE_XCCL_BACKEND": kind,
                f"FLAGS_selected_{kind}s": index or "0",
            }
        return {"PADDLE_DISTRI_BACKEND": "gloo"}

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Makes this the device of the calling thread, which alone launches work on it.

        Raises:
            DeviceOutOfMemory: What the block computes does not fit.
        """
        with self._turn:
            self.enter()
            remedy = "lower batch_size, or take a smaller model or a device with more memory"
            with self.fitting("a step", remedy):
                yield

    @contextmanager
    def fitting(self, what: str, remedy: str) -> Iterator[None]:
        """Says what did not fit, should the block take more memory than there is.

        Raises:
            DeviceOutOfMemory: It does.
        """
        try:
            yield
        except (MemoryError, RuntimeError, OSError) as error:
            if not _says_out_of_memory(error):
                raise
            said = " ".join(str(error).split())  # Paddle's messages have lines
            raise DeviceOutOfMemory(
                f"{what} must fit into the memory of device {self.name}, got {said}; {remedy}"
            ) from error

    def to_tensor(self, array: NDArray[Any]) -> paddle.Tensor:
        """Returns a tensor of an array, without gradient.

        Nobody may write to the array while the tensor lives: on the CPU it
        shares the array's memory, elsewhere its copy may be under way. The array
        should start at a multiple of 64 bytes, or Paddle's matmul changes by
        bits.
        """
        tensor = _host_tensor(array)
        return tensor if self._copies is None else self._copies.copy_now(tensor)

    def to_array(self, tensor: paddle.Tensor) -> NDArray[Any]:
        """Returns the elements of a tensor; on the CPU they share the tensor's memory."""
        if self._copies is not None or not hasattr(tensor, "__dlpack_device__"):
            return np.asarray(tensor.detach().numpy())
        return np.from_dlpack(tensor.detach())

    def upload(
        self, arrays: Sequence[NDArray[Any]], *, rows: Sequence[NDArray[Any]] = ()
    ) -> "Upload":
        """Starts to copy arrays to the device; blocks while two such copies are under way.

        On the CPU there is nothing to copy. The arrays may be written to again.

        Args:
            arrays: Of any shape, which should be that of other batches.
            rows: Whose first dimension is another one in every batch. Their
                tensors end in more rows, of any value: there are not to be as
                many buffers as numbers of rows.
        """
        if self._copies is None:
            return Upload(self)
        return self._copies.upload(self, arrays, rows)

    def download(self, tensors: Sequence[paddle.Tensor]) -> "Download":
        """Starts to copy tensors to the host, once what computes them has ended."""
        if self._copies is None:
            return Download([self.to_array(tensor) for tensor in tensors])
        return self._copies.download(tensors)

    def are_finite(self, tensors: Sequence[paddle.Tensor]) -> paddle.Tensor:
        """Returns for each tensor whether it has no NaN and no infinity, bool `[n]`."""
        if self._copies is None:  # a quarter of the time of Paddle's
            found = [bool(np.isfinite(self.to_array(tensor)).all()) for tensor in tensors]
            return self.to_tensor(np.array(found, bool))
        if not tensors:
            return paddle.empty([0], "bool")
        return paddle.stack([paddle.isfinite(tensor).all() for tensor in tensors])


@dataclass(frozen=True, eq=False)
class Upload:
    """Arrays whose copies to a device are under way, or there."""

    device: Device
    # By the array's id; it is kept here, so that no other one gets its id.
    _copied: Mapping[int, tuple[NDArray[Any], paddle.Tensor]] = field(default_factory=dict)
    _ended: Any = None  # a paddle.device.Event
    _buffers: Sequence[tuple["_Pool", paddle.Tensor]] = ()

    def to_tensor(self, array: NDArray[Any]) -> paddle.Tensor:
        """Returns the tensor of an array that was uploaded, or of another one, copied now."""
        if id(array) in self._copied:
            return self._copied[id(array)][1]
        return self.device.to_tensor(array)

    def join(self) -> None:
        """Has what the calling thread launches from now on wait for the copies. Returns at once."""
        if self._ended is not None:
            paddle.device.current_stream(self.device.name).wait_event(self._ended)

    def give_back(self) -> None:
        """Says that all that reads the tensors has ended: their memory is another batch's."""
        for pool, buffer in self._buffers:
            pool.give(buffer)


class Download:
    """Tensors whose copies to the host are under way, or there.

    Args:
        arrays: The copies.
        ended: Tells that they are whole; None if they are.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]], ended: Any = None) -> None:
        self._arrays = arrays
        self._ended = ended

    def wait(self) -> Sequence[NDArray[Any]]:
        """Returns the arrays when they are there."""
        if self._ended is not None:
            _wait(self._ended)
        return self._arrays


class _Copies:
    """The copies to and from a device that is not the CPU."""

    def __init__(self, name: str, place: Any) -> None:
        self._name = name
        self._place = place
        self._in = paddle.device.Stream(name)
        self._out = paddle.device.Stream(name)
        self._host_place, self._new_buffer = _host_memory()
        self._staging = [_Staging(), _Staging()]  # one is filled while the other is copied from
        self._is_staging = threading.Lock()
        self._pool = _Pool()
        # Events, with what must not be freed before them.
        self._under_way: list[tuple[Any, Any]] = []

    def copy_now(self, host: paddle.Tensor) -> paddle.Tensor:
        """Copies in the current stream, in which what is launched next will find it."""
        if host.size == 0:  # `_copy_to` leaves it on the CPU
            return paddle.empty(host.shape, host.dtype)
        tensor = host._copy_to(self._place, False)
        self._keep(self._now(), (host, tensor))
        return tensor

    def upload(
        self,
        device: Device,
        arrays: Sequence[NDArray[Any]],
        rows: Sequence[NDArray[Any]],
    ) -> Upload:
        sources = [*arrays, *rows]
        shapes = [array.shape for array in arrays]
        shapes += [(_rounded_up(len(array)), *array.shape[1:]) for array in rows]
        with self._is_staging:
            staging = self._staging.pop(0)
            self._staging.append(staging)
            if staging.copied is not None:
                _wait(staging.copied)
            hosts = staging.fill(sources, shapes, self._new_buffer)
            with device.launching():
                targets = [self._target(host) for host in hosts]
                with paddle.device.stream_guard(self._in):
                    for target, host in zip(targets, hosts, strict=True):
                        if host.size:
                            target.copy_(host, False)
                    staging.copied = self._in.record_event()
                self._keep(staging.copied, targets)
        copied = {
            # Detached: a leaf of its own, without the gradient of the batch before.
            id(array): (array, target.detach())
            for array, target in zip(sources, targets, strict=True)
        }
        return Upload(device, copied, staging.copied, [(self._pool, each) for each in targets])

    def _target(self, host: paddle.Tensor) -> paddle.Tensor:
        """Returns device memory for a copy that starts now, whatever the kernels are doing."""
        target = self._pool.take(host)
        if target is None:
            # What Paddle gives may be what a kernel that is still to run reads: Paddle counts on
            # its next user being launched after that one.
            target = paddle.empty(host.shape, host.dtype)
            self._follow(self._in)
        return target

    def download(self, tensors: Sequence[paddle.Tensor]) -> Download:
        self._follow(self._out)
        with paddle.device.stream_guard(self._out):
            hosts = [tensor.detach()._copy_to(self._host_place, False) for tensor in tensors]
            ended = self._out.record_event()
        self._keep(ended, (tensors, hosts))
        return Download([np.from_dlpack(host) for host in hosts], ended)

    def _now(self) -> Any:
        """Returns the event that all has ended that was launched. REQUIRES: launching."""
        return paddle.device.current_stream(self._name).record_event()

    def _follow(self, stream: Any) -> None:
        """Has a stream wait for all that was launched. REQUIRES: launching."""
        launched = self._now()
        stream.wait_event(launched)
        self._keep(launched, ())

    def _keep(self, ended: Any, used: Any) -> None:
        """Keeps what is used until an event, and the event. REQUIRES: launching.

        A custom device's event blocks until it is reached when it is destroyed.
        """
        self._under_way = [each for each in self._under_way if not each[0].query()]
        self._under_way.append((ended, used))


class _Staging:
    """Host memory that one upload at a time is copied from; it grows to the largest."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self.copied: Any = None  # an event: it may be written to again

    def fill(
        self, arrays: Sequence[NDArray[Any]], shapes: Sequence[tuple[int, ...]], new_buffer: Any
    ) -> list[paddle.Tensor]:
        """Returns tensors of its memory, of `shapes`, that begin with `arrays`."""
        sizes = [
            int(np.prod(shape, dtype=np.int64)) * array.itemsize
            for shape, array in zip(shapes, arrays, strict=True)
        ]
        starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)])
        if self._memory.nbytes < starts[-1]:
            self._memory = new_buffer(int(starts[-1]))
        tensors = []
        for array, shape, size, start in zip(arrays, shapes, sizes, starts[:-1], strict=True):
            part = self._memory[start : start + size].view(array.dtype).reshape(shape)
            part[: len(array)] = array
            tensors.append(_host_tensor(part))
        return tensors


_ALIGNMENT = 256  # bytes, of a copy's source


class _Pool:
    """Device memory by shape, to be used again. May be used from any thread."""

    def __init__(self) -> None:
        self._free: defaultdict[tuple[Any, ...], list[paddle.Tensor]] = defaultdict(list)

    def take(self, like: paddle.Tensor) -> paddle.Tensor | None:
        """Returns memory of the shape and dtype of a tensor, None if there is none."""
        free = self._free[(*like.shape, like.dtype)]
        return free.pop() if free else None

    def give(self, buffer: paddle.Tensor) -> None:
        """Takes memory back."""
        self._free[(*buffer.shape, buffer.dtype)].append(buffer)


def _rounded_up(number: int) -> int:
    """Returns one of 16 numbers an octave, so at most an eighth more than `number`."""
    unit = 1 << max(number.bit_length() - 4, 0)
    return -(-number // unit) * unit


def _host_tensor(array: NDArray[Any]) -> paddle.Tensor:
    """Returns a tensor that is the array's memory."""
    # Paddle 2.6 has no `from_dlpack`; this takes as long and both versions have it.
    tensor = paddle.Tensor(value=array, place=paddle.CPUPlace(), zero_copy=True)
    tensor.stop_gradient = True
    return tensor


def _host_memory() -> tuple[Any, Any]:
    """Returns the place that is copied to, and a function from bytes to an array to copy from.

    A device reads and writes pinned memory by itself. Paddle pins where it was
    built for that; elsewhere a copy may block, or the device has no need.
    """
    try:
        place = paddle.zeros([1]).cpu().pin_memory().place
    except RuntimeError:
        return paddle.CPUPlace(), lambda size: aligned_empty(size, np.uint8)

    def pinned(size: int) -> NDArray[Any]:
        return np.from_dlpack(paddle.zeros([size], "uint8").cpu().pin_memory())

    return place, pinned


def _wait(event: Any) -> None:
    """Returns when an event was reached. Other threads run meanwhile."""
    # `Event.synchronize` of Paddle 3.3 holds the GIL: 5% of another thread's speed was left. A look
    # takes 2 us, so this holds a hundredth of a core; a step is late by a tenth of a millisecond.
    while not event.query():
        time.sleep(_LOOK_AGAIN)


_LOOK_AGAIN = 1e-4  # seconds


def _says_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    # A custom device tells Paddle its C_FAILED, "resource exhausted", and nothing else.
    return "ut of memory" in text or "CustomDevice error, the error code is : 2" in text


def available_devices() -> list[str]:
    """Returns the names of the devices that Paddle has, the CPU first."""
    found = paddle.device.get_available_device() or []
    return ["cpu", *(name for name in found if name != "cpu")]


def take_device(number: int) -> None:
    """Makes one of the devices like Paddle's the one that Paddle would use now.

    Args:
        number: From 0; those that there are not begin with the first one again.
    """
    kind = current_device().partition(":")[0]
    names = [name for name in available_devices() if name.partition(":")[0] == kind]
    if len(names) > 1:
        paddle.set_device(names[number % len(names)])


def current_device() -> str:
    """Returns the device that Paddle would use now."""
    name: str = paddle.get_device()
    return name


def generator_of(name: str) -> Any:
    """Returns Paddle's random generator of a device, None if it has none of its own."""
    core = paddle.framework.core
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return core.default_cpu_generator()
    if kind == "gpu":
        return core.default_cuda_generator(int(index or 0))
    if kind == "xpu":
        return core.default_xpu_generator(int(index or 0))
    return core.default_custom_device_generator(paddle.CustomPlace(kind, int(index or 0)))
