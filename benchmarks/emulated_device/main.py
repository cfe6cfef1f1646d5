"""Do copies and kernels of a device overlap with the rest? On a device that is emulated.

Prints a Markdown table; README.md beside this file tells what is measured.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

import emulated

if "CUSTOM_DEVICE_ROOT" not in os.environ:  # Paddle looks there when it is imported
    device = emulated.environment(emulated.build(), memory=4 << 30)
    os.execve(sys.executable, [sys.executable, *sys.argv], {**device, **os.environ})

import paddle
from paddle import nn

import hetero_pipe as hp

NAME, DIM, BATCH = "emulated:0", 16, 4096


class _Kernel(paddle.autograd.PyLayer):
    """Rows `[u, dim]` to logits `[batch]` of zero; gradients are a constant, some time later."""

    @staticmethod
    def forward(ctx, rows, model, logits):
        ctx.model, ctx.shape = model, tuple(rows.shape)
        return logits.clone()

    @staticmethod
    def backward(ctx, _):
        # Last: kernels that fall back to the CPU wait for the stream, so there is none after it.
        emulated.compute(paddle.device.current_stream(NAME), ctx.model.seconds)
        return ctx.model.gradients_of(ctx.shape)


class StatedTime(nn.Layer):
    """Takes the rows of a batch and gives back gradients `seconds` later. Computes nothing."""

    def __init__(self, slots: tuple[str, ...], seconds: float) -> None:
        super().__init__()
        self.embedding = hp.Embedding(slots, dim=DIM, name="embedding")
        self.seconds = seconds
        self._gradients: dict[tuple[int, ...], list[paddle.Tensor]] = {}

    def gradients_of(self, shape: tuple[int, ...]) -> paddle.Tensor:
        """Returns a constant of a shape, which is made once."""
        if shape not in self._gradients:
            self._gradients[shape] = [paddle.full(shape, 1e-4)]
        return self._gradients[shape][0].detach()

    def forward(self, batch):  # as hp.Trainer calls it
        """Returns logits `[batch]`."""
        rows = batch.pulled["embedding"].rows  # not what a model does: hp.Embedding pools them
        return _Kernel.apply(rows, self, paddle.zeros([len(batch["label"])]))


def measure(seconds: float, staleness: int, num_batches: int) -> tuple[float, str]:
    """Returns batches a second of a device that takes `seconds` a batch, and the longest stage."""
    reader = hp.synthetic_criteo(num_samples=BATCH * (num_batches + 8), batch_size=BATCH, seed=1)
    model = StatedTime(reader.slots, seconds)
    with hp.Trainer(model, staleness=staleness) as trainer:
        trainer.fit(reader, max_steps=8, callbacks=[])  # buffers are made
        result = trainer.fit(reader, max_steps=num_batches, callbacks=[])
    return result.num_steps / result.seconds, result.timeline.bottleneck or "none"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--batches", type=int, default=60, help="default: %(default)s")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("--ms", type=float, nargs="+", default=[10, 5, 2], help="of a batch's kernels")
    flags = parser.parse_args()
    paddle.set_device(NAME)
    print("| emulated, ms a batch | k | batches/s, median (min, max) | of its limit | longest |")
    print("| --- | --- | --- | --- | --- |")
    for milliseconds in flags.ms:
        limit = 1e3 / milliseconds
        for staleness in (0, 1, 2, 4):
            runs = [
                measure(milliseconds / 1e3, staleness, flags.batches) for _ in range(flags.rounds)
            ]
            rates = sorted(rate for rate, _ in runs)
            middle = statistics.median(rates)
            cells = [
                f"{milliseconds:g}",
                f"{staleness}",
                f"{middle:.1f} ({rates[0]:.1f}, {rates[-1]:.1f})",
                f"{middle / limit:.2f}",
                runs[-1][1],
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    assert Path(emulated.__file__).parent == Path(__file__).parent
    main()
