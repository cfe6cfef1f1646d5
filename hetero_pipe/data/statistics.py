"""DataStatistics: what a planner must know of data, from a sample of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data.batch import Bags, Batch
from hetero_pipe.data.power_law import PowerLaw
from hetero_pipe.errors import ConfigError
from ps_server.keys import bucket_of
from ps_server.route import Route, ServerRef

__all__ = ["DataStatistics", "TableStatistics", "measure_statistics"]

SERVERS = (1, 2, 4, 8, 16, 32, 64)
"""How many share the keys of a batch where `TableStatistics.imbalance` is measured."""

_NUM_SHARED = 8  # batches over which the imbalance is averaged


@dataclass(frozen=True)
class TableStatistics:
    """What a sample says of the keys of one table.

    Attributes:
        keys: A sample, repeated ones too, of all slots of the table.
        distinct: Distinct keys of a batch by its samples.
        hottest: The share of the keys of later samples, repeated ones too, that is
            of the rows seen most before, by the number of these rows: what a cache
            filled from a first half of the data serves of the second. At most the
            last point: of other rows, nothing is known.
        imbalance: Distinct keys of a batch on the server that has most, over the
            mean of the servers, by their number.
    """

    keys: float
    distinct: PowerLaw
    hottest: PowerLaw
    imbalance: PowerLaw

    def distinct_keys(self, batch: float) -> float:
        """Returns the distinct keys of a batch of so many samples, never above its keys.

        Beyond the sample by a power law, which is too high once most keys that
        there are have been seen.
        """
        return min(self.distinct.at(batch), self.keys * batch)

    def distinct_share(self, batch: float) -> float:
        """Returns the distinct keys by the keys of a batch, above 0 and at most 1."""
        keys = self.keys * batch
        return self.distinct_keys(batch) / keys if keys else 1.0

    def hottest_share(self, num_rows: float) -> float:
        """Returns the share of later keys that the so many hottest rows of now are."""
        return self.hottest.at(min(num_rows, self.hottest.last))

    def largest_share(self, num_servers: int) -> float:
        """Returns the share of a batch's distinct keys on the server that has most."""
        return min(max(self.imbalance.at(num_servers), 1.0) / num_servers, 1.0)


@dataclass(frozen=True)
class DataStatistics:
    """What a sample says of data, for a model's tables. Frozen; to and from JSON.

    Attributes:
        num_samples: That were seen.
        keys: By slot, the mean number of keys a sample.
        tables: By name.
    """

    num_samples: int
    keys: Mapping[str, float]
    tables: Mapping[str, TableStatistics]

    def distinct(self, batch: int) -> dict[str, float]:
        """Returns by table the distinct keys by the keys of a batch of so many samples.

        A graph takes it: `graph.with_data(keys=found.keys, distinct=found.distinct(4096))`.
        """
        return {name: table.distinct_share(batch) for name, table in self.tables.items()}

    def to_json(self) -> str:
        """Returns the statistics as indented JSON."""
        return json.dumps(asdict(self), indent=2)

    @staticmethod
    def from_json(text: str) -> "DataStatistics":
        """Returns the statistics that `to_json` wrote.

        Raises:
            ConfigError: The text is none.
        """
        try:
            fields = json.loads(text)
            tables = {name: _table(**table) for name, table in fields["tables"].items()}
            return DataStatistics(int(fields["num_samples"]), dict(fields["keys"]), tables)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"statistics are JSON as DataStatistics.to_json writes it, got {error!r}"
            ) from error


def _table(keys: float, **curves: Any) -> TableStatistics:  # JSON values
    made = {
        name: PowerLaw(tuple((float(x), float(y)) for x, y in curve["points"]))
        for name, curve in curves.items()
    }
    return TableStatistics(float(keys), **made)


def measure_statistics(
    batches: Iterable[Batch],
    tables: Mapping[str, Sequence[str]],
    *,
    max_samples: int = 65536,
    batch_size: int = 4096,
) -> DataStatistics:
    """Returns the statistics of the first samples of a reader, or of batches.

    Distinct keys are counted in all batches into which the samples can be cut, of
    1 sample, 2, 4 and so on up to all of them, and averaged over those of a size.
    Takes 0.4 us a key of the samples, and arrays of as many.

    Args:
        batches: Of any size. Samples that were shuffled stand for others better
            than the first ones of a file.
        tables: The slots of each table.
        max_samples: Samples to look at.
        batch_size: Samples of the batches whose keys servers share.

    Raises:
        ConfigError: There is no sample, a slot is missing, or a number is not
            above 0.
    """
    if max_samples < 1 or batch_size < 1:
        raise ConfigError(
            "max_samples and batch_size are at least 1, got "
            f"max_samples={max_samples}, batch_size={batch_size}"
        )
    slots = tuple(dict.fromkeys(slot for of_table in tables.values() for slot in of_table))
    bags = _first_bags(batches, slots, max_samples)
    found: dict[tuple[str, ...], TableStatistics] = {}
    for of_table in map(tuple, tables.values()):
        if of_table not in found:  # tables of the same slots share the work
            found[of_table] = _Occurrences.of([bags[slot] for slot in of_table]).statistics(
                batch_size
            )
    num_samples = next(iter(bags.values())).size
    return DataStatistics(
        num_samples,
        {slot: len(bags[slot].keys) / num_samples for slot in slots},
        {name: found[tuple(of_table)] for name, of_table in tables.items()},
    )


def _first_bags(
    batches: Iterable[Batch], slots: tuple[str, ...], max_samples: int
) -> dict[str, Bags]:
    """Returns the keys of the first samples, by slot."""
    parts: dict[str, list[Bags]] = {slot: [] for slot in slots}
    left = max_samples
    for batch in batches:
        missing = [slot for slot in slots if slot not in batch.bags]
        if missing:
            raise ConfigError(
                f"batches have the slots of every table, got none of {', '.join(missing)}; "
                f"they have {', '.join(batch.bags)}"
            )
        size = min(batch.size, left)
        for slot in slots:
            parts[slot].append(batch.bags[slot].slice(0, size))
        left -= size
        if left == 0:
            break
    if not slots or left == max_samples:
        raise ConfigError("statistics need a table with a slot and a sample, got none")
    return {slot: Bags.concat(of_slot) for slot, of_slot in parts.items()}


@dataclass(frozen=True, eq=False)
class _Occurrences:
    """The keys of a table in some samples, by key and for one key by sample.

    Attributes:
        keys: uint64 `[n]`.
        samples: int64 `[n]`, in which sample each is.
        num_samples: In all.
    """

    keys: NDArray[np.uint64]
    samples: NDArray[np.int64]
    num_samples: int

    @staticmethod
    def of(bags: Sequence[Bags]) -> "_Occurrences":
        size = bags[0].size
        keys = np.concatenate([each.keys for each in bags])
        samples = np.concatenate([np.repeat(np.arange(size), each.lengths()) for each in bags])
        order = np.lexsort((samples, keys))
        return _Occurrences(keys[order], samples[order], size)

    def statistics(self, batch_size: int) -> TableStatistics:
        return TableStatistics(
            keys=len(self.keys) / self.num_samples,
            distinct=self._distinct(),
            hottest=self._hottest(),
            imbalance=self._imbalance(min(batch_size, self.num_samples)),
        )

    def _distinct(self) -> PowerLaw:
        """Counts an occurrence in its batch if the one before it of its key is in none or another.

        So one sort serves batches of all sizes.
        """
        before = np.full(len(self.keys), -1)
        is_repeated = self.keys[1:] == self.keys[:-1]
        before[1:][is_repeated] = self.samples[:-1][is_repeated]
        points = []
        for size in _halves(self.num_samples):
            num_batches = self.num_samples // size
            batch = self.samples // size
            is_first = (before < batch * size) & (batch < num_batches)
            points.append((size, np.count_nonzero(is_first) / num_batches))
        return _curve(points)

    def _hottest(self) -> PowerLaw:
        """Ranks rows by how often the first half has them, and counts them in the second."""
        is_later = self.samples >= self.num_samples // 2
        rows, row = np.unique(self.keys, return_inverse=True)
        earlier = np.bincount(row[~is_later], minlength=len(rows))
        later = np.bincount(row[is_later], minlength=len(rows))
        ranked = np.argsort(-earlier, kind="stable")[: np.count_nonzero(earlier)]
        served = np.cumsum(later[ranked]) / max(later.sum(), 1)
        return _curve([(size, served[size - 1]) for size in _halves(len(ranked))])

    def _imbalance(self, batch_size: int) -> PowerLaw:
        """Averages over a few batches, for all of the sample were no better."""
        excess = np.zeros(len(SERVERS))
        num_batches = min(self.num_samples // batch_size, _NUM_SHARED)
        for i in range(num_batches):
            keys = np.unique(self.keys[self.samples // batch_size == i])
            buckets = bucket_of(keys)
            for j, num_servers in enumerate(SERVERS):
                counts = np.bincount(_owners(num_servers)[buckets], minlength=num_servers)
                excess[j] += counts.max() * num_servers / max(len(keys), 1)
        return _curve(zip(SERVERS, excess / num_batches, strict=True))


def _owners(num_servers: int) -> NDArray[np.uint16]:
    """Returns which of so many servers owns each bucket."""
    return Route(tuple(ServerRef(str(i), str(i)) for i in range(num_servers))).owners


def _halves(number: int) -> list[int]:
    """Returns the number, its half, the half of that and so on, from 1; each once."""
    return sorted({number >> i for i in range(number.bit_length())})


def _curve(points: Iterable[tuple[float, float]]) -> PowerLaw:
    """Returns a curve through points, lifted where chance has one below another."""
    rising: list[tuple[float, float]] = []
    for x, y in points:
        least = rising[-1][1] if rising else 0.0
        if max(y, least) > 0:
            rising.append((float(x), float(max(y, least))))
    return PowerLaw(tuple(rising))
