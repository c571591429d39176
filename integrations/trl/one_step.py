"""One step of TRL's own trainer on a file of `rlproxy export --format`: one_step.py FORMAT FILE MODEL.

Prints JSON: how many rows were loaded, the loss, whether the weights moved, and the first row as the trainer has
tokenised it.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

TRAINERS = {"trl-dpo": (DPOTrainer, DPOConfig), "trl-kto": (KTOTrainer, KTOConfig)}


def main(format: str, file: str, model_folder: str) -> None:
    dataset = load_dataset("json", data_files=file, split="train")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(model_folder), AutoTokenizer.from_pretrained(model_folder)
    trainer_class, config_class = TRAINERS.get(format, (SFTTrainer, SFTConfig))
    with tempfile.TemporaryDirectory() as folder:
        config = config_class(
            output_dir=folder, max_steps=1, per_device_train_batch_size=2, learning_rate=1e-3, report_to=[],
            save_strategy="no", use_cpu=True, max_length=None, bf16=False,
        )  # fmt: skip
        trainer = trainer_class(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)
        original = model.get_input_embeddings().weight.detach().clone()
        rows = [
            {name: tokenizer.decode(ids) for name, ids in row.items() if name.endswith("ids") and isinstance(ids, list)}
            for row in trainer.train_dataset
        ]
        loss = trainer.train().training_loss
    moved = not torch.equal(original, model.get_input_embeddings().weight.detach())
    print(json.dumps({"rows": rows, "loss": loss, "moved": moved}))


if __name__ == "__main__":
    main(*sys.argv[1:])
