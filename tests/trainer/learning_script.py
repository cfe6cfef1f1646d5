"""A training script with hp.auto_plan, as a user runs it: tells what was predicted and took."""

import argparse
import json

import hetero_pipe as hp

if __name__ == "__main__":
    hp.launch.begin()

from tests.toy import DeepFM, build, read


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--profile", required=True)
    flags = parser.parse_args(arguments)
    reader = read(flags.data, batch_size=256)
    planning = hp.auto_plan(reader, cluster=flags.cluster, max_staleness=0, profile=flags.profile)
    model, optimizer = build(DeepFM)
    with hp.Trainer(model, optimizer=optimizer, plan=planning) as trainer:
        predicted = trainer.plan.predicted
        comparison = trainer.fit(reader, callbacks=[]).summary.comparison
    dense = next(stage for stage in comparison.measured.stages if stage.name == "dense")
    found = {
        "predicted": predicted.stage("dense").cpu,
        "measured": dense.cpu,
        "corrected": predicted.corrected,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    hp.launch.run(main)
