"""DLRM: the products of each two embeddings, and of each with the dense inputs, into an MLP.

Naumov et al., "Deep Learning Recommendation Model for Personalization and
Recommendation Systems", 2019, arXiv:1906.00091.
"""

from collections.abc import Mapping, Sequence

import hetero_pipe as hp
import numpy as np
import paddle
from paddle import nn

from models.deepfm import SLOTS
from models.mlp import mlp


class DLRM(nn.Layer):
    """A bottom MLP makes one more vector of the dense inputs; a top MLP sees all dot products.

    Args:
        slots: Categorical columns.
        num_dense: Numeric columns, 0 for none: then there is no bottom MLP.
        dim: Weights of an embedding.
        bottom: Widths of the bottom MLP's layers, less its last, `dim`.
        hidden: Widths of the top MLP's layers.
        lr: Learning rate of the tables.
        seed: Of the tables' first rows.
    """

    def __init__(
        self,
        slots: Sequence[str] = SLOTS,
        num_dense: int = 0,
        *,
        dim: int = 16,
        bottom: Sequence[int] = (64, 32),
        hidden: Sequence[int] = (400, 400, 400),
        lr: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        # The accumulator starts above 0, so that a rare key's first gradient moves it little.
        self.embedding = hp.Embedding(
            slots,
            dim=dim,
            # Products of smaller rows start too near 0 to learn from.
            initializer=hp.Normal(std=0.1),
            optimizer=hp.Adagrad(lr, initial_accumulator=3e-4),
            pooling="mean",
            seed=seed,
        )
        self.bottom = mlp(num_dense, bottom, dim) if num_dense else None
        num_vectors = len(slots) + (self.bottom is not None)
        rows, columns = np.triu_indices(num_vectors, k=1)
        self._pairs = rows * num_vectors + columns
        self.top = mlp(len(self._pairs) + (dim if num_dense else 0), hidden)

    def forward(self, batch: Mapping[str, paddle.Tensor]) -> paddle.Tensor:
        """Returns logits `[batch, 1]`."""
        vectors = self.embedding(batch)  # [batch, slots, dim]
        first = []
        if self.bottom is not None:
            first = [nn.functional.relu(self.bottom(batch["dense"]))]
            vectors = paddle.concat([first[0].unsqueeze(1), vectors], axis=1)
        dots = paddle.matmul(vectors, vectors, transpose_y=True).flatten(1)
        pairs = paddle.index_select(dots, paddle.to_tensor(self._pairs), axis=1)
        return self.top(paddle.concat([*first, pairs], axis=1))
