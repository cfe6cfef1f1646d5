"""From a reader to the predictions of its samples, and how good they are."""

import logging
from collections.abc import Iterator, Sequence

import numpy as np

from hetero_pipe.client import Client
from hetero_pipe.data import Reader
from hetero_pipe.errors import ConfigError
from hetero_pipe.metrics import auc, log_loss
from hetero_pipe.nn import DenseStep
from hetero_pipe.plan import Plan
from hetero_pipe.trainer.build import build_prediction
from hetero_pipe.trainer.result import Evaluation
from hetero_pipe.trainer.sparse import SparseWorker
from hetero_pipe.trainer.stages import Prediction
from hetero_pipe.trainer.team import Team

__all__ = ["evaluate", "predict"]

logger = logging.getLogger(__name__)


def predict(
    plan: Plan, reader: Reader, *, client: Client, dense: DenseStep | SparseWorker, team: Team
) -> list[Prediction]:
    """Returns the predictions of all batches, in the order of the files; creates no row.

    The workers of a team share the batches, and each returns those of all.

    Args:
        plan: What runs where.
        reader: Of all workers' batches.
        client: Holds the tables.
        dense: The dense part, or the way to it.
        team: This worker and the others that read.
    """

    def own() -> Iterator[Prediction]:
        batches = team.share(reader.in_order()).batches(0)
        with build_prediction(plan, batches, client=client, dense=dense) as executor:
            for _, prediction in executor.results():
                yield prediction

    return team.predictions(own())


def evaluate(predictions: Sequence[Prediction]) -> Evaluation:
    """Returns AUC and log loss of predictions.

    Raises:
        ConfigError: They have no labels, or others than 0 and 1.
    """
    all_labels = [p.labels for p in predictions if p.labels is not None]
    if not all_labels:
        raise ConfigError("evaluation needs samples with labels, got none from the reader")
    labels = np.concatenate(all_labels)
    probabilities = np.concatenate([p.probabilities for p in predictions])
    area = auc(labels, probabilities)
    if area is None:
        logger.warning("the AUC is undefined: all %d labels are %g", len(labels), float(labels[0]))
    return Evaluation(area, log_loss(labels, probabilities), len(labels))
