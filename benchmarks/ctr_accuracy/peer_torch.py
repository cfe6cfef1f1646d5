"""The example's models in PyTorch: trains one from given weights, on given batches.

    python peer_torch.py JOB.npz OUT.npy paired|unpaired|control

`pairs.py` calls it in an environment that has PyTorch and numpy, nothing of this
project. A job holds what hetero_pipe starts with: the dense weights, the row of
every key, and each step's samples. Here a table is a `torch.nn.Embedding` of all
keys and a history is padded; `torch.optim` moves them. OUT gets the probabilities
of the held-out samples, float32 `[n]`.
"""

import json
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody writes it


def mlp(num_inputs, hidden, num_outputs=1):
    """Returns ReLU layers and a linear one."""
    layers = []
    for width in hidden:
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))


def table(rows):
    """Returns an embedding that starts with `rows` `[keys, dim]`."""
    return nn.Embedding.from_pretrained(torch.from_numpy(rows), freeze=False)


class DeepFM(nn.Module):
    """First order, pairwise products, deep network."""

    def __init__(self, tables, num_slots, hidden):
        super().__init__()
        self.first_order, self.embedding = table(tables["first_order"]), table(tables["embedding"])
        self.deep = mlp(num_slots * self.embedding.embedding_dim, hidden)

    def forward(self, ids, history):
        rows = self.embedding(ids)
        pairs = 0.5 * (rows.sum(dim=1).square() - rows.square().sum(dim=1))
        logits = self.first_order(ids).sum(dim=1) + pairs.sum(dim=1, keepdim=True)
        return logits + self.deep(rows.flatten(1))


class WideDeep(nn.Module):
    """One weight a key, deep network."""

    def __init__(self, tables, num_slots, hidden):
        super().__init__()
        self.wide, self.embedding = table(tables["wide"]), table(tables["embedding"])
        self.deep = mlp(num_slots * self.embedding.embedding_dim, hidden)

    def forward(self, ids, history):
        return self.wide(ids).sum(dim=1) + self.deep(self.embedding(ids).flatten(1))


class DCN(nn.Module):
    """Cross layers beside a deep network."""

    def __init__(self, tables, num_slots, hidden):
        super().__init__()
        self.embedding = table(tables["embedding"])
        num_inputs = num_slots * self.embedding.embedding_dim
        self.crosses = nn.ModuleList([nn.Linear(num_inputs, num_inputs) for _ in range(2)])
        self.deep = mlp(num_inputs, hidden)
        self.crossed = nn.Linear(num_inputs, 1)

    def forward(self, ids, history):
        inputs = crossed = self.embedding(ids).flatten(1)
        for cross in self.crosses:
            crossed = inputs * cross(crossed) + crossed
        return self.crossed(crossed) + self.deep(inputs)


class DLRM(nn.Module):
    """Products of each two embeddings into an MLP."""

    def __init__(self, tables, num_slots, hidden):
        super().__init__()
        self.embedding = table(tables["embedding"])
        self.first, self.second = torch.triu_indices(num_slots, num_slots, offset=1)
        self.top = mlp(len(self.first), hidden)

    def forward(self, ids, history):
        rows = self.embedding(ids)
        dots = torch.bmm(rows, rows.transpose(1, 2))
        return self.top(dots[:, self.first, self.second])


class DIN(nn.Module):
    """Attention of the target over the history, padded to the longest of the batch."""

    def __init__(self, tables, num_slots, hidden, target):
        super().__init__()
        self.embedding = table(tables["embedding"])
        dim = self.embedding.embedding_dim
        self.target = target
        self.attention = mlp(4 * dim, (36,))
        self.deep = mlp((num_slots + 1) * dim, hidden)

    def forward(self, ids, history):
        padded, is_real = history  # [batch, longest]
        rows = self.embedding(ids)
        earlier = self.embedding(padded)  # [batch, longest, dim]
        target = rows[:, self.target].unsqueeze(1).expand_as(earlier)
        both = torch.cat([target, earlier, target * earlier, target - earlier], dim=2)
        weights = self.attention(both) * is_real.unsqueeze(2)  # [batch, longest, 1]
        interest = (weights * earlier).sum(dim=1)
        return self.deep(torch.cat([rows.flatten(1), interest], dim=1))


MODELS = {"dcn": DCN, "deepfm": DeepFM, "din": DIN, "dlrm": DLRM, "wide_deep": WideDeep}


class Samples:
    """Samples in order, cut into batches as they were read."""

    def __init__(self, job, part):
        self.ids, self.label = job[f"{part}/ids"], job[f"{part}/label"]
        self.keys, self.offsets = job.get(f"{part}/history"), job.get(f"{part}/history_offsets")

    def batches(self, batch_size):
        """Yields ids `[batch, slots]`, history and labels `[batch]`."""
        for start in range(0, len(self.ids), batch_size):
            part = slice(start, start + batch_size)
            label = torch.from_numpy(self.label[part])
            yield torch.from_numpy(self.ids[part]), self._padded(start, len(label)), label

    def _padded(self, start, size):
        if self.keys is None:
            return None
        offsets = self.offsets[start : start + size + 1]
        lengths = np.diff(offsets)
        is_real = np.arange(max(1, lengths.max())) < lengths[:, None]
        padded = np.zeros(is_real.shape, np.int64)
        padded[is_real] = self.keys[offsets[0] : offsets[-1]]
        return torch.from_numpy(padded), torch.from_numpy(is_real)


def draw_anew(job, rng):
    """Changes a job's start and order of samples to others of the same distribution."""
    for name, value in job.items():
        if name.startswith("table/") or (name.startswith("dense/") and value.ndim == 2):
            job[name] = rng.permuted(value.reshape(-1)).reshape(value.shape)
    order = rng.permutation(len(job["train/ids"]))
    for name in ("train/ids", "train/label"):
        job[name] = job[name][order]


def build(job, settings):
    """Returns the model as the job starts it, and the names of its tables."""
    tables = {name[6:]: rows for name, rows in job.items() if name.startswith("table/")}
    extra = [settings["target"]] if settings["model"] == "din" else []
    model = MODELS[settings["model"]](tables, settings["num_slots"], settings["hidden"], *extra)
    dense = {name[6:]: value for name, value in job.items() if name.startswith("dense/")}
    parameters = dict(model.named_parameters())
    ours = {name for name in parameters if name.removesuffix(".weight") not in tables}
    assert dense.keys() == ours, f"dense parameters differ: {dense.keys() ^ ours}"
    with torch.no_grad():
        for name, value in dense.items():
            # Paddle's Linear is [inputs, outputs].
            parameters[name].copy_(torch.from_numpy(value.T if value.ndim == 2 else value))
    return model, tables


def main():
    """Trains, predicts, writes."""
    torch.set_num_threads(1)
    with np.load(sys.argv[1]) as file:
        job = dict(file)
    settings = json.loads(str(job.pop("settings")))
    kind = sys.argv[3]
    if kind == "unpaired":
        draw_anew(job, np.random.default_rng([settings["seed"], 1]))
    if kind == "control":
        settings["initial_accumulator"] = 0.0
    model, tables = build(job, settings)
    rows = [getattr(model, name).weight for name in tables]
    dense = [p for p in model.parameters() if not any(p is row for row in rows)]
    optimizers = [
        torch.optim.Adam(dense, lr=settings["dense_lr"]),
        torch.optim.Adagrad(
            rows,
            lr=settings["lr"],
            eps=settings["epsilon"],
            initial_accumulator_value=settings["initial_accumulator"],
        ),
    ]
    start = time.perf_counter()
    for ids, history, label in Samples(job, "train").batches(settings["batch_size"]):
        logits = model(ids, history).squeeze(1)
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, label).backward()
        for optimizer in optimizers:
            optimizer.step()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        held_out = Samples(job, "eval").batches(4096)
        logits = torch.cat([model(ids, history).squeeze(1) for ids, history, _ in held_out])
    np.save(sys.argv[2], logits.sigmoid().numpy())
    print(json.dumps({"seconds": seconds, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
