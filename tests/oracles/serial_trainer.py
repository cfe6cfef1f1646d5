"""Training as one plain loop: read, dedup, pull, dense, push. No threads, no stages, no client."""

import numpy as np
import paddle

from hetero_pipe.data import Lookup, occurrences
from hetero_pipe.nn import Device, PulledRows, TensorBatch, find_embeddings
from ps_server.spec import NUM_BUCKETS
from ps_server.table import Table


class SerialTrainer:
    def __init__(self, model, *, optimizer=None, loss):
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.layers = find_embeddings(model)
        self.tables = {name: Table(layer.spec(name)) for name, layer in self.layers.items()}
        self.step = 0

    def fit(self, reader, *, epochs=1):
        self.model.train()
        for epoch in range(epochs):
            for batch in reader.batches(epoch):
                self.step += 1
                keys, pulled = self.pull(batch, insert=True)
                inputs = TensorBatch(batch, pulled, Device("cpu"))
                logits = self.model(inputs).reshape([batch.size])
                self.loss(logits, paddle.to_tensor(batch.label)).backward()
                for name, table in self.tables.items():
                    gradient = pulled[name].rows.grad
                    if gradient is not None:
                        table.push(keys[name], gradient.numpy(), step=self.step)
                if self.optimizer is not None:
                    self.optimizer.step()
                    self.optimizer.clear_grad()

    def predict(self, reader):
        self.model.eval()
        found = []
        with paddle.no_grad():
            for batch in reader.in_order().batches(0):
                _, pulled = self.pull(batch, insert=False)
                logits = self.model(TensorBatch(batch, pulled, Device("cpu")))
                found.append(paddle.nn.functional.sigmoid(logits).reshape([batch.size]).numpy())
        return np.concatenate(found)

    def pull(self, batch, *, insert):
        keys, pulled = {}, {}
        for name, layer in self.layers.items():
            keys[name], inverse = np.unique(occurrences(batch, layer.slots), return_inverse=True)
            rows = paddle.to_tensor(self.tables[name].pull(keys[name], insert=insert))
            rows.stop_gradient = not insert
            lookup = Lookup.of(batch, layer.slots, inverse.reshape(-1))
            pulled[name] = PulledRows(rows, lookup)
        return keys, pulled

    def state(self):
        """As `tests.toy.state_of` has it."""
        found = {"step": np.array(self.step)}
        for name, table in self.tables.items():
            rows = table.export_rows(0, NUM_BUCKETS)
            found |= {
                f"{name}/key": rows.keys,
                f"{name}/weights": rows.weights,
                f"{name}/num_pushes": rows.num_pushes,
                f"{name}/step": rows.steps,
            }
            if rows.state.shape[1]:
                found[f"{name}/state"] = rows.state
        for path, tensor in self.model.state_dict().items():
            found[f"model/{path}"] = tensor.numpy()
        return found
