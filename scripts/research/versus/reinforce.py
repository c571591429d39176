"""Plain REINFORCE, as one would write it in an evening: no filter, no packing, no gate. Started by versus.py.

    python -m scripts.research.versus.reinforce JOB.json

One sample at a time, A = rating − mean of the batch's ratings, AdamW on a LoRA of all linear layers, batches of 8. The
learning rate is the job's. Prints one JSON line.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

BATCH = 8


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_bytes())
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    base = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    if job["parent"]:
        model = PeftModel.from_pretrained(base, job["parent"], is_trainable=True)
    else:
        config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(base, config)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=job["settings"]["lr"], weight_decay=0.0)
    samples = job["ratings"]
    random.Random(job["seed"]).shuffle(samples)
    baseline = sum(s["rating"] for s in samples) / len(samples)
    start, cpu = time.monotonic(), time.process_time()
    for first in range(0, len(samples), BATCH):
        batch = samples[first : first + BATCH]
        for sample in batch:
            ids = torch.tensor([sample["prompt_ids"] + sample["reply_ids"]])
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1] / sample["temperature"]
            log_probs = logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1)
            reply_log_probs = log_probs[len(sample["prompt_ids"]) - 1 :]
            (-(sample["rating"] - baseline) * reply_log_probs.mean() / len(batch)).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad()
    spent = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu}
    model.save_pretrained(job["out"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"adapter": job["out"], "trainings": [{"status": "trained"} | spent], "peak_mib": peak}))


if __name__ == "__main__":
    main()
