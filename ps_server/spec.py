"""What a table is: its rows' dim, optimizer and initializer. Imports nothing.

A server and every client of it hold equal `TableSpec`s; a table is created
from one and a differing one is refused.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = [
    "NUM_BUCKETS",
    "SGD",
    "Adagrad",
    "Adam",
    "Constant",
    "Initializer",
    "Normal",
    "Optimizer",
    "TableSpec",
    "Uniform",
]

NUM_BUCKETS = 4096
"""Hash slices of the keys. A bucket is what is routed to a server, saved and moved."""

MAX_DIM = 4096
MAX_NAME = 200  # characters: a name becomes a folder of a checkpoint


def _check(holds: bool, claim: str, **found: object) -> None:
    if not holds:
        values = ", ".join(f"{name}={value!r}" for name, value in found.items())
        raise ValueError(f"{claim}, got {values}")


def _is_rate(value: float) -> bool:
    return math.isfinite(value) and value > 0


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: `w -= learning_rate * g`. No state.

    Attributes:
        learning_rate: Above 0.
    """

    learning_rate: float

    def __post_init__(self) -> None:
        _check(
            _is_rate(self.learning_rate),
            "SGD needs learning_rate > 0",
            learning_rate=self.learning_rate,
        )

    @property
    def state_per_weight(self) -> int:
        """Floats of state that a row keeps beside each weight."""
        return 0

    @property
    def initial_state(self) -> float:
        """What each float of that state is at first."""
        return 0.0


@dataclass(frozen=True)
class Adagrad:
    """Adagrad, one accumulator a weight.

    `a += g * g; w -= learning_rate * g / (sqrt(a) + epsilon)`

    Attributes:
        learning_rate: Above 0.
        epsilon: Added to the root, above 0.
        initial_accumulator: What `a` of a new row starts at, at least 0.
    """

    learning_rate: float
    epsilon: float = 1e-6
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        _check(
            _is_rate(self.learning_rate),
            "Adagrad needs learning_rate > 0",
            learning_rate=self.learning_rate,
        )
        _check(_is_rate(self.epsilon), "Adagrad needs epsilon > 0", epsilon=self.epsilon)
        _check(
            math.isfinite(self.initial_accumulator) and self.initial_accumulator >= 0,
            "Adagrad needs initial_accumulator >= 0",
            initial_accumulator=self.initial_accumulator,
        )

    @property
    def state_per_weight(self) -> int:
        """Floats of state that a row keeps beside each weight."""
        return 1

    @property
    def initial_state(self) -> float:
        """What each float of that state is at first."""
        return self.initial_accumulator


@dataclass(frozen=True)
class Adam:
    """Lazy Adam: only the rows of a push move; the bias correction counts the table's steps.

    The meaning is that of Paddle's `Adam(lazy_mode=True)` on a `sparse=True`
    embedding, as documented. Its CPU kernel (3.3.1) corrects the bias of step t
    as if it were t + 1, which shows in the first steps; this does not::

        m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g * g
        w -= learning_rate * sqrt(1 - beta2**t) / (1 - beta1**t)
             * m / (sqrt(v) + epsilon * sqrt(1 - beta2**t))

    Attributes:
        learning_rate: Above 0.
        beta1: Decay of the mean of gradients, in [0, 1).
        beta2: Decay of the mean of squared gradients, in [0, 1).
        epsilon: Added to the root, above 0.
    """

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check(
            _is_rate(self.learning_rate),
            "Adam needs learning_rate > 0",
            learning_rate=self.learning_rate,
        )
        _check(0 <= self.beta1 < 1, "Adam needs beta1 in [0, 1)", beta1=self.beta1)
        _check(0 <= self.beta2 < 1, "Adam needs beta2 in [0, 1)", beta2=self.beta2)
        _check(_is_rate(self.epsilon), "Adam needs epsilon > 0", epsilon=self.epsilon)

    @property
    def state_per_weight(self) -> int:
        """Floats of state that a row keeps beside each weight."""
        return 2

    @property
    def initial_state(self) -> float:
        """What each float of that state is at first."""
        return 0.0


Optimizer = SGD | Adagrad | Adam


@dataclass(frozen=True)
class Constant:
    """Every weight of a new row is `value`."""

    value: float = 0.0

    def __post_init__(self) -> None:
        _check(math.isfinite(self.value), "Constant needs a finite value", value=self.value)


@dataclass(frozen=True)
class Uniform:
    """The weights of a new row are uniform in [low, high)."""

    low: float = -0.01
    high: float = 0.01

    def __post_init__(self) -> None:
        _check(
            math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high,
            "Uniform needs finite low < high",
            low=self.low,
            high=self.high,
        )


@dataclass(frozen=True)
class Normal:
    """The weights of a new row are normal with `mean` and standard deviation `std`."""

    mean: float = 0.0
    std: float = 0.01

    def __post_init__(self) -> None:
        _check(math.isfinite(self.mean), "Normal needs a finite mean", mean=self.mean)
        _check(_is_rate(self.std), "Normal needs std > 0", std=self.std)


Initializer = Constant | Uniform | Normal

_OPTIMIZERS = {"sgd": SGD, "adagrad": Adagrad, "adam": Adam}
_INITIALIZERS = {"constant": Constant, "uniform": Uniform, "normal": Normal}


def _to_dict(kinds: dict[str, Any], value: Any) -> dict[str, Any]:
    kind = next(name for name, cls in kinds.items() if isinstance(value, cls))
    return {"kind": kind, **asdict(value)}


def _from_dict(kinds: dict[str, Any], fields: dict[str, Any]) -> Any:
    kind, settings = fields.get("kind"), {k: v for k, v in fields.items() if k != "kind"}
    if kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, got {kind!r}")
    return kinds[kind](**settings)


@dataclass(frozen=True)
class TableSpec:
    """A table: rows of one dim with one optimizer and one initializer.

    Attributes:
        name: Unique among the tables of a job; letters, digits, `_`, `-` and `.`.
        dim: Weights of a row, 1 to 4096.
        optimizer: How a gradient changes a row.
        initializer: What a new row starts as.
        seed: A new row's weights are a function of (seed, key) alone.
    """

    name: str
    dim: int
    optimizer: Optimizer = field(default_factory=lambda: Adagrad(0.05))
    initializer: Initializer = field(default_factory=Uniform)
    seed: int = 0

    def __post_init__(self) -> None:
        is_name = self.name.replace("_", "").replace("-", "").replace(".", "").isalnum()
        _check(
            is_name and self.name.isascii() and not self.name.startswith("."),
            "a table's name is letters, digits, '_', '-' and '.'",
            name=self.name,
        )
        _check(
            len(self.name) <= MAX_NAME,
            f"a table's name has at most {MAX_NAME} characters",
            name=self.name,
        )
        _check(1 <= self.dim <= MAX_DIM, f"a table needs dim from 1 to {MAX_DIM}", dim=self.dim)
        _check(0 <= self.seed < 2**64, "a seed is an unsigned 64-bit number", seed=self.seed)

    def to_dict(self) -> dict[str, Any]:  # JSON values
        """Returns the spec as JSON values."""
        return {
            "name": self.name,
            "dim": self.dim,
            "optimizer": _to_dict(_OPTIMIZERS, self.optimizer),
            "initializer": _to_dict(_INITIALIZERS, self.initializer),
            "seed": self.seed,
        }

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> "TableSpec":  # JSON values
        """Returns the spec that `to_dict` wrote.

        Raises:
            ValueError: A field is missing, unknown or out of range.

        >>> spec = TableSpec("user", dim=8, optimizer=SGD(0.1))
        >>> TableSpec.from_dict(spec.to_dict()) == spec
        True
        """
        try:
            return TableSpec(
                name=fields["name"],
                dim=fields["dim"],
                optimizer=_from_dict(_OPTIMIZERS, fields["optimizer"]),
                initializer=_from_dict(_INITIALIZERS, fields["initializer"]),
                seed=fields["seed"],
            )
        except (AttributeError, KeyError, TypeError) as error:  # JSON of another shape
            raise ValueError(f"not a table spec: {error}, got {fields!r}") from error
