"""A log that keeps changes in a list."""

import threading

from ps_server.change import NotLogged

LATER = 10.0


class ListLog:
    """Keeps each change. Can be held up, be full, or refuse the next few."""

    def __init__(self):
        self.changes = []
        self.is_full = False
        self.num_refusals = 0
        self.appending = threading.Event()
        self.may_append = threading.Event()
        self.may_append.set()

    def append(self, change):
        self.appending.set()
        assert self.may_append.wait(LATER)
        if self.is_full or self.num_refusals > 0:
            self.num_refusals -= 1
            raise NotLogged("a journal needs room, got no space left on device")
        self.changes.append(change)
