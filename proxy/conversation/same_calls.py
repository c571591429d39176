"""Tools that a message calls, the same where two messages call the same. Pure.

Owns what of a call counts: its name and its arguments as values. Ids are renamed by clients, and arguments written in
another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.conversation.conversations import canonical
from proxy.core.json_edit import dumps, loads


def calls_in(message: Mapping[str, Any]) -> list[bytes]:
    """Calls as they are compared."""
    calls = loads(canonical(message).body).get("tool_calls") or []
    return [dumps(call.get("function"), in_order=True) for call in calls]
