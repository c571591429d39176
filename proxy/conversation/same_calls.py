"""Whether two messages call the same tools. Pure.

Owns what of a call counts: its name and its arguments as values. Ids are renamed by clients, and arguments written in
another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.conversation.conversations import canonical
from proxy.core.json_edit import dumps, loads


def same_calls(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return _calls(one) == _calls(other) != []


def _calls(message: Mapping[str, Any]) -> list[bytes]:
    calls = loads(canonical(message).body).get("tool_calls") or []
    return [dumps(call.get("function"), in_order=True) for call in calls]
