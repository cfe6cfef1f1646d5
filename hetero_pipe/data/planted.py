"""A known truth behind synthetic clicks, so that the best possible prediction is known.

The logit of a sample is a sum of three parts, each brought to mean 0 and
deviation 1 on a pilot sample::

    logit = bias + signal * (sqrt(.6) keys + sqrt(.2) pairs + sqrt(.2) dense)

    keys  = sum of e(k) over the slots                   logistic regression finds it
    pairs = sum of f(k) f(l) over a few pairs of slots   it takes factors to find it
    dense = sum of a weight times a number                dense values find it

The effects e and f of a key, uniform, of mean 0 and variance 1, are bits of one
hash of (seed, slot, value): nothing is stored, however many keys there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["PlantedModel", "Sample"]

Floats = NDArray[np.float64]

# By index of a slot. Of few values each, so that a small sample shows them all.
_PAIRS = ((1, 7), (0, 13), (4, 16), (18, 24), (6, 10))

_SHARES = (0.6, 0.2, 0.2)
"""Of the variance of the logit: keys, pairs, dense."""


@dataclass(frozen=True, eq=False)
class Sample:
    """What the logits of some rows depend on.

    Attributes:
        values: uint32 `[slots, n]`.
        numbers: `[num_dense, n]`: log(1 + x) of each integer x, 0 where it is
            missing, as a reader gives it, by the column's scale. All of it can be
            seen, so the best prediction can be reached.
    """

    values: NDArray[np.uint32]
    numbers: Floats


@dataclass(frozen=True)
class PlantedModel:
    """The probability of a click as a function of a sample.

    Attributes:
        seed: Draws every effect and weight.
        signal: The standard deviation of the logit.
        bias: Added to the logit.
        means: Of the three parts.
        scales: What each part, its mean taken off, is multiplied by.
    """

    seed: int
    signal: float
    bias: float = 0.0
    means: tuple[float, ...] = (0.0, 0.0, 0.0)
    scales: tuple[float, ...] = (1.0, 1.0, 1.0)

    @staticmethod
    def fitted(seed: int, signal: float, pilot: Sample, rate: float) -> "PlantedModel":
        """Returns the model whose probabilities have the mean `rate` on a pilot sample."""
        raw = PlantedModel(seed, signal)
        parts = raw._parts(pilot)
        deviations = [float(part.std()) for part in parts]
        scaled = PlantedModel(
            seed,
            signal,
            means=tuple(float(part.mean()) for part in parts),
            scales=tuple(
                signal * share**0.5 / deviation if deviation else 0.0
                for share, deviation in zip(_SHARES, deviations, strict=True)
            ),
        )
        logits = scaled._logits(parts)
        low, high = -40.0 - float(logits.max()), 40.0 - float(logits.min())
        for _ in range(60):  # halvings, down to a float's last bits
            bias = (low + high) / 2
            if _sigmoid(logits + bias).mean() < rate:
                low = bias
            else:
                high = bias
        return PlantedModel(seed, signal, bias, scaled.means, scaled.scales)

    def probabilities(self, sample: Sample) -> Floats:
        """Returns the probability that the label of each row is 1, `[n]`, above 0 and below 1."""
        return _sigmoid(self._logits(self._parts(sample)))

    def _logits(self, parts: Sequence[Floats]) -> Floats:
        logits = np.full(len(parts[0]), self.bias)
        for part, mean, scale in zip(parts, self.means, self.scales, strict=True):
            logits += (part - mean) * scale
        return logits

    def _parts(self, sample: Sample) -> tuple[Floats, Floats, Floats]:
        num_slots, n = sample.values.shape
        keys, pairs, dense = np.zeros(n), np.zeros(n), np.zeros(n)
        rng = np.random.default_rng([self.seed, 0])
        seeds = rng.integers(2**64, size=(num_slots,), dtype=np.uint64)
        in_pairs = {slot for pair in _PAIRS for slot in pair}
        factors = {}
        for slot in range(num_slots):
            bits = _mixed(sample.values[slot], seeds[slot])
            keys += _effect(bits >> np.uint64(32))
            if slot in in_pairs:
                factors[slot] = _effect(bits & np.uint64(2**32 - 1))
        for one, other in _PAIRS:
            pairs += factors[one] * factors[other]
        for weight, numbers in zip(
            rng.uniform(-1, 1, len(sample.numbers)), sample.numbers, strict=True
        ):
            dense += weight * numbers
        return keys, pairs, dense


def _mixed(values: NDArray[np.uint32], seed: np.uint64) -> NDArray[np.uint64]:
    """Returns a hash of each value: the output function of SplitMix64 (Steele et al., 2014)."""
    bits = values.astype(np.uint64)
    bits += seed
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


def _effect(bits: NDArray[np.uint64]) -> Floats:
    """Returns 32 bits as a number of mean 0 and variance 1, uniform over +-sqrt(3)."""
    return bits.astype(np.float64) * (2 * 3**0.5 / 2**32) - 3**0.5


def _sigmoid(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))
