"""The doctor's checks of this machine: memory, keys and who may read them, agents' settings.

Owns these checks, each one function of the facts, as in doctor.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

from config.settings import FILE_NAME
from proxy.cli import plan
from proxy.cli.doctor.facts import DoctorCheck, DoctorFacts
from proxy.training.throttle import longest
from trainer.launch import can_stand_still

UNKNOWN: Final = "told by a proxy that runs, with a backend that answers"
OTHERS_BITS: Final = 0o077  # bits of a file's mode


def memory(facts: DoctorFacts) -> DoctorCheck:
    train, free = facts.settings.train, facts.memory_gb
    if free is None:
        return DoctorCheck("memory", "unknown", "not measured")
    line = f"{free:.1f} GB free, a run starts with {train.min_free_memory_gb:g} (train.min_free_memory_gb)"
    if facts.gpu_gb is not None:
        line += f"; {facts.gpu_gb:.1f} GB free on the GPU"
        line += f", {train.min_free_gpu_gb:g} are asked for (train.min_free_gpu_gb)" if train.min_free_gpu_gb else ""
    line += f"; {plan.short(facts.estimate)}" if facts.estimate is not None else ""
    gpu_short = facts.gpu_gb is not None and facts.gpu_gb < train.min_free_gpu_gb
    never_fits = facts.estimate is not None and facts.estimate.advised is None
    if free >= train.min_free_memory_gb and not gpu_short and not never_fits:
        return DoctorCheck("memory", "ok", line)
    fix = "end what needs it; train.share_gpu lets the model rest while a run trains; train.hours trains at night"
    return DoctorCheck("memory", "note", line, fix)


def gpu(facts: DoctorFacts) -> DoctorCheck:
    train = facts.settings.train
    if facts.gpu_gb is not None:
        return DoctorCheck("gpu", "ok", f"an NVIDIA GPU with {facts.gpu_gb:.1f} GB free")
    if train.load_in_4bit:
        line = "train.load_in_4bit needs an NVIDIA GPU, and nvidia-smi finds none: every run would fail"
        return DoctorCheck("gpu", "problem", line, "set train.load_in_4bit = false, or train on a machine that has one")
    if train.min_free_gpu_gb or train.max_gpu_percent < 100:
        line = "nvidia-smi finds no GPU: train.min_free_gpu_gb and train.max_gpu_percent have no effect"
        return DoctorCheck("gpu", "note", line, "take them out of the settings, or install NVIDIA's driver")
    if platform.system() == "Darwin":
        return DoctorCheck("gpu", "ok", "no NVIDIA GPU: runs train on Apple's, where mlx-lm is installed")
    return DoctorCheck("gpu", "ok", "no NVIDIA GPU is found: runs train on the CPU, which is for small models")


def priority(facts: DoctorFacts) -> DoctorCheck:
    """How far a run steps back for the server that answers."""
    standing, train = facts.standing, facts.settings.train
    if standing is None:
        return DoctorCheck("priority", "unknown", "not measured")
    seconds = longest(facts.settings.backend, train.stand_still_s) if can_stand_still() else 0
    parts = [f"a run steps back: {', '.join(standing.how)}"] if standing.how else []
    if seconds:
        parts.append(f"it stands still while requests are answered, {seconds:g} s at a stretch (train.stand_still_s)")
    if standing.weak:
        parts.append(standing.weak)
    if standing.weak is None or (standing.how and seconds):
        return DoctorCheck("priority", "ok", "; ".join(parts))
    fix = "train.hours trains at night, train.quiet_s waits for a pause" if standing.how else "set train.nice = 10"
    return DoctorCheck("priority", "note", "; ".join(parts), fix)


def keys(facts: DoctorFacts) -> DoctorCheck:
    if (file := _readable_secret(facts)) is not None:
        line = f"{file} has a key in it, and others on this machine can read it"
        return DoctorCheck("keys", "problem", line, f"chmod 600 {file}")
    if facts.keys is None:
        return DoctorCheck("keys", "unknown", UNKNOWN)
    hold = [key for key in facts.keys["data"] if not key["revoked_at"]]
    fixed = facts.keys["fixed"]
    if not facts.keys["needed"] and not fixed:
        return DoctorCheck("keys", "ok", f"none is asked for: only this machine reaches {facts.url}")
    if not hold and not fixed:
        line = "all are revoked, and one is asked for still: only commands of this machine get in"
        return DoctorCheck("keys", "note", line, "`rlproxy keys create` makes one, `rlproxy keys off` ends that")
    admins = sum(key["role"] == "admin" for key in hold)
    parts = [f"{len(hold)} handed out, {admins} of them admin's"] if hold else []
    parts += [f"{name} is set in the settings or the environment" for name in fixed]
    parts += [] if facts.keys["needed"] else ["none is asked for"]
    line = "; ".join(parts)
    if not admins and not fixed:
        fix = "nothing, if only commands of this machine shall; else `rlproxy keys create --role admin --name YOU`"
        return DoctorCheck("keys", "note", f"{line}; nobody with a key may train, roll back or reset", fix)
    return DoctorCheck("keys", "ok", line)


def _readable_secret(facts: DoctorFacts) -> Path | None:
    """The settings file, where a key stands in it and not only its owner may read it."""
    file = facts.settings.home / FILE_NAME
    try:
        if not file.stat().st_mode & OTHERS_BITS:
            return None
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    settings = facts.settings
    keys = [settings.server.api_key, settings.server.admin_key, settings.backend.api_key]
    keys += [model.api_key for model in settings.models.values()]
    return file if any(key is not None and key.get_secret_value() in text for key in keys) else None


def agents(facts: DoctorFacts) -> DoctorCheck:
    if not facts.agents:
        return DoctorCheck("agents", "ok", "none is connected by rlproxy; `rlproxy connect AGENT` does it")
    astray = [agent for agent in facts.agents if agent.problem is not None]
    fine = [agent.name for agent in facts.agents if agent.problem is None]
    if astray:
        line = "; ".join(f"{agent.name}: {agent.problem}" for agent in astray)
        line += f"; {', '.join(fine)} in order" if fine else ""
        fix = " and ".join(f"`rlproxy connect {agent.name}`" for agent in astray)
        return DoctorCheck("agents", "note", line, f"{fix} sets it right, `rlproxy disconnect` takes it back")
    return DoctorCheck("agents", "ok", f"{', '.join(fine)} {'points' if len(fine) == 1 else 'point'} here")
