"""What tests ask of a trace: not a test itself."""

import gzip
import json
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Slice:
    """One span, its times in whole nanoseconds."""

    process: str
    track: str
    name: str
    step: int | None
    start: int
    end: int

    def is_within(self, other, *, slack=0):
        return other.start - slack <= self.start and self.end <= other.end + slack


class Trace:
    """A trace as its reader sees it."""

    def __init__(self, merged):
        self.events = merged["traceEvents"]
        names = {
            (e["name"], e["pid"], e["tid"]): e["args"]["name"]
            for e in self.events
            if e["name"] in ("process_name", "thread_name")
        }
        self._names = names
        self._all = [
            Slice(
                names["process_name", e["pid"], 0],
                names["thread_name", e["pid"], e["tid"]],
                e["name"],
                e["args"].get("step"),
                round(e["ts"] * 1e3),
                round(e["ts"] * 1e3) + round(e["dur"] * 1e3),
            )
            for e in self.events
            if e["ph"] == "X"
        ]

    @staticmethod
    def read(path):
        data = path.read_bytes()
        return Trace(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))

    def processes(self):
        return [name for (kind, _, _), name in self._names.items() if kind == "process_name"]

    def tracks(self, process):
        """Names of the threads of a process, as they are sorted for a reader."""
        places = [
            (e["args"]["sort_index"], self._names["thread_name", e["pid"], e["tid"]])
            for e in self.events
            if e["name"] == "thread_sort_index"
            and self._names["process_name", e["pid"], 0].startswith(process)
        ]
        return [name for _, name in sorted(places)]

    def slices(self, process, track=None, name=None):
        """The slices of one name, by default the track's own work; of all tracks for None."""
        return [
            s
            for s in self._all
            if s.process.startswith(process)
            and track in (None, s.track)
            and s.name == (name or track)
        ]

    def steps(self, process, track, name=None):
        return [s.step for s in self.slices(process, track, name)]

    def arrows(self):
        """By id: the tracks that its arrows lead along, from the start to the finish."""
        chains = {}
        for e in self.events:
            if e["ph"] in "stf" and e["name"] == "step":
                chains.setdefault(e["id"], []).append(e)
        for chain in chains.values():
            assert [e["ph"] for e in chain] == ["s", *"t" * (len(chain) - 2), "f"]
        return {
            id: [self._names["thread_name", e["pid"], e["tid"]] for e in chain]
            for id, chain in chains.items()
        }

    def crossings(self):
        """By id: process and track that the arrows of a batch lead along."""
        chains = {}
        for e in self.events:
            if e["ph"] in "stf" and e["name"] == "batch":
                chains.setdefault(e["id"], []).append(e)
        found = {}
        for id, chain in chains.items():
            assert [e["ph"] for e in chain] == ["s", "t", "f"], chain
            found[id] = []
            for e in chain:
                process = self._names["process_name", e["pid"], 0].rpartition(" ")[0]
                found[id].append((process, self._names["thread_name", e["pid"], e["tid"]]))
                there = [
                    s
                    for s in self._all
                    if s.track == found[id][-1][1] and s.process.startswith(process)
                ]
                at = round(e["ts"] * 1e3)
                step = int(id.rpartition(".")[2])
                assert any(s.step == step and s.start <= at < s.end for s in there), e
        return found

    def check(self):
        """Asserts what must hold of every trace."""
        timed = [e["ts"] for e in self.events if e["ph"] != "M"]
        assert timed == sorted(timed)
        assert not timed or timed[0] == 0
        tracks = {}
        for each in self._all:
            assert each.start <= each.end, each
            tracks.setdefault((each.process, each.track), []).append(each)
        for slices in tracks.values():
            self._check_track(slices)
        by_place = {}
        for e in self.events:
            if e["ph"] == "X":
                by_place.setdefault((e["pid"], e["tid"], e["ts"]), []).append(e["args"])
        for e in self.events:  # an arrow starts and ends where a slice of its step does
            if e["ph"] in "stf" and e["name"] == "step":
                step = int(e["id"].partition(".")[2])
                assert {"step": step} in by_place[e["pid"], e["tid"], e["ts"]]
        works = {}
        for each in self._all:
            if each.name == each.track:
                works.setdefault((each.process, each.step), []).append(each)
        for stages in works.values():  # a stage begins a step when the one before it is done
            for before, after in pairwise(stages):
                assert before.end <= after.start, (before, after)

    def _check_track(self, slices):
        """They nest or are apart, and steps do not go back."""
        around = []
        for each in slices:
            while around and around[-1].end <= each.start:
                around.pop()
            assert not around or each.is_within(around[-1]), (around[-1], each)
            around.append(each)
        for name in {each.name for each in slices if each.name == each.track}:
            steps = [each.step for each in slices if each.name == name]
            assert steps == sorted(steps), name
