"""A table as a dict of arrays: slow and obvious, one row and one key at a time.

Bit-equal to the native table but for `Normal`, whose oracle takes its logarithm
and cosine from libm: there the float32 weights agree to the last bit or two.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from ps_server.spec import SGD, Adagrad, Adam, Constant, Normal, Uniform

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def bucket_of(key):
    """Its top 12 bits when it is mixed."""
    return hash_of(key) >> 52


def stripe_of(key):
    """The 6 bits below those of the bucket."""
    return (hash_of(key) >> 46) % 64


def hash_of(key):
    """Murmur3's finalizer."""
    key = ((key ^ (key >> 33)) * 0xFF51AFD7ED558CCD) & WORD
    key = ((key ^ (key >> 33)) * 0xC4CEB9FE1A85EC53) & WORD
    return key ^ (key >> 33)


def key_of(hash):
    """Returns the key whose hash by the finalizer this is: its inverse."""
    hash = ((hash ^ (hash >> 33)) * 0x9CB4B2F8129337DB) & WORD
    hash = ((hash ^ (hash >> 33)) * 0x4F74430C22A54005) & WORD
    return hash ^ (hash >> 33)


def first_weights(spec, key):
    seed = xxhash.xxh64_intdigest(spec.name.encode(), spec.seed)
    stream = splitmix(splitmix((seed + GOLDEN) & WORD) ^ key)

    def draw(i):
        return (splitmix((stream + (i + 1) * GOLDEN) & WORD) >> 11) * 2.0**-53

    match spec.initializer:
        case Constant(value):
            return np.full(spec.dim, value, np.float32)
        case Uniform(low, high):
            wide = [low + (high - low) * draw(i) for i in range(spec.dim)]
            last = np.nextafter(np.float32(high), np.float32(low))
            return np.minimum(np.array(wide, np.float32), last)
        case Normal(mean, std):
            normals = []
            for i in range(0, spec.dim, 2):
                radius = math.sqrt(-2 * math.log(draw(i) + 2.0**-53))
                angle = 2 * math.pi * draw(i + 1)
                normals += [radius * math.cos(angle), radius * math.sin(angle)]
            return np.array([mean + std * x for x in normals[: spec.dim]], np.float32)


@dataclass
class Row:
    weights: np.ndarray
    state: np.ndarray  # [state_per_weight, dim]
    num_pushes: int = 0
    step: int = 0


class DictTable:
    """The methods of `ps_server.table.Table`, on a dict from key to Row.

    `start(spec, key)` gives the weights of a new row.
    """

    def __init__(self, spec, start=first_weights):
        self.spec = spec
        self.start = start
        self.rows = {}
        self.last_step = 0

    @property
    def num_rows(self):
        return len(self.rows)

    def pull(self, keys, *, insert=True):
        if insert:
            for key in keys.tolist():
                self._row(key)
        pulled = [
            self.rows[key].weights if key in self.rows else self.start(self.spec, key)
            for key in keys.tolist()
        ]
        return np.array(pulled, np.float32).reshape(len(keys), self.spec.dim)

    def push(self, keys, gradients, *, step):
        sums = {}
        for key, gradient in zip(keys.tolist(), gradients, strict=True):
            sums[key] = sums[key] + gradient if key in sums else gradient
        for key, gradient in sums.items():
            row = self._row(key)
            update(self.spec.optimizer, row, gradient, step)
            row.num_pushes += 1
            row.step = max(row.step, step)
        self.last_step = max(self.last_step, step)

    def clear(self):
        self.rows.clear()
        self.last_step = 0

    def drop_buckets(self, first_bucket, end_bucket):
        for key, _ in self.export_rows(first_bucket, end_bucket):
            del self.rows[key]

    def copy(self, keys=None):
        """Returns a table of equal rows, all or those of `keys`, that goes its own way."""
        other = DictTable(self.spec, self.start)
        wanted = self.rows if keys is None else keys & self.rows.keys()
        for key in wanted:  # an update replaces the weights, and writes into the state
            other.rows[key] = replace(self.rows[key], state=self.rows[key].state.copy())
        other.last_step = self.last_step
        return other

    def export_rows(self, first_bucket, end_bucket):
        """Returns (key, Row) pairs by key."""
        inside = [key for key in self.rows if first_bucket <= bucket_of(key) < end_bucket]
        return [(key, self.rows[key]) for key in sorted(inside)]

    def _row(self, key):
        if key not in self.rows:
            optimizer = self.spec.optimizer
            initial = getattr(optimizer, "initial_accumulator", 0.0)
            state = np.full((optimizer.state_per_weight, self.spec.dim), initial, np.float32)
            self.rows[key] = Row(self.start(self.spec, key), state)
        return self.rows[key]


def update(optimizer, row, g, step):
    one = np.float32(1)
    rate = np.float32(optimizer.learning_rate)
    match optimizer:
        case SGD():
            row.weights = row.weights - rate * g
        case Adagrad():
            row.state[0] = a = row.state[0] + g * g
            row.weights = row.weights - rate * g / (np.sqrt(a) + np.float32(optimizer.epsilon))
        case Adam():
            beta1, beta2 = np.float32(optimizer.beta1), np.float32(optimizer.beta2)
            power1, power2 = np.float32(power(beta1, step)), np.float32(power(beta2, step))
            rate = rate * (np.sqrt(one - power2) / (one - power1))
            epsilon = np.float32(optimizer.epsilon) * np.sqrt(one - power2)
            row.state[0] = m = beta1 * row.state[0] + (one - beta1) * g
            row.state[1] = v = beta2 * row.state[1] + (one - beta2) * g * g
            row.weights = row.weights - rate * (m / (np.sqrt(v) + epsilon))


def power(x, n):
    """Returns x**n by squaring, in double: Python's `**` may differ in the last bit."""
    result, x = 1.0, float(x)
    while n:
        if n & 1:
            result *= x
        n, x = n >> 1, x * x
    return result
