"""`rlproxy doctor`: one line a check, and what to do about it.

Owns the checks: each is one small function of the facts, and a line in CHECKS; those of this machine are in
machine_checks. Not here: how the facts are found (facts), words of the command (app), what a status says (status).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from config import backend_kinds
from proxy.cli.doctor import machine_checks
from proxy.cli.doctor.facts import DoctorCheck, DoctorFacts, State, gather, holder
from proxy.cli.rendering_words import side_by_side
from proxy.conversation.modalities import in_words
from proxy.core.version_names import version_in_words
from store.errors import KeyProblem
from store.file import db_key

__all__ = ["CHECKS", "DoctorCheck", "DoctorFacts", "examine", "gather", "holder"]

LOW_GB, NONE_GB = 5.0, 1.0  # a run takes some hundred MB, and what is captured grows with every turn


def examine(facts: DoctorFacts) -> list[DoctorCheck]:
    return [check(facts) for check in CHECKS]


# The checks


def proxy(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is not None:
        return DoctorCheck("proxy", "ok", f"answers at {facts.url}")
    if facts.answers and facts.damage is not None:
        return DoctorCheck(
            "proxy", "note", f"answers at {facts.url}, and cannot say how it is: {facts.unreachable_reason}"
        )
    if facts.answers:
        fix = "set RLPROXY_SERVER__ADMIN_KEY, or server.admin_key in the settings, to the key it was started with"
        return DoctorCheck("proxy", "problem", f"answers at {facts.url}, but not us: {facts.unreachable_reason}", fix)
    return DoctorCheck("proxy", "problem", str(facts.unreachable_reason))


def data_folder(facts: DoctorFacts) -> DoctorCheck:
    home, name = facts.settings.home, "data folder"
    if facts.holder is not None and not facts.answers:
        line = f"{home} is held by process {facts.holder}, which does not answer"
        return DoctorCheck(name, "problem", line, f"wait until it has started, or stop it: kill {facts.holder}")
    if facts.holder is not None and facts.holder == facts.owner:
        return DoctorCheck(name, "ok", f"{home}, held by process {facts.holder}, which is this proxy")
    if facts.holder is not None:
        line = f"{home} is held by process {facts.holder}"
        return DoctorCheck(name, "note", line, "if it is not the proxy you mean, say which with --home")
    if facts.answers:
        line = f"the proxy at {facts.url} does not keep its data in {home}"
        return DoctorCheck(name, "note", line, "say its folder with --home")
    return DoctorCheck(
        name, "ok", f"{home}, held by nobody" if home.exists() else f"{home}, which `rlproxy serve` will make"
    )


def disk(facts: DoctorFacts) -> DoctorCheck:
    line = f"{facts.free_gb:.1f} GB free where {facts.settings.home} is"
    if facts.free_gb >= LOW_GB:
        return DoctorCheck("disk", "ok", line)
    fix = "free some space, remove old folders in adapters_out, or lower store.retention_days"
    return DoctorCheck("disk", "problem" if facts.free_gb < NONE_GB else "note", line, fix)


def database(facts: DoctorFacts) -> DoctorCheck:
    if facts.shared_problem is not None:
        fix = "start PostgreSQL, or put store.url right; a relay that runs answers meanwhile, and delivers later"
        return DoctorCheck("database", "problem", facts.shared_problem, fix)
    if facts.shared is not None:
        return DoctorCheck("database", "ok", facts.shared)
    database_status = None if facts.status is None else facts.status["database"]
    if facts.damage is not None or (database_status is not None and database_status["state"] == "damaged"):
        line = (
            database_status["line"]
            if facts.damage is None and database_status is not None
            else f"the database is damaged ({facts.damage})"
        )
        fix = (
            "stop rlproxy and `rlproxy restore FILE`, or move rlproxy.db away to start empty; until then requests are "
            "relayed by one that runs already, and nothing is captured, rated, trained or deleted"
        )
        return DoctorCheck("database", "problem", line, fix)
    if database_status is None:
        return _unknown("database")
    if database_status["state"] == "checking":
        return DoctorCheck(
            "database", "note", database_status["line"], "nothing: until that is over no run starts and nothing expires"
        )
    return DoctorCheck("database", "ok", "no damage is known")


def encryption(facts: DoctorFacts) -> DoctorCheck:
    name, source = "encryption", facts.settings.store.key_from
    if facts.settings.store.address:
        return DoctorCheck(name, "ok", "what is kept is in PostgreSQL, whose disk and backups encrypt it or do not")
    if not source:
        if facts.database == "encrypted":
            line = "the database is encrypted or damaged, and store.key_from names no key"
            return DoctorCheck(name, "problem", line, "set store.key_from to where its key is")
        return DoctorCheck(name, "ok", "what is kept is in the clear; `rlproxy encrypt` changes that")
    if facts.database == "clear":
        fix = "run `rlproxy encrypt`, or take store.key_from away"
        return DoctorCheck(name, "problem", "store.key_from names a key, and the database is in the clear", fix)
    if source.startswith("file:"):  # the others would ask a person, or look into another process's environment
        try:
            db_key.find(source, facts.settings.home)
        except KeyProblem as problem:
            return DoctorCheck(name, "problem", str(problem), "without its key the database cannot be opened")
    return DoctorCheck(name, "ok", f"the database and run folders are encrypted, key from {source.partition(':')[0]}")


def capture(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is None:
        return _unknown("capture")
    if problem := facts.status["problem"]:
        return DoctorCheck(
            "capture", "problem", problem, "what it names has to be put right; it recovers by itself then"
        )
    counts = facts.status["counts"]
    line = f"whole answers kept: {counts['done']}, {counts['captured_today']} of today"
    if counts["done"]:
        return DoctorCheck("capture", "ok", line)
    return DoctorCheck("capture", "note", line, f"point an agent at {facts.url}/v1, or `rlproxy connect AGENT`")


def backend(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is None:
        return _unknown("backend")
    if facts.not_ready is not None:
        return DoctorCheck(
            "backend", "problem", facts.not_ready, "start it, or correct backend.url and backend.api_key"
        )
    return DoctorCheck("backend", "ok", facts.status["backend"]["state"])


def model(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is not None and (trains := facts.status.get("trains")):
        if trains["model"]:
            return DoctorCheck("model", "ok", f"whichever a client asks for answers; what trains: {trains['line']}")
        return DoctorCheck("model", "ok", "whichever a client asks for answers")
    if facts.status is None or facts.models is None:
        return _unknown("model")
    served, live = facts.status["model"], facts.status["live"]
    if served in facts.models:
        return DoctorCheck("model", "ok", f"{served}, {version_in_words(live)} answers")
    line = f"the backend does not serve {served or 'any model'}; it has {', '.join(facts.models) or 'none'}"
    return DoctorCheck("model", "problem", line, "load it there, or set backend.model to one that it has")


def further_models(facts: DoctorFacts) -> DoctorCheck:
    """The servers of `[models.NAME]`."""
    name = "further models"
    if not facts.further:
        return DoctorCheck(name, "ok", "none (`[models.NAME]`)")
    if problems := {model: problem for model, problem in facts.further.items() if problem is not None}:
        line = "; ".join(f"{model}: {problem}" for model, problem in problems.items())
        return DoctorCheck(name, "problem", line, "start it, or correct its `url` and `api_key` in `[models.NAME]`")
    return DoctorCheck(name, "ok", f"there: {', '.join(facts.further)}; captured and rated, never trained")


def formats(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is None:
        return _unknown("formats")
    names_by_exactness: dict[str, list[str]] = {}
    for name, exactness_text in facts.status["backend"]["dialects"].items():
        names_by_exactness.setdefault(
            {"untried": "asked for when first used"}.get(exactness_text, exactness_text), []
        ).append(name)
    return DoctorCheck(
        "formats",
        "ok",
        "; ".join(f"{exactness_text}: {', '.join(names)}" for exactness_text, names in names_by_exactness.items()),
    )


def exactness(facts: DoctorFacts) -> DoctorCheck:
    """How much of what is captured is exact: as measured, once there are answers."""
    if facts.status is None:
        return _unknown("exactness")
    backend, name, measured = facts.status["backend"], "exactness", facts.status["rehearsal"]["known_tokens"]
    fix = None
    if inexact := backend["inexact"] if backend["token_ids"] and backend["logprobs"] else ():
        fix = f"backend.translate = {list(inexact)} makes these exact, said through chat completions".replace("'", '"')
    if measured is not None:
        exact = measured["ids"] >= measured["tokens"] and measured["log_probs"] >= measured["tokens"]
        return DoctorCheck(
            name, "ok" if exact else "note", measured["line"], None if exact else fix or backend["lacks"]
        )
    if not (backend["token_ids"] and backend["logprobs"]):
        lacks = [
            words for member, words in (("token_ids", "token ids"), ("logprobs", "log-probs")) if not backend[member]
        ]
        line = f"the backend sends no {' and no '.join(lacks)}: captures are marked inexact"
        if backend.get("adapters") and backend.get("lacks"):
            line = (
                f"{backend['lacks'].rstrip('.')}; how much of the captures is exact is counted after the first answers"
            )
            return DoctorCheck(name, "note", line)
        return DoctorCheck(name, "note", line, "the built-in backend and vLLM send both")
    if inexact:
        line = f"token ids and log-probs come with every answer but those in {', '.join(inexact)}"
        return DoctorCheck(name, "note", line, fix)
    return DoctorCheck(name, "ok", "token ids and log-probs come with every answer")


def sampling(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is None:
        return _unknown("sampling")
    backend = facts.status["backend"]
    if not backend["guessed"]:
        return DoctorCheck("sampling", "ok", backend["sampling"])
    fix = "start vLLM with --generation-config vllm and --logprobs-mode processed_logprobs, or say it in each request"
    line = f"{backend['sampling']}; captures that hang on it are marked inexact"
    return DoctorCheck("sampling", "note", line, fix)


def adapters(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is None:
        return _unknown("adapters")
    backend = facts.status["backend"]
    if backend["obstacle"]:
        return DoctorCheck(
            "adapters", "problem", backend["obstacle"], "nothing trains until then; it is asked again every minute"
        )
    if backend["adapters"]:
        layers, growth = backend.get("layers"), backend.get("growth")
        line = f"the backend takes new adapters{f', of {layers}' if layers else ''}"
        return DoctorCheck("adapters", "ok", f"{line}; {growth}" if growth else line)
    backends = backend_kinds.listed()
    fix = f"nothing, if capturing and rating is all you want; else use --backend {backends}"
    if (facts.status.get("trains") or {}).get("model"):
        fix = f"what is rated trains a local model, which needs a backend of its own: {backends}"
    return DoctorCheck("adapters", "note", backend["lacks"] or "the backend takes no adapter while it runs", fix)


def leftovers(facts: DoctorFacts) -> DoctorCheck:
    """Versions of another home at the same server: nobody removes those of a home that is gone."""
    if facts.status is None:
        return _unknown("leftovers")
    if (foreign_versions := facts.status["backend"]["left"]) is None:
        return DoctorCheck("leftovers", "ok", "the server has no versions of another home")
    fix = f"nothing, if another home uses them; if that home is gone: `{foreign_versions['command']}`"
    return DoctorCheck("leftovers", "note", foreign_versions["line"], fix)


def base(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is None:
        return _unknown("base")
    weights_check = facts.status["match"]
    if weights_check["state"] == "other":
        fix = "serve the model of train.weights, or name the served one's weights there; train.match says what follows"
        return DoctorCheck("base", "problem" if weights_check["stops"] else "note", weights_check["line"], fix)
    return DoctorCheck("base", _comparison_state(facts.status), weights_check["line"])


def _comparison_state(status: Mapping[str, Any]) -> State:
    """The comparison where it has found nothing: what is not known yet may still stop runs."""
    weights_check = status["match"]
    if weights_check["state"] == "unasked":
        return "unknown" if status["backend"]["adapters"] or weights_check["stops"] else "ok"
    return "ok" if weights_check["state"] == "same" else "note"


def template(facts: DoctorFacts) -> DoctorCheck:
    """The comparison's words about how a conversation is rendered, with both texts where they differ."""
    if facts.status is None:
        return _unknown("template")
    weights_check, rehearsal = facts.status["match"], facts.status["rehearsal"]
    rendering = weights_check["rendering"]
    if rendering is None:
        if weights_check["state"] == "other":
            return DoctorCheck("template", "unknown", "not looked at, since the models differ")
        return DoctorCheck("template", _comparison_state(facts.status), weights_check["line"])
    line = "\n     ".join([rendering["line"], *side_by_side(rendering)])
    if rendering["known"] and not rehearsal["refused"]:
        return DoctorCheck("template", "ok", line)
    if weights_check["state"] != "other":
        return DoctorCheck("template", "note", line, "see the line `prompts`" if rehearsal["refused"] else None)
    fix = (
        "serve with the weights' own template (vLLM --chat-template, llama-server --jinja or --chat-template-file, "
        "TEMPLATE in Ollama's Modelfile), or use a server that tells how it renders (Ollama 0.11.5 and newer)"
    )
    return DoctorCheck("template", "problem" if weights_check["stops"] else "note", line, fix)


def prompts(facts: DoctorFacts) -> DoctorCheck:
    """Tell whether a run would take the newest answers, and what the server has cut."""
    if facts.status is None:
        return _unknown("prompts")
    rehearsal, cut = facts.status["rehearsal"], facts.status["cut"]
    line, fixes = rehearsal["line"], []
    if rehearsal["refused"]:
        fixes.append("the line `template` shows what the server reads; what is refused costs its rating, not the run")
    if cut is not None:
        cut_line, _, setting = cut.rpartition("; ")
        fixes = [f"{setting}; what was cut trains as it was read, where the server tells what that was", *fixes]
        line = f"{cut_line}; {line}"
    state: dict[str, State] = {"untried": "unknown", "prompts": "unknown", "taken": "ok", "refused": "problem"}
    check_state = state.get(rehearsal["state"], "note")
    if cut is not None and check_state != "problem":
        check_state = "note"
    return DoctorCheck("prompts", check_state, line, "; ".join(fixes) or None)


def training(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is None:
        return _unknown("training")
    run_state = facts.status["training"]
    if run_state["waits_for"] is None:
        return DoctorCheck("training", "ok", run_state["line"])
    fresh, impossible = facts.status["ratings"]["fresh"], _never_trains(facts.status)
    if "fresh ratings" in run_state["waits_for"] and not (run_state["paused"] or impossible):  # as between runs
        early = "; `rlproxy train` starts a run with what is there" if fresh else ""
        return DoctorCheck("training", "ok", f"waits for ratings: {run_state['waits_for']}{early}")
    fix = "rate more, or `rlproxy train` starts a run now" if fresh and not impossible else None
    fix = None if "train.weights does not say" in run_state["waits_for"] else fix  # no run starts, by hand either
    fix = None if facts.status["match"]["stops"] or facts.status["backend"].get("obstacle") else fix
    fix = "`rlproxy resume`" if run_state["paused"] else fix
    fix = None if any(cure in run_state["waits_for"] for cure in ("pip install", "experiment stop")) else fix
    fix = (_share(facts.status) or fix) if "train.min_free_" in run_state["waits_for"] else fix
    return DoctorCheck("training", "note", f"nothing trains now: {run_state['waits_for']}", fix)


def rollouts(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is None:
        return _unknown("rollouts")
    if (state := facts.status["rollouts"]) is None:
        return DoctorCheck("rollouts", "ok", "rlproxy samples no answers by itself (train.rollouts)")
    if state["problem"]:
        return DoctorCheck("rollouts", "note", state["line"], "they are tried again within a minute")
    return DoctorCheck("rollouts", "ok", state["line"])


def place(facts: DoctorFacts) -> DoctorCheck:
    """Where runs train, and whether that place and the bucket answer."""
    if facts.status is None:
        return _unknown("place")
    place_state = facts.status["training"]["place"]
    if place_state["problem"]:
        return DoctorCheck(
            "place", "problem", place_state["problem"], "nothing trains until then; it is asked every minute"
        )
    if (bucket := facts.status["training"].get("bucket")) is None:
        return DoctorCheck("place", "ok", place_state["line"])
    if bucket["problem"]:
        hint = "other relays get no new version until then; it is asked every minute"
        return DoctorCheck("place", "problem", bucket["problem"], hint)
    return DoctorCheck("place", "ok", f"{place_state['line']}; {bucket['line']}")


def last_run(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is None:
        return _unknown("last run")
    run = facts.status["last_run"]
    if run is None:
        return DoctorCheck("last run", "ok", "there was none yet")
    outcome = f"made v{run['version']}" if run.get("version") else f"ended {run['status']}"
    line = f"run {run['id']} {outcome}: {run['reason']}" if run["ended_at"] else f"run {run['id']} is open"
    if run["status"] == "empty":
        return DoctorCheck(
            "last run", "note", line, "its ratings are fresh again; the lines `base` and `prompts` may say why"
        )
    if run["status"] != "failed":
        return DoctorCheck("last run", "ok", line)
    fix = f"see {run['folder']}/trainer.log; its ratings are fresh again"
    share = _share(facts.status) if "memory" in line else None
    return DoctorCheck("last run", "problem", line, f"{share}; {fix}" if share else fix)


def ratings(facts: DoctorFacts) -> DoctorCheck:
    if facts.status is None:
        return _unknown("ratings")
    counts = facts.status["ratings"]
    line = f"{counts['fresh']} fresh (no run has used them): {counts['good']} good, {counts['bad']} bad"
    if untrainable := counts["untrainable"]:
        reasons = ", ".join(f"{in_words(reason)}: {n}" for reason, n in untrainable.items())
        line += f"; {sum(untrainable.values())} will not train ({reasons})"
    if waiting := counts["dampened"]:
        line += f"; waiting for other raters: {', '.join(f'{n} of {rater}' for rater, n in sorted(waiting.items()))}"
        return DoctorCheck("ratings", "note", line, "train.max_rater_share says how much of a run one rater may be")
    if counts["fresh"] >= 8 and min(counts["good"], counts["bad"]) == 0:
        return DoctorCheck("ratings", "note", line, "rate the other kind too: a model learns from the difference")
    return DoctorCheck("ratings", "ok", line)


# In the order in which one thing needs the other.
CHECKS: Final[tuple[Callable[[DoctorFacts], DoctorCheck], ...]] = (
    proxy, data_folder, disk, machine_checks.memory, machine_checks.gpu, machine_checks.priority, database, encryption,
    machine_checks.keys, backend, model, further_models, formats, exactness, sampling, adapters, leftovers, base,
    template, prompts, machine_checks.agents, capture, ratings, rollouts, training, place, last_run,
)  # fmt: skip


def _never_trains(status: Mapping[str, Any]) -> bool:
    """Tell whether no run can start, however many ratings there are: the check `adapters` says why."""
    trains = status.get("trains")
    return not trains["model"] if trains else not status["backend"].get("adapters", True)


def _share(status: Mapping[str, Any]) -> str | None:
    """The setting that gives a run the model's memory, where that can be and is not so."""
    if not status["backend"]["frees"] or status["training"]["share_gpu"]:
        return None
    return "train.share_gpu = true lets the model rest while a run trains, and requests wait; or free some memory"


def _unknown(name: str) -> DoctorCheck:
    return DoctorCheck(name, "unknown", machine_checks.UNKNOWN)
