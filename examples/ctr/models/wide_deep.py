"""Wide & Deep: a linear model that remembers beside a deep network that generalises.

Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016.
"""

from collections.abc import Mapping, Sequence

import hetero_pipe as hp
import paddle
from paddle import nn

from models.deepfm import SLOTS
from models.mlp import mlp


class WideDeep(nn.Layer):
    """Logit = one weight a value + deep network over embeddings.

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
        self.wide = hp.Embedding(slots, dim=1, initializer=hp.Constant(0.0), **settings)
        self.embedding = hp.Embedding(slots, dim=dim, initializer=hp.Normal(std=0.01), **settings)
        self.dense = nn.Linear(num_dense, 1) if num_dense else None
        self.deep = mlp(len(slots) * dim + num_dense, hidden)

    def forward(self, batch: Mapping[str, paddle.Tensor]) -> paddle.Tensor:
        """Returns logits `[batch, 1]`."""
        logits = self.wide(batch).sum(axis=1)
        inputs = self.embedding(batch).flatten(1)
        if self.dense is not None:
            logits = logits + self.dense(batch["dense"])
            inputs = paddle.concat([inputs, batch["dense"]], axis=1)
        return logits + self.deep(inputs)
