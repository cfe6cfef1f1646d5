"""Made-up samples in the form of Criteo's click logs, whose best prediction is known."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from os import PathLike

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hetero_pipe.data.batch import Batch, Floats
from hetero_pipe.data.columns import Chunk, Columns
from hetero_pipe.data.criteo import (
    CARDINALITIES,
    CRITEO_DENSE,
    CRITEO_SLOTS,
    LABEL_RATE,
    Category,
    categories,
    counts,
)
from hetero_pipe.data.formats.criteo import write_criteo
from hetero_pipe.data.planted import PlantedModel, Sample
from hetero_pipe.data.reader import TableReader
from hetero_pipe.data.zipf import BoundedZipf
from hetero_pipe.errors import ConfigError
from hetero_pipe.metrics import StreamingAuc

__all__ = ["Optimum", "SyntheticReader", "synthetic_criteo"]

# Rows. A block is a function of (seed, its number): a part of what a seed means, not to be tuned.
_BLOCK = 16384

_PILOT_BLOCKS = 4

# The probability that the label is 1, negative where the label came out 0: both in one column.
_OUTCOME = "outcome"


@dataclass(frozen=True)
class Optimum:
    """What the planted probabilities score on the labels drawn from them.

    No prediction scores better but by luck of the draw.

    Attributes:
        auc: Area under the ROC curve; None if the labels are all of one class.
        log_loss: Mean negative log-likelihood, in nats.
        label_rate: The share of labels that are 1.
        num_samples: That they were drawn for.
    """

    auc: float | None
    log_loss: float
    label_rate: float
    num_samples: int


@dataclass(frozen=True)
class SyntheticReader:
    """A reader of samples that are made as they are read, the same ones in every epoch.

    The samples are independent, so their order is as good as a shuffled one.
    `synthetic_criteo` makes one.

    Attributes:
        table: Reads them as it would from files.
    """

    table: TableReader

    @property
    def slots(self) -> tuple[str, ...]:
        """`C1` to `C26`."""
        return self.table.slots

    @property
    def dense(self) -> tuple[str, ...]:
        """`I1` to `I13`."""
        return self.table.dense

    def batches(self, epoch: int, *, skip: int = 0) -> Iterator[Batch]:
        """Returns the batches, after the first `skip`; the same ones for every epoch.

        Raises:
            ConfigError: `epoch` or `skip` is negative.
        """
        return self.table.batches(epoch, skip=skip)

    def __iter__(self) -> Iterator[Batch]:
        """Returns the batches."""
        return self.batches(0)

    def in_order(self) -> "SyntheticReader":
        """Returns this reader: it never shuffles."""
        return self

    def split(self, fraction: float) -> "tuple[SyntheticReader, SyntheticReader]":
        """Returns two readers that share out the samples, as `TableReader.split` does.

        Files that `write_criteo` wrote are split alike.

        Raises:
            ConfigError: `fraction` is not above 0 and below 1.
        """
        train, evaluation = self.table.split(fraction)
        return SyntheticReader(train), SyntheticReader(evaluation)

    def probabilities(self, epoch: int = 0, *, skip: int = 0) -> Iterator[Floats]:
        """Returns the probability that each label is 1, float32 `[batch]`, in step with `batches`.

        Raises:
            ConfigError: `epoch` or `skip` is negative.
        """
        return (np.abs(outcome) for outcome in self._outcomes(epoch, skip))

    def best(self) -> Optimum:
        """Returns the best possible scores on the samples of this reader; reads them all."""
        metric = StreamingAuc()
        loss, num_positive, size = 0.0, 0, 0
        for outcome in self._outcomes(0, 0):
            probability, is_positive = np.abs(outcome.astype(np.float64)), outcome > 0
            metric.add(is_positive, probability)
            loss -= float(np.log(np.where(is_positive, probability, 1 - probability)).sum())
            num_positive += int(is_positive.sum())
            size += len(outcome)
        if size == 0:
            raise ConfigError("the best scores need a sample, got none; raise num_samples")
        return Optimum(metric.value(), loss / size, num_positive / size, size)

    def write_criteo(self, path: str | PathLike[str]) -> int:
        """Writes the samples as Criteo's text, which `read_criteo` reads to equal batches.

        A line is the label, 13 integers and 26 categories of 8 hexadecimal digits,
        separated by tabs; what is missing is an empty field. There is no header.

        Args:
            path: A file, which is replaced. A name that ends in .gz, .bz2, .lz4
                or .zst is packed on the way.

        Returns:
            The number of lines.
        """
        return write_criteo(path, self._rows())

    def _outcomes(self, epoch: int, skip: int) -> Iterator[Floats]:
        # The label is no part of the hash by which rows are split, so these are the same rows.
        columns = replace(self.table.columns, label=_OUTCOME)
        for batch in replace(self.table, columns=columns).batches(epoch, skip=skip):
            assert batch.label is not None
            yield batch.label

    def _rows(self) -> Iterator[pa.RecordBatch]:
        for chunk in self.table.source.chunks():
            rows = chunk.rows
            if self.table.is_split:
                kept = self.table.kept(self.table.columns.to_batch(chunk))
                rows = rows.take(pa.array(kept))
            yield rows


@dataclass(frozen=True)
class _Samples:
    """The source of a synthetic reader.

    Attributes:
        num_samples: At least 1.
        seed: Draws the samples.
        categories: Of the slots.
        model: Draws the labels.
    """

    num_samples: int
    seed: int
    categories: tuple[Category, ...]
    model: PlantedModel

    def chunks(self) -> Generator[Chunk, None, None]:
        """Yields every sample, 16,384 at a time."""
        for first in range(0, self.num_samples, _BLOCK):
            rows = self._block(first // _BLOCK).slice(0, self.num_samples - first)
            yield Chunk(rows, _Place(first))

    def _block(self, number: int) -> pa.RecordBatch:
        rng = np.random.default_rng([self.seed, 1, number])
        sample, columns = _draw(self.categories, rng)
        probability = self.model.probabilities(sample)
        is_positive = rng.random(_BLOCK) < probability
        columns["label"] = pa.array(is_positive.view(np.int8))
        columns[_OUTCOME] = pa.array(np.where(is_positive, probability, -probability))
        return pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True)
class _Place:
    """Where the rows of a chunk stand among the samples."""

    first: int

    def __call__(self, row: int) -> str:
        return f"sample {self.first + row}"


def synthetic_criteo(
    *,
    num_samples: int,
    batch_size: int = 4096,
    seed: int = 0,
    dataset: str = "kaggle",
    scale: float = 1.0,
    signal: float = 1.4,
    log_dense: bool = True,
) -> SyntheticReader:
    """Returns a reader of made-up samples in the form of Criteo's click logs.

    Columns are those of `read_criteo`. Cardinalities, how often a value is seen,
    how many integers are missing and how large they are follow the published sets;
    columns are independent, and a value is a hash of its rank, the same for every
    seed. The click is drawn with a probability that is a known function of the
    keys and the integers (`hetero_pipe.data.planted`), on average 0.256.

    A sample is a function of (seed, its number) and the other arguments but
    `batch_size` and `log_dense`, on machines with equal arithmetic.

    Args:
        num_samples: At least 1.
        batch_size: Samples of a batch; the last may be smaller.
        seed: Draws the planted effects and the samples.
        dataset: Whose cardinalities: `kaggle`, 33.76 M in all, or `terabyte`,
            187.77 M.
        scale: Multiplies the cardinalities, above 0. A slot keeps 3 values.
        signal: The standard deviation of the planted logit, from 0, for
            nothing to learn, to 10. At 1.4 the best AUC is about 0.80.
        log_dense: Whether an integer x becomes sign(x) log(1 + |x|), as
            `read_criteo` does.

    Raises:
        ConfigError: An argument is out of range.
    """
    if num_samples < 1:
        raise ConfigError(f"num_samples is at least 1, got num_samples={num_samples}")
    if dataset not in CARDINALITIES:
        raise ConfigError(f"dataset is one of {', '.join(CARDINALITIES)}, got dataset={dataset!r}")
    if not 0 < scale < float("inf"):
        raise ConfigError(f"scale is above 0 and finite, got scale={scale}")
    if not 0 <= signal <= 10:
        raise ConfigError(f"signal is from 0 to 10, got signal={signal}")
    if seed < 0:
        raise ConfigError(f"seed is at least 0, got seed={seed}")
    slots = categories(dataset, scale)
    rng = np.random.default_rng([seed, 2])
    pilots = [_draw(slots, rng)[0] for _ in range(_PILOT_BLOCKS)]
    pilot = Sample(
        np.concatenate([each.values for each in pilots], axis=1),
        np.concatenate([each.numbers for each in pilots], axis=1),
    )
    source = _Samples(
        num_samples, seed, slots, PlantedModel.fitted(seed, signal, pilot, LABEL_RATE)
    )
    columns = Columns(CRITEO_SLOTS, CRITEO_DENSE, "label", None)
    return SyntheticReader(TableReader(source, columns, batch_size, log_dense=log_dense))


def _draw(
    slots: tuple[Category, ...], rng: np.random.Generator
) -> tuple[Sample, dict[str, pa.Array]]:
    """Returns a block of samples, as numbers and as the columns of a file."""
    columns = {}
    shape = (len(CRITEO_DENSE), _BLOCK)
    numbers = rng.standard_normal(shape)
    is_missing = rng.random(shape) < np.array([[count.missing] for count in counts()])
    for i, count in enumerate(counts()):
        # A log-normal law of the column's mean and deviation.
        variance = np.log1p((count.deviation / count.mean) ** 2)
        values = np.rint(np.exp(numbers[i] * variance**0.5 + np.log(count.mean) - variance / 2))
        columns[count.name] = pa.array(values.astype(np.int64), mask=is_missing[i])
        numbers[i] = np.where(is_missing[i], 0.0, np.log1p(values) / variance**0.5)
    values = np.empty((len(slots), _BLOCK), np.uint32)
    for i, slot in enumerate(slots):
        ranks = BoundedZipf(slot.cardinality, slot.exponent).sample(_BLOCK, rng)
        values[i] = _scattered(ranks, i)
        columns[slot.name] = _hexadecimal(values[i], ranks == 0 if slot.is_often_empty else None)
    return Sample(values, numbers), columns


def _scattered(ranks: NDArray[np.int64], slot: int) -> NDArray[np.uint32]:
    """Returns the values of 32 bits that stand for ranks: no two alike, neighbours far apart.

    The finalizer of MurmurHash3 (Appleby, public domain), a bijection.
    """
    bits = ranks.astype(np.uint32)
    bits += np.uint32((slot + 1) * 0x9E3779B9 % 2**32)
    bits ^= bits >> np.uint32(16)
    bits *= np.uint32(0x85EBCA6B)
    bits ^= bits >> np.uint32(13)
    bits *= np.uint32(0xC2B2AE35)
    bits ^= bits >> np.uint32(16)
    return bits


# The four digits of each number of 16 bits, as one number.
_DIGITS = np.frombuffer("".join(f"{i:04x}" for i in range(2**16)).encode(), np.uint32)


def _hexadecimal(values: NDArray[np.uint32], is_empty: NDArray[np.bool_] | None) -> pa.Array:
    """Returns each value as text of 8 digits, or as the empty text."""
    digits = np.empty((len(values), 2), np.uint32)
    digits[:, 0] = _DIGITS[values >> np.uint32(16)]
    digits[:, 1] = _DIGITS[values & np.uint32(0xFFFF)]
    offsets = np.zeros(len(values) + 1, np.int32)
    if is_empty is None:
        offsets[1:] = 8
    else:
        np.multiply(~is_empty, 8, out=offsets[1:], casting="unsafe")
        digits = digits[~is_empty]
    np.cumsum(offsets, out=offsets)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(digits))
