"""The model of a configuration, and the optimizer of its dense part."""

import sys
from pathlib import Path

import paddle

sys.path.append(str(Path(__file__).parents[2] / "examples" / "ctr"))

from config import Config
from models import MODELS
from samples import NUM_DENSE, slots_of


def model_of(config: Config, **sizes: object) -> paddle.nn.Layer:
    """Returns the model of examples/ctr, as large as it is by itself but for `sizes`."""
    slots = slots_of(config)
    if config.history:
        *slots, history = slots
        sizes |= {"target": slots[-1], "history": history}
    return MODELS[config.model](slots, NUM_DENSE, dim=config.dim, **sizes)


def optimizer_of(model: paddle.nn.Layer) -> paddle.optimizer.Optimizer:
    """Returns Adam for what a model has beside its tables."""
    return paddle.optimizer.Adam(1e-3, parameters=model.parameters())
