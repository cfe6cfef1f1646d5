"""How is the dense part of a model run? The only package that imports Paddle.

It gives a model its batches as tensors, runs steps, and saves and sets the
dense state. It never reads data and never speaks to a server.
"""

# It sets what Paddle reads when it is imported.
from hetero_pipe.nn.environment import say_settings

# isort: split
from hetero_pipe.nn.average import Averager, average_statistics, broadcast_model
from hetero_pipe.nn.bag import BagRows
from hetero_pipe.nn.batch import PulledRows, TensorBatch
from hetero_pipe.nn.cut import SparseForward, SparseStep
from hetero_pipe.nn.dense import DenseStep, Loss
from hetero_pipe.nn.dense_rows import DenseRows
from hetero_pipe.nn.device import (
    Device,
    Download,
    Upload,
    available_devices,
    current_device,
    take_device,
)
from hetero_pipe.nn.device_table import DeviceTable
from hetero_pipe.nn.embedding import Embedding, find_embeddings
from hetero_pipe.nn.group import Group, Groups, join_groups
from hetero_pipe.nn.input import TableRows
from hetero_pipe.nn.output import StepOutput
from hetero_pipe.nn.profile import describe_devices, profile_copies, profile_device
from hetero_pipe.nn.profile_ops import OP_KINDS, profile_ops, profile_steps
from hetero_pipe.nn.random import load_random_state, random_state
from hetero_pipe.nn.reference import ReferenceModel
from hetero_pipe.nn.state import dense_state, load_dense_state
from hetero_pipe.nn.trace import BatchSpec, trace

__all__ = [
    "OP_KINDS",
    "Averager",
    "BagRows",
    "BatchSpec",
    "DenseRows",
    "DenseStep",
    "Device",
    "DeviceTable",
    "Download",
    "Embedding",
    "Group",
    "Groups",
    "Loss",
    "PulledRows",
    "ReferenceModel",
    "SparseForward",
    "SparseStep",
    "StepOutput",
    "TableRows",
    "TensorBatch",
    "Upload",
    "available_devices",
    "average_statistics",
    "broadcast_model",
    "current_device",
    "dense_state",
    "describe_devices",
    "find_embeddings",
    "join_groups",
    "load_dense_state",
    "load_random_state",
    "profile_copies",
    "profile_device",
    "profile_ops",
    "profile_steps",
    "random_state",
    "say_settings",
    "take_device",
    "trace",
]
