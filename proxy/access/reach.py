"""Which completions a request reaches: those of its key, and among them those of whom it names.

Owns that rule for every way to an earlier answer: by its id, as the last one, by a conversation that is sent back. A
name in a request proves nothing, so it only narrows what the key opens. Not here: whose key it is (keys), which names a
request has (conversations), the lookup (store).
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.access.keys import OWNERS, Who
from proxy.core.agent_wrappers import UNKNOWN
from store.records import Asker, NewCompletion


class Reach(NamedTuple):
    who: Who
    user: str | None = None  # whom the request names, and its completion is kept for
    names: tuple[str, ...] = ()  # all whom it names, also by what no completion is kept for (`conversations.people`)

    @classmethod
    def of(cls, who: Who, user: str | None, names: tuple[str, ...]) -> Reach:
        """Reach of a request that names these. Whoever is named by what is not a name is somebody, and not the owner:
        all of them are one user. A key that is one person's is theirs, whatever the request says."""
        return cls(who, user or (UNKNOWN if names and who.bound is None else None), names)

    def covers(self, found: NewCompletion | Asker) -> bool:
        """Tell whether it may be read, gone on from and deleted. An admin who names nobody may have all."""
        if self.who.role == "admin" and not self.names:
            return True
        if found.key is not None and found.key not in self._keys:
            return False
        # A completion without a key is from before keys were kept: then the name of a key was all there was, and what
        # names nobody is the owner's.
        if found.key is None and found.user is None:
            return self.who.role == "admin"
        users = {self.who.bound} if found.key is None and self.who.bound else {self.user, self.who.bound}
        return found.user is None or found.user in users

    def shows(self, found: Asker) -> bool:
        """Tell if messages may be linked to it. A bot asks for many people by one key, and names nobody as it links."""
        return self.covers(found) or (not self.names and found.key in self._keys)

    def own(self, *, unnamed: bool = False) -> list[Asker]:
        """Whose answers somebody means who does not say which: never another user's. `unnamed`: those of no user, too,
        as for the owner."""
        users = {self.user or self.who.name}
        if unnamed or (self.user is None and self.who.role == "admin"):
            users.add(None)
        before = {self.who.bound} if self.who.bound else users
        return [*(Asker(key, user) for key in self._keys for user in users), *(Asker(None, user) for user in before)]

    @property
    def keys(self) -> set[str] | None:
        """Completions of other keys are not covered; None: of any. Those without a key are for `covers` to tell."""
        return None if self.who.role == "admin" and not self.names else self._keys

    @property
    def _keys(self) -> set[str]:
        """An admin goes on with what was asked before there were keys."""
        return {self.who.key, OWNERS} if self.who.role == "admin" else {self.who.key}
