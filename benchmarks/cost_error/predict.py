"""What the cost model says of a configuration. The one file here that knows of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from build import model_of
from config import Config
from hetero_pipe.cost import CostModel
from samples import Samples

import hetero_pipe as hp
from hetero_pipe.cluster import load_cluster
from hetero_pipe.data import measure_statistics
from hetero_pipe.nn import BatchSpec, trace


@dataclass(frozen=True)
class Predicted:
    """What is expected of a run, as `run.Measured` has it.

    Attributes:
        step: Seconds.
        peak_bytes: Of all processes.
        stages: Seconds a step, by stage.
    """

    step: float
    peak_bytes: int
    stages: Mapping[str, float]


class Predictor:
    """Predicts configurations on a machine.

    Args:
        cluster: A file that `hetero-pipe profile` wrote on this machine.
    """

    def __init__(self, cluster: Path) -> None:
        self._cluster = load_cluster(cluster)

    def predict(self, config: Config) -> Predicted:
        """Returns what is expected, without a step."""
        model = model_of(config)
        batch = Samples.of(config).steady[0]
        graph = trace(model, BatchSpec.of(batch))
        tables = {table.name: tuple(table.slots) for table in graph.tables}
        data = measure_statistics(Samples.of(config).steady, tables)
        graph = graph.with_data(keys=data.keys, distinct=data.distinct(config.batch_size))
        servers = [f"127.0.0.1:{7000 + i}" for i in range(config.servers)]
        plan = hp.default_plan(model, servers=servers or None, staleness=config.staleness)
        prediction = CostModel(self._cluster, graph).predict(plan)
        return Predicted(
            prediction.step.seconds,
            prediction.memory.bytes,
            {stage.name: stage.seconds for stage in prediction.stages},
        )
