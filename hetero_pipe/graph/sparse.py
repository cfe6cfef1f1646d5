"""What the ops of tables cost: pull, pool and push."""

from hetero_pipe.graph.op import Cost
from hetero_pipe.graph.rule import Call, Costs
from hetero_pipe.graph.size import Size, total
from hetero_pipe.graph.table import Table

__all__ = ["KEY_BYTES", "pool_costs", "pull_costs", "push_costs"]

KEY_BYTES = 8
"""Of a key, and of an index of a row."""


def pull_costs(table: Table) -> Costs:
    """Returns the costs of pulling a batch's distinct rows: keys in, weights out."""
    weights = table.rows * (4 * table.dim)
    forward = Cost(bytes_read=table.all_keys * KEY_BYTES + weights, bytes_written=weights)
    return _costs(forward, Cost())


def pool_costs(call: Call, table: Table, slots: tuple[str, ...]) -> Costs:
    """Returns the costs of handing rows to samples, summed over a sample's keys.

    A slot with one key in every sample is only copied. The backward adds up what
    the keys of one row have, in the rows' gradient.
    """
    keys = total(table.keys(slot) for slot in slots)
    summed = total(table.keys(slot) for slot in slots if slot not in table.single)
    is_pooled = len(call.outputs[0].shape) == 3
    index, values = keys * KEY_BYTES, keys * (4 * table.dim)
    output, rows = call.outputs[0].bytes, table.rows * (4 * table.dim)
    return _costs(
        Cost(summed * table.dim if is_pooled else Size(), index + values, output),
        Cost(keys * table.dim, index + output, rows),
    )


def push_costs(table: Table) -> Costs:
    """Returns the costs of applying a batch's gradients to its rows, those of its optimizer.

    An operation count of its formula: 2 a weight for SGD, 7 for Adagrad, 12 for Adam.
    """
    rows = table.rows
    weights, owned = rows * (4 * table.dim), rows * table.bytes_per_row
    flops = rows * (table.dim * (2 + 5 * table.state_per_weight))
    return _costs(Cost(), Cost(flops, rows * KEY_BYTES + weights + owned, owned))


def _costs(forward: Cost, backward: Cost) -> Costs:
    return Costs(forward, backward, (), is_view=False, is_known=True)
