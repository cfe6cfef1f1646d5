"""CTR models, each a `paddle.nn.Layer` that is called with a batch and returns logits."""

from models.dcn import DCN
from models.deepfm import DeepFM
from models.din import DIN
from models.dlrm import DLRM
from models.wide_deep import WideDeep

__all__ = ["DCN", "DIN", "DLRM", "MODELS", "DeepFM", "WideDeep"]

MODELS = {"dcn": DCN, "deepfm": DeepFM, "din": DIN, "dlrm": DLRM, "wide_deep": WideDeep}
