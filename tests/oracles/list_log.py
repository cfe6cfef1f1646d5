"""A log that keeps changes in a list."""

import threading

from ps_server.change import NotLogged

LATER = 10.0


class ListLog:
    """Keeps each change; full, or held up, as long as it is told to be."""

    def __init__(self):
        self.changes = []
        self.is_full = False
        self.appending = threading.Event()
        self.may_append = threading.Event()
        self.may_append.set()

    def append(self, change):
        self.appending.set()
        assert self.may_append.wait(LATER)
        if self.is_full:
            raise NotLogged("a journal needs room, got no space left on device")
        self.changes.append(change)
