"""DIN: what a user did before, weighed by how much it has to do with the item at hand.

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018.
"""

from collections.abc import Mapping, Sequence

import hetero_pipe as hp
import paddle
from paddle import nn

from models.deepfm import SLOTS
from models.mlp import mlp


class DIN(nn.Layer):
    """Sums the history's rows with weights by an attention unit, then a deep network.

    Args:
        slots: Categorical columns, `target` among them, `history` not.
        num_dense: Numeric columns, 0 for none.
        target: The slot of the item at hand.
        history: The slot of earlier items, a list; the reader's
            `shared_keys={history: target}` gives an item one row in both.
        dim: Weights of an embedding.
        attention: Widths of the attention unit's layers.
        hidden: Widths of the deep network's layers.
        lr: Learning rate of the tables.
        seed: Of the tables' first rows.
    """

    def __init__(
        self,
        slots: Sequence[str] = SLOTS,
        num_dense: int = 0,
        *,
        target: str = "movie",
        history: str = "history",
        dim: int = 16,
        attention: Sequence[int] = (36,),
        hidden: Sequence[int] = (400, 400, 400),
        lr: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if target not in slots or history in slots:
            raise hp.ConfigError(
                f"DIN compares a slot with a history beside the slots, got target={target!r} and "
                f"history={history!r} with slots {', '.join(slots)}; name them"
            )
        self.history = history
        self.embedding = hp.Embedding(
            [*slots, history],
            dim=dim,
            initializer=hp.Normal(std=0.01),
            # The accumulator starts above 0, so that a rare key's first gradient moves it little.
            optimizer=hp.Adagrad(lr, initial_accumulator=3e-4),
            pooling={**dict.fromkeys(slots, "mean"), history: None},
            seed=seed,
        )
        self._target = list(slots).index(target)
        self.attention = mlp(4 * dim, attention)
        self.deep = mlp((len(slots) + 1) * dim + num_dense, hidden)

    def forward(self, batch: Mapping[str, paddle.Tensor]) -> paddle.Tensor:
        """Returns logits `[batch, 1]`."""
        rows = self.embedding(batch)  # [batch, slots, dim]
        earlier = self.embedding.unpooled(batch, self.history)  # of rows [n, dim]
        inputs = [rows.flatten(1), self.interest(rows[:, self._target], earlier)]
        if "dense" in batch:
            inputs.append(batch["dense"])
        return self.deep(paddle.concat(inputs, axis=1))

    def interest(self, target: paddle.Tensor, earlier: hp.BagRows) -> paddle.Tensor:
        """Returns the weighted sum of each sample's earlier rows, `[batch, dim]`."""
        if len(earlier) == 0:  # Paddle 2.6 has no matmul of nothing
            return paddle.zeros_like(target)
        target = earlier.spread(target)
        both = [target, earlier.rows, target * earlier.rows, target - earlier.rows]
        scores = self.attention(paddle.concat(both, axis=1))  # [n, 1]
        return earlier.sum(scores * earlier.rows)  # no softmax: much of an interest stays much
