"""A small data set, models of it, and what tests ask of a trainer: not a test itself."""

import io
import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import paddle
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.client import Client

SLOTS = ("user", "item", "tags")
DENSE = ("price", "age")
COLUMNS = {"slots": SLOTS, "dense": DENSE}


def samples(size, *, seed=0):
    """Clicks that follow user, item and price; `tags` is multi-hot and often empty."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, size // 4 + 2, size), rng.integers(0, 40, size)
    taste, appeal = np.random.default_rng(99).normal(size=(2, 10_000))
    price = rng.normal(size=size)
    logit = taste[user] + appeal[item] - price
    tags = [[f"t{t}" for t in rng.integers(0, 9, rng.integers(0, 4))] for _ in range(size)]
    return pa.table(
        {
            "user": user,
            "item": item,
            "tags": pa.array(tags, pa.list_(pa.string())),
            "price": price,
            "age": rng.integers(0, 90, size).astype(float) / 90,
            "label": (rng.random(size) < 1 / (1 + np.exp(-logit))).astype(np.int8),
        }
    )


def write_parquet(path, table):
    pq.write_table(table, path)
    return path


def write_csv(path, table):
    """Writes lists as text joined by `|`."""
    tags = pa.array(["|".join(bag) for bag in table["tags"].to_pylist()])
    pa.csv.write_csv(table.set_column(2, "tags", tags), path)
    return path


def read(path, **options):
    return hp.read_parquet(path, **{**COLUMNS, "batch_size": 32, "seed": 3, **options})


class DeepFM(nn.Layer):
    """As examples/ctr's, with a choice of the tables' optimizer."""

    def __init__(self, slots=SLOTS, num_dense=2, *, dim=4, optimizer=None, pooling="mean", seed=0):
        super().__init__()
        settings = {
            "optimizer": optimizer or hp.Adagrad(0.05),
            "seed": seed,
            "pooling": pooling,
            "initializer": hp.Uniform(-0.1, 0.1),
        }
        self.first_order = hp.Embedding(slots, dim=1, **settings)
        self.embedding = hp.Embedding(slots, dim=dim, **settings)
        self.dense = nn.Linear(num_dense, 1)
        self.deep = nn.Sequential(
            nn.Linear(len(slots) * dim + num_dense, 16), nn.ReLU(), nn.Linear(16, 1)
        )

    def forward(self, batch):
        return self.logits(self.first_order(batch), self.embedding(batch), batch["dense"])

    def logits(self, first_order, rows, dense):
        pairs = 0.5 * (rows.sum(axis=1).square() - rows.square().sum(axis=1))
        inputs = paddle.concat([rows.flatten(1), dense], axis=1)
        wide = first_order.sum(axis=1) + pairs.sum(axis=1, keepdim=True) + self.dense(dense)
        return wide + self.deep(inputs)


class RowsAlone(nn.Layer):
    """No dense parameter: the logit is the sum of one weight a key."""

    def __init__(self, slots=SLOTS):
        super().__init__()
        self.weight = hp.Embedding(slots, dim=1, optimizer=hp.SGD(0.5))

    def forward(self, batch):
        return self.weight(batch).sum(axis=[1, 2])


class Losses:
    """A loss that remembers: binary cross-entropy, and every value of it."""

    def __init__(self):
        self.values = []

    def __call__(self, logits, labels):
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        self.values.append(float(loss))
        return loss


def adam(parameters):
    return paddle.optimizer.Adam(1e-3, parameters=parameters)


def build(model_class=DeepFM, *, dense=adam, **options):
    """Returns a model with the dense weights of seed 0, and the optimizer of its dense part."""
    paddle.seed(0)
    model = model_class(**options)
    parameters = model.parameters()
    return model, dense(parameters) if parameters and dense else None


@contextmanager
def training(model_class=DeepFM, *, trainer=None, **options):
    """Yields a Trainer of a new model; `trainer` are its arguments."""
    model, optimizer = build(model_class, **options)
    with hp.Trainer(model, **{"optimizer": optimizer, **(trainer or {})}) as made:
        yield made


def pushes_on(addresses, specs):
    """Returns how often each row of tables on servers was pushed to, by key, by table."""
    found = {spec.name: {} for spec in specs}
    with Client(addresses) as client:
        client.attach(specs)
        for spec in specs:
            for _, pieces in client.save(spec.name):
                rows = pa.ipc.open_file(pa.py_buffer(b"".join(pieces))).read_all()
                pairs = zip(rows["key"].to_pylist(), rows["num_pushes"].to_pylist(), strict=True)
                found[spec.name] |= dict(pairs)
    return found


def state_of(trainer, folder):
    """Returns all that a trainer has learned, as its checkpoint has it, by name."""
    trainer.save(folder)
    return state_in(folder)


def state_in(folder):
    manifest = json.loads((Path(folder) / "manifest.json").read_text())
    state = {"step": np.array(manifest["step"])}
    with np.load(Path(folder) / "dense.npz", allow_pickle=False) as arrays:
        state |= dict(arrays)
    for spec in manifest["tables"]:
        name = spec["name"]
        files = [f for f in manifest["files"] if f.startswith(f"tables/{name}/")]
        parts = [
            pa.ipc.open_file(io.BytesIO((Path(folder) / f).read_bytes())).read_all() for f in files
        ]
        if parts:
            rows = pa.concat_tables(parts).combine_chunks().sort_by("key")
            state |= {f"{name}/{c}": matrix(rows[c].combine_chunks()) for c in rows.column_names}
    return state


def matrix(column):
    if pa.types.is_fixed_size_list(column.type):
        return column.flatten().to_numpy().reshape(len(column), -1)
    return column.to_numpy()


def assert_equal(found, expected, *, but=()):
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name in sorted(found.keys() - set(but)):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def differs(found, expected):
    """Names of what is not bit-equal."""
    return {
        name
        for name in found.keys() | expected.keys()
        if name not in found
        or name not in expected
        or not np.array_equal(found[name], expected[name])
    }
