"""Pipelines on few cores, simulated by asking everybody all the time.

Work of all who run gets on at `min(1, cores / running)`, up to whatever ends next; then
each stage of each worker is asked again and again whether it can go on.
"""

import math


class Slow:
    """Workers of stages on one machine.

    Args:
        seconds: `[w][s][i]`: of each worker, stage and step, on a core.
        capacities: Items that may wait behind each stage but the last.
        pull: Which stage waits for pushes, which the last one does.
    """

    def __init__(self, seconds, capacities, *, cores, staleness, mode, pull=2):
        self.seconds, self.capacities, self.cores = seconds, capacities, cores
        self.staleness, self.mode, self.pull = staleness, mode, pull
        self.num_stages = len(seconds[0])
        self.num_steps = len(seconds[0][0])
        self.places = [(w, s) for w in range(len(seconds)) for s in range(self.num_stages)]
        self.state = dict.fromkeys(self.places, "take")
        self.step = dict.fromkeys(self.places, 0)
        self.left = {}
        self.queues = {(w, s): [] for w, s in self.places}  # behind stage s
        self.ends = {w: [] for w in range(len(seconds))}
        self.most_running = 0

    def run(self):
        """Returns, by worker, when each push ends."""
        now = 0.0
        while True:
            while any([self.ask(place) for place in self.places]):
                pass
            if not self.left:
                return [self.ends[w] for w in sorted(self.ends)]
            self.most_running = max(self.most_running, len(self.left))
            rate = min(1.0, self.cores / len(self.left))
            seconds = min(self.left.values()) / rate
            now += seconds
            for place in list(self.left):
                self.left[place] -= seconds * rate
                if self.left[place] < 1e-10:
                    del self.left[place]
                    self.state[place] = "put"
                    if place[1] == self.num_stages - 1:
                        self.ends[place[0]].append(now)

    def ask(self, place):
        """Does what a stage can do at once; returns whether it did something."""
        w, s = place
        if self.state[place] == "take" and self.step[place] < self.num_steps:
            before = self.queues.get((w, s - 1))
            if before is None or before:
                if before:
                    before.pop(0)
                self.state[place] = "wait"
                return True
        elif self.state[place] == "wait" and self.may_begin(w, s):
            self.left[place] = self.seconds[w][s][self.step[place]]
            self.state[place] = "work"
            return True
        elif self.state[place] == "put":
            is_last = s == self.num_stages - 1
            if is_last or len(self.queues[place]) < self.capacities[s]:
                if not is_last:
                    self.queues[place].append(self.step[place])
                self.step[place] += 1
                self.state[place] = "take"
                return True
        return False

    def may_begin(self, w, s):
        if s != self.pull or self.mode == "async":
            return True
        others = range(len(self.seconds)) if self.mode == "bounded" else [w]
        done = min((len(self.ends[v]) for v in others), default=math.inf)
        return self.step[w, s] - done <= self.staleness
