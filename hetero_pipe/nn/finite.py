"""Whether all that a dense step gave is finite, and if not, where."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data import Cut
from hetero_pipe.errors import NonFiniteError
from hetero_pipe.nn.device import Device
from hetero_pipe.nn.input import TableRows
from hetero_pipe.nn.output import Computed, StepOutput

__all__ = ["check_finite", "not_finite"]

_NOT_APPLIED = "nothing of this step was applied; lower the learning rate or check the data"


def check_finite(
    step: int, tables: Mapping[str, TableRows | Cut], computed: Computed, *, device: Device
) -> StepOutput:
    """Waits for a step; refuses it before any of it is applied, dense or sparse.

    Args:
        step: For messages.
        tables: What it was computed of.
        computed: What it gave.
        device: Where that is.

    Raises:
        NonFiniteError: The loss or a gradient is NaN or infinite.
    """
    loss, probabilities, are_finite = computed.told.wait()
    num_leaves = len(computed.of_rows)
    for name, is_finite in zip(computed.of_rows, are_finite[:num_leaves], strict=True):
        if not is_finite:
            with device.launching():
                gradient = device.to_array(computed.of_rows[name])
            raise not_finite(step, name, gradient, tables[name])
    if not np.isfinite(loss).all():
        raise NonFiniteError(
            f"the loss must be finite, got {loss.item()} at step {step}; {_NOT_APPLIED}"
        )
    for path, is_finite in zip(computed.parameters, are_finite[num_leaves:], strict=True):
        if not is_finite:
            raise NonFiniteError(
                f"gradients must be finite, got NaN or infinity in parameter {path!r} of the "
                f"model at step {step}; {_NOT_APPLIED}"
            )
    return StepOutput(computed.gradients, loss.item(), probabilities)


def not_finite(
    step: int, name: str, gradient: NDArray[np.float32], table: TableRows | Cut
) -> NonFiniteError:
    """Returns the error that says where the first value of a gradient is that is not finite.

    Args:
        step: Of the batch.
        name: Of the table or the cut.
        gradient: Of the table's rows `[u, dim]`, or of the cut.
        table: What it is the gradient of.
    """
    *place, _ = (int(i) for i in np.argwhere(~np.isfinite(gradient))[0])
    return NonFiniteError(
        f"gradients must be finite, got {gradient[tuple(place)].tolist()} in table {name!r} for "
        f"the key of {_name_of(place, table)} of step {step}; {_NOT_APPLIED}"
    )


def _name_of(place: list[int], table: TableRows | Cut) -> str:
    """Returns slot and sample of a row's place, all its indices but that within the row."""
    if isinstance(table, TableRows):
        slot, sample = table.lookup.first_use(place[0])
        return f"slot {slot!r} in sample {sample}"
    if table.offsets is None:
        return f"pooled slot {place[1]} in sample {place[0]}"
    return f"sample {int(np.searchsorted(table.offsets, place[0], side='right')) - 1}"
