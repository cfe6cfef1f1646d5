"""What each row's user, or whatever it is of, had in the rows before."""

import numpy as np
import pyarrow as pa


def earlier_values(groups: pa.Array, times: pa.Array, values: pa.Array, *, last: int) -> pa.Array:
    """Returns for each row the values of its group's earlier rows, oldest first.

    Earlier is strictly so: of rows of one group at one time none sees another.
    Nothing else of those rows is told, a label least of all.

    Args:
        groups: Whose rows they are, `[n]`, without nulls.
        times: `[n]`, whole numbers.
        values: `[n]`.
        last: At most so many values a row, the latest ones.

    Returns:
        A list a row, `[n]`.
    """
    group = groups.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    time = times.to_numpy(zero_copy_only=False)
    order = np.lexsort((time, group))  # stable: rows of one time stay as they are
    group, time, position = group[order], time[order], np.arange(len(order))
    begins_group = np.r_[True, group[1:] != group[:-1]]
    begins_time = begins_group | np.r_[True, time[1:] != time[:-1]]
    first_of_group = np.maximum.accumulate(np.where(begins_group, position, 0))
    end = np.maximum.accumulate(np.where(begins_time, position, 0))
    num_earlier = np.minimum(end - first_of_group, last)
    lengths, starts = np.empty_like(order), np.empty_like(order)
    lengths[order], starts[order] = num_earlier, end - num_earlier
    offsets = np.r_[0, np.cumsum(lengths)]
    taken = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), values.take(pa.array(order[taken]))
    )
