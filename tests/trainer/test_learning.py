"""A trainer's runs correct a cost model that is far off."""

import math
from dataclasses import replace

import hetero_pipe as hp
from hetero_pipe.cluster import Cluster, discover
from hetero_pipe.cost import (
    Constants,
    CostModel,
    Workload,
    learn,
    load_corrections,
    save_corrections,
)
from tests.toy import DeepFM, read, samples, write_parquet

BATCH, STEPS = 256, 60


class Learning:
    """Predicts one plan, and keeps what runs of it have shown in a file."""

    def __init__(self, sample, path, constants):
        self.sample = sample
        self.measured = None
        self._path, self._constants = path, constants

    def choose(self, graph):
        workload = Workload(graph, dict.fromkeys((t.name for t in graph.tables), 1e4))
        known = load_corrections(self._path)
        self._model = CostModel(Cluster((discover(),)), workload, self._constants, known)
        plan = replace(hp.default_plan(DeepFM()), batch_size=BATCH)
        return replace(plan, predicted=self._model.predict(plan))

    def learn(self, plan, measured):
        self.measured = measured
        save_corrections(learn(self._model, plan, measured), self._path)


def test_a_second_run_is_predicted_by_what_the_first_has_shown(tmp_path):
    path = write_parquet(tmp_path / "data.parquet", samples(BATCH * STEPS))
    reader = read(path, batch_size=BATCH)
    guess, slower = Constants(), ("launch", "step", "route_key", "pull_row", "push_row")
    wrong = replace(
        guess,
        core_bandwidth=guess.core_bandwidth / 5,
        core_flops=guess.core_flops / 5,
        **{name: getattr(guess, name) * 5 for name in slower},
    )
    errors, told = [], []
    for _ in range(2):
        planning = Learning(next(iter(reader)), tmp_path / "profile.json", wrong)
        with hp.Trainer(DeepFM(), plan=planning) as trainer:
            predicted = trainer.plan.predicted
            trainer.fit(reader, callbacks=[])
        dense = planning.measured.stages[3]
        # Seconds on a core, which other processes on it hardly change.
        errors.append(abs(math.log(predicted.stage(dense.name).cpu / dense.cpu)))
        told.append(predicted.corrected)
    assert errors[1] < errors[0] / 2
    assert errors[1] < math.log(2)
    assert told[0] == ()
    assert any(text.startswith("dense on") and "a run showed" in text for text in told[1])
