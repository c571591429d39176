"""LoRA tensors to and from torch parameters and PEFT folders.

Owns the shape on disk: adapter_model.safetensors and adapter_config.json, as PeftModel.from_pretrained and vLLM read
them, with no path of this machine in it. Not here: atomicity and the manifest (adapter).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from peft import get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor

from trainer.formats.model_info import PART
from trainer.formats.peft_folder import PREFIX

IN_MEMORY, IN_FILES = f"{PREFIX}model.", f"{PREFIX}{PART}"  # how names begin in memory and in the files of such a model
LOADING = {rf"^{re.escape(PART)}": "model."}  # what PEFT is told when it loads one; it takes its own prefix off before


def save_adapter(model: Any, name: str, folder: Path, *, base_name: str, is_part: bool = False) -> None:
    """`is_part`: the model is the text part alone of one that also sees or hears, whose names the files shall have."""
    tensors = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    if is_part:
        tensors = {key.replace(IN_MEMORY, IN_FILES, 1): value for key, value in tensors.items()}
    arrays = {key: value.detach().to("cpu", torch.float32).contiguous() for key, value in tensors.items()}
    save_file(arrays, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config[name]
    original = config.base_model_name_or_path, config.inference_mode
    config.base_model_name_or_path, config.inference_mode = base_name, True
    try:
        config.save_pretrained(str(folder))
    finally:
        config.base_model_name_or_path, config.inference_mode = original


def load_tensors(parameters: Mapping[str, Tensor], values: Mapping[str, NDArray[Any]]) -> None:
    assert parameters.keys() == values.keys(), "these are another adapter's tensors"
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(values[name]))
