"""CTR models, each a `paddle.nn.Layer` that is called with a batch and returns logits."""

from models.deepfm import DeepFM
from models.wide_deep import WideDeep

__all__ = ["MODELS", "DeepFM", "WideDeep"]

MODELS = {"deepfm": DeepFM, "wide_deep": WideDeep}
