"""One worker of tests/integration/test_elastic.py, as a script: told by JSON, tells by JSON."""

import json
import sys
import threading

import hetero_pipe as hp
from tests.toy import DeepFM, build, read

import paddle  # isort: skip  # after hetero_pipe, as Paddle 2.6 needs

told = json.loads(sys.argv[1]) if __name__ == "__main__" else {}
never = threading.Event()


def say(**found):
    print(json.dumps(found), flush=True)


class Slow(DeepFM):
    """A batch takes a while, so that a test can be faster."""

    def forward(self, batch):
        never.wait(told["delay"])
        return super().forward(batch)


class Tell:
    """Says when a step is done, and when this worker has closed an epoch."""

    def on_step(self, report):
        say(step=report.step)

    def on_epoch(self, epoch, evaluation):
        say(closed=epoch)


def main():
    model, optimizer = build(Slow)
    paddle.seed(told["seed"])
    for parameter in model.parameters():  # no two workers would begin with the same
        parameter.set_value(parameter + told["seed"])
    workers = hp.WorkersPlan(mode="elastic", range_batches=3, lease_seconds=told["seconds"])
    plan = hp.default_plan(model, servers=told["servers"], staleness=1, workers=workers)
    say(ready=True)
    sys.stdin.readline()
    with hp.Trainer(model, optimizer=optimizer, plan=plan) as trainer:
        result = trainer.fit(
            read(told["data"], shuffle=200), epochs=told["epochs"], callbacks=[Tell()]
        )
    say(ended=result.num_steps)


if __name__ == "__main__":
    main()
