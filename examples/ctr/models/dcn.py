"""DCN-v2: layers that cross the inputs explicitly, beside or below a deep network.

Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for
Web-scale Learning to Rank Systems", WWW 2021.
"""

from collections.abc import Mapping, Sequence

import hetero_pipe as hp
import paddle
from paddle import nn

from models.deepfm import SLOTS
from models.mlp import mlp


class DCN(nn.Layer):
    """Crosses `x[l + 1] = x[0] * (W x[l] + b) + x[l]` with full-rank W, and a deep network.

    Args:
        slots: Categorical columns.
        num_dense: Numeric columns, 0 for none.
        dim: Weights of an embedding.
        num_crosses: Cross layers: products of up to one more inputs.
        hidden: Widths of the deep network's layers.
        is_stacked: Whether the deep network sees the crosses, not the inputs.
        lr: Learning rate of the tables.
        seed: Of the tables' first rows.
    """

    def __init__(
        self,
        slots: Sequence[str] = SLOTS,
        num_dense: int = 0,
        *,
        dim: int = 16,
        num_crosses: int = 2,
        hidden: Sequence[int] = (400, 400, 400),
        is_stacked: bool = False,
        lr: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        # The accumulator starts above 0, so that a rare key's first gradient moves it little.
        optimizer = hp.Adagrad(lr, initial_accumulator=3e-4)
        self.embedding = hp.Embedding(
            slots,
            dim=dim,
            initializer=hp.Normal(std=0.01),
            optimizer=optimizer,
            pooling="mean",
            seed=seed,
        )
        num_inputs = len(slots) * dim + num_dense
        self.crosses = nn.LayerList([nn.Linear(num_inputs, num_inputs) for _ in range(num_crosses)])
        self.deep = mlp(num_inputs, hidden)
        self.crossed = None if is_stacked else nn.Linear(num_inputs, 1)

    def forward(self, batch: Mapping[str, paddle.Tensor]) -> paddle.Tensor:
        """Returns logits `[batch, 1]`."""
        inputs = self.embedding(batch).flatten(1)
        if "dense" in batch:
            inputs = paddle.concat([inputs, batch["dense"]], axis=1)
        crossed = inputs
        for cross in self.crosses:
            crossed = inputs * cross(crossed) + crossed
        if self.crossed is None:
            return self.deep(crossed)
        return self.crossed(crossed) + self.deep(inputs)
