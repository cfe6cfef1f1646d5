"""ReferenceModel: a model as those of CTR are, to measure jobs with."""

from collections.abc import Mapping, Sequence

import paddle

from hetero_pipe.nn.embedding import Embedding

__all__ = ["ReferenceModel"]


class ReferenceModel(paddle.nn.Layer):  # type: ignore[misc]  # paddle has no types
    """A wide part of one weight a key, and a deep one: Wide & Deep, small.

    Args:
        slots: Of both.
        dim: Of the deep part's rows.
        hidden: Units of each of its two layers.
    """

    def __init__(self, slots: Sequence[str], *, dim: int = 12, hidden: int = 256) -> None:
        super().__init__()
        self.wide = Embedding(slots, dim=1)
        self.deep = Embedding(slots, dim=dim)
        self.first = paddle.nn.Linear(len(slots) * dim, hidden)
        self.second = paddle.nn.Linear(hidden, hidden)
        self.head = paddle.nn.Linear(hidden, 1)

    def optimizer(self) -> paddle.optimizer.Optimizer:
        """Returns Adam, of its dense part."""
        return paddle.optimizer.Adam(1e-3, parameters=self.parameters())

    def forward(self, batch: Mapping[str, paddle.Tensor]) -> paddle.Tensor:
        """Returns logits `[batch]`."""
        relu = paddle.nn.functional.relu
        hidden = relu(self.second(relu(self.first(self.deep(batch).flatten(1)))))
        return self.head(hidden).squeeze(1) + self.wide(batch).sum(axis=[1, 2])
