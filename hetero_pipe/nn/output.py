"""What a dense step gives, on its way to the host and there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.nn.device import Download

__all__ = ["Computed", "Gradients", "StepOutput"]


@dataclass(frozen=True, eq=False)
class Computed:
    """What forward and backward of a step give.

    Attributes:
        of_rows: By table, the gradient of its rows, if it has one.
        parameters: Paths of those that have a gradient.
        told: Of the loss, the probabilities, and whether each gradient of
            `of_rows` and of a parameter is finite, on the way to the host.
        gradients: Of rows, on the way to who pushes them.
    """

    of_rows: Mapping[str, paddle.Tensor]
    parameters: Sequence[str]
    told: Download
    gradients: Mapping[str, Any]


class Gradients(Mapping[str, Any]):
    """Gradients by table. Who asks for one waits until it is there: who pushes, not who trains.

    Args:
        tensors: On the device, `[u, dim]` or with more rows.
        sizes: Rows of each table whose gradient goes to the host.
        download: Of those, in that order.
    """

    def __init__(
        self, tensors: Mapping[str, paddle.Tensor], sizes: Mapping[str, int], download: Download
    ) -> None:
        self._kept = {name: tensor for name, tensor in tensors.items() if name not in sizes}
        self._sizes = sizes
        self._download = download

    def __getitem__(self, name: str) -> Any:
        if name in self._kept:
            return self._kept[name]
        # A device may hold more rows than the table has here, `Device.upload` tells why.
        size = self._sizes[name]
        return self._download.wait()[list(self._sizes).index(name)][:size]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._kept, *self._sizes])

    def __len__(self) -> int:
        return len(self._kept) + len(self._sizes)


@dataclass(frozen=True, eq=False)
class StepOutput:
    """What a dense step gives.

    Attributes:
        gradients: By table: float32 `[u, dim]`, of the loss by each row, a
            tensor where the rows are one; or by cut, of its shape. One that the
            loss does not depend on is absent.
        loss: Of the batch, before the step.
        probabilities: float32 `[batch]`, before the step.
    """

    gradients: Mapping[str, NDArray[np.float32] | paddle.Tensor]
    loss: float
    probabilities: NDArray[np.float32]
