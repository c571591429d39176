"""The parts of a model that read pictures or sound: vision tower, connector, audio tower. They never train.

Owns which parts these are, by their names, and that no parameter of theirs trains, also under an adapter from
elsewhere. A digest before and after proves that none has changed. Servers load a LoRA on the text part alone.
Not here: which text layers train (autoscale).
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

TEXT: Final = ("language_model", "text_model")  # the part that writes, as models with several parts call it
WORDS: Final = ("vision", "visual", "audio", "projector", "connector")  # in the names of their other parts


def is_sense(name: str) -> bool:
    """Tell whether a module or parameter of this name reads pictures or sound."""
    parts = name.lower().split(".")
    return not any(part in TEXT for part in parts) and any(word in part for part in parts for word in WORDS)


class ChangedSenses(RuntimeError):
    """A frozen part is not what it was: the adapter is of another model than its server has."""


class FrozenSenses:
    def __init__(self, model: Any) -> None:
        """Freeze them, and note what they are."""
        self._parameters = [name for name, _ in model.named_parameters() if is_sense(name)]
        freeze(model)
        self._digest = self._digest_of(model)

    def __len__(self) -> int:
        return len(self._parameters)

    def check(self, model: Any) -> None:
        """Raises ChangedSenses where one trains, or has changed since."""
        trained = [name for name, parameter in model.named_parameters() if is_sense(name) and parameter.requires_grad]
        if trained or self._digest_of(model) != self._digest:
            reason = f"{trained[0]} trains" if trained else "its values have changed"
            raise ChangedSenses(
                f"A part that reads pictures or sound is not frozen: {reason}. The candidate was not saved, and the "
                "version before stays. Please report this with the model's name."
            )

    def _digest_of(self, model: Any) -> bytes:
        """A digest of all values, in bf16: products of frozen layers may be rounded to that meanwhile."""
        digest = hashlib.blake2b(digest_size=32)
        if self._parameters:
            import torch
            from torch.distributed.tensor import DTensor

            parameters = dict(model.named_parameters())
            for name in self._parameters:
                parameter = parameters[name].detach()
                local = parameter.to_local() if isinstance(parameter, DTensor) else parameter  # this process's part
                values = local.to(torch.bfloat16).contiguous().cpu()
                digest.update(name.encode() + values.view(torch.int16).numpy().tobytes())
        return digest.digest()


def freeze(model: Any) -> None:
    """An adapter from elsewhere may be on them, too: it is worn whole, and only its text layers train."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and is_sense(name):
            parameter.requires_grad = False
