"""A Tinker server as a place: the run is a child of this machine, and its optimiser's steps are taken there.

Owns whether it may be asked and can do it: consent in words, the package, a server that answers and has the model. Not
here: the calls of a run (trainer.policy.tinker_client).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import urllib.error
import urllib.request
from importlib.util import find_spec
from typing import Any, Final

from config.places import PlaceAddress
from trainer.places.place import PlaceSettings

CALL_S: Final = 20.0
LARGEST: Final = 2**22  # bytes of a server's list of models
KEY: Final = "TINKER_API_KEY"  # the variable that the package itself reads
NO_KEY: Final = "tml-none"  # for a server that asks for none: the package wants one all the same


class TinkerService:
    def __init__(self, settings: PlaceSettings, address: PlaceAddress) -> None:
        self._settings, self._url = settings, address.url

    async def refusal(self, weights: str) -> str | None:
        """Why no run of these weights trains there now, in one sentence; None where it can."""
        name = f"train.where = {self._settings.address}"
        if not self._settings.takes_texts:
            return (
                f"{name}: what people asked and were answered would leave this machine, readable as tokens: "
                "train.where_takes_texts = true allows it."
            )
        if find_spec("tinker") is None:
            return f"{name}: it needs the server's client here: pip install 'rlproxy[tinker]'."
        try:
            answer = await asyncio.to_thread(self._ask, "/api/v1/get_server_capabilities")
            models = [str(model["model_name"]) for model in answer["supported_models"]]
        except urllib.error.HTTPError as error:
            hint = f"; {KEY} in rlproxy's environment is its key" if error.code in (401, 403) else ""
            return f"{name}: it answered {error.code}{hint}."
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
            return f"{name}: it does not answer as a Tinker server does ({error})."
        if (model := self.model(weights)) not in models:
            return (
                f"{name}: it does not have {model}, but {', '.join(sorted(models)[:5]) or 'no model'}: "
                "train.where_weights is the name there."
            )
        return None

    def model(self, weights: str) -> str:
        """The base as the server names it."""
        return self._settings.weights or weights

    def arguments(self, weights: str) -> list[str]:
        """List those of `python -m trainer`."""
        return ["--tinker", self._url, "--tinker-model", self.model(weights)]

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the variables of that process: the server's key, and that nothing beside the run is told to it."""
        return {KEY: os.environ.get(KEY) or NO_KEY, "TINKER_TELEMETRY": "0"}

    def _ask(self, path: str) -> Any:
        """Blocking. Raises OSError, ValueError, HTTPException."""
        headers = {"X-API-Key": os.environ.get(KEY) or NO_KEY}
        request = urllib.request.Request(self._url + path, headers=headers)  # noqa: S310  as the setting says
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=CALL_S) as response:
            content = response.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"its answer has more than {LARGEST} bytes")
        return json.loads(content)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A key does not follow to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None
