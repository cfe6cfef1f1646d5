"""DeepFM: a factorisation machine and a deep network over the same embeddings.

Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR
Prediction", IJCAI 2017.
"""

from collections.abc import Mapping, Sequence

import hetero_pipe as hp
import paddle
from paddle import nn

from models.mlp import mlp

SLOTS = ("user", "movie", "genres", "hour", "weekday")


class DeepFM(nn.Layer):
    """Logit = first order + pairwise products + deep network.

    Args:
        slots: Categorical columns.
        num_dense: Numeric columns, 0 for none.
        dim: Weights of an embedding.
        hidden: Widths of the deep network's layers.
        lr: Learning rate of the tables.
        seed: Of the tables' first rows.
    """

    def __init__(
        self,
        slots: Sequence[str] = SLOTS,
        num_dense: int = 0,
        *,
        dim: int = 16,
        hidden: Sequence[int] = (400, 400, 400),
        lr: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        # The accumulator starts above 0, so that a rare key's first gradient moves it little.
        optimizer = hp.Adagrad(lr, initial_accumulator=3e-4)
        settings = {"optimizer": optimizer, "pooling": "mean", "seed": seed}
        self.first_order = hp.Embedding(slots, dim=1, initializer=hp.Constant(0.0), **settings)
        self.embedding = hp.Embedding(slots, dim=dim, initializer=hp.Normal(std=0.01), **settings)
        self.dense = nn.Linear(num_dense, 1) if num_dense else None
        self.deep = mlp(len(slots) * dim + num_dense, hidden)

    def forward(self, batch: Mapping[str, paddle.Tensor]) -> paddle.Tensor:
        """Returns logits `[batch, 1]`."""
        rows = self.embedding(batch)  # [batch, slots, dim]
        pairs = 0.5 * (rows.sum(axis=1).square() - rows.square().sum(axis=1))
        logits = self.first_order(batch).sum(axis=1) + pairs.sum(axis=1, keepdim=True)
        inputs = rows.flatten(1)
        if self.dense is not None:
            logits = logits + self.dense(batch["dense"])
            inputs = paddle.concat([inputs, batch["dense"]], axis=1)
        return logits + self.deep(inputs)
