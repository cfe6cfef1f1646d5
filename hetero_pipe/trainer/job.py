"""What the workers of one job must have alike."""

import json
from collections.abc import Mapping
from typing import Any

from hetero_pipe.nn import Embedding
from hetero_pipe.plan import Plan

__all__ = ["describe_job"]


def describe_job(plan: Plan, model: Any, embeddings: Mapping[str, Embedding]) -> dict[str, str]:
    """Returns by name what a sparse and a dense worker must have alike.

    Addresses and devices are not among it: hosts may call a server by different
    names, and have different devices.

    Args:
        plan: Of all workers.
        model: A `paddle.nn.Layer`.
        embeddings: Of the model, by table.
    """
    workers = plan.workers
    job: dict[str, Any] = {
        "mode": workers.mode,
        "staleness": plan.staleness,
        "wire": workers.wire,
        "sparse workers": workers.num_readers,
        "dense workers": len(workers.dense),
    }
    for name, layer in embeddings.items():
        cuts = {"slots": layer.slots, "one by one": layer.unpooled_slots}
        job[f"table {name}"] = {**layer.spec(name).to_dict(), **cuts}
    for path, tensor in model.state_dict().items():
        job[f"parameter {path}"] = list(tensor.shape)
    return {name: json.dumps(value) for name, value in job.items()}
