"""The DeepFM of tests/toy.py in stock Paddle: `paddle.nn.Embedding`, Paddle's optimizers.

Keys become ids by a dict; a bag is padded to the longest of its batch and masked.
"""

import numpy as np
import paddle
from paddle import nn


class PaddleDeepFM(nn.Layer):
    """Takes its weights from the rows that `tables` of ours start with, `{name: [ids, dim]}`."""

    def __init__(self, ids, tables, dense_part, *, sparse):
        super().__init__()
        self.ids = ids  # key -> id
        # One more row for padding: lazy Adam moves every row that is looked up, masked or not.
        tables = {name: np.pad(rows, ((0, 1), (0, 0))) for name, rows in tables.items()}
        self.first_order = nn.Embedding(*tables["first_order"].shape, sparse=sparse)
        self.embedding = nn.Embedding(*tables["embedding"].shape, sparse=sparse)
        self.first_order.weight.set_value(tables["first_order"])
        self.embedding.weight.set_value(tables["embedding"])
        self.dense = nn.Linear(*dense_part.dense.weight.shape)
        self.deep = nn.Sequential(
            *(
                nn.Linear(*layer.weight.shape) if isinstance(layer, nn.Linear) else nn.ReLU()
                for layer in dense_part.deep
            )
        )
        self.dense.set_state_dict(dense_part.dense.state_dict())
        self.deep.set_state_dict(dense_part.deep.state_dict())

    def forward(self, batch):
        first_order, rows = [], []
        for bags in batch.bags.values():
            lengths = np.ones(batch.size, int) if bags.offsets is None else np.diff(bags.offsets)
            mask = np.arange(max(1, lengths.max())) < lengths[:, None]
            ids = np.full(mask.shape, len(self.ids))
            ids[mask] = [self.ids[key] for key in bags.keys.tolist()]
            weight = paddle.to_tensor((mask / np.maximum(lengths, 1)[:, None]).astype(np.float32))
            first_order.append(self.pool(self.first_order, ids, weight))
            rows.append(self.pool(self.embedding, ids, weight))
        first_order, rows = paddle.stack(first_order, axis=1), paddle.stack(rows, axis=1)
        dense = paddle.to_tensor(batch.dense)
        pairs = 0.5 * (rows.sum(axis=1).square() - rows.square().sum(axis=1))
        inputs = paddle.concat([rows.flatten(1), dense], axis=1)
        wide = first_order.sum(axis=1) + pairs.sum(axis=1, keepdim=True) + self.dense(dense)
        return wide + self.deep(inputs)

    @staticmethod
    def pool(embedding, ids, weight):
        """Mean of each bag, `[batch, dim]`."""
        return (embedding(paddle.to_tensor(ids)) * weight.unsqueeze(-1)).sum(axis=1)


def train(model, batches, *, rows_optimizer, dense_optimizer):
    """Runs the steps; returns their losses."""
    rows = [model.first_order.weight, model.embedding.weight]
    optimizers = [
        rows_optimizer(parameters=rows),
        dense_optimizer(parameters=[*model.dense.parameters(), *model.deep.parameters()]),
    ]
    if model.first_order._sparse and isinstance(optimizers[0], paddle.optimizer.Adam):
        mend_sparse_adam(optimizers[0], rows)
    losses = []
    for batch in batches:
        logits = model(batch).reshape([batch.size])
        label = paddle.to_tensor(batch.label)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, label)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.clear_grad()
        losses.append(float(loss))
    return np.array(losses)


def mend_sparse_adam(optimizer, parameters):
    """Paddle 3.3's sparse Adam corrects the bias of step t as if it were t + 1, on the CPU alone:
    phi/kernels/selected_rows/cpu/adam_kernel.cc raises the powers before it reads them. So they
    start one power lower here."""
    block = paddle.base.framework.default_main_program().global_block()
    optimizer._create_accumulators(block, parameters)
    for name, tensor in optimizer.state_dict().items():
        if "_pow_acc" in name:
            tensor.set_value(np.ones(tensor.shape, np.float32))
