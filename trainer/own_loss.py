"""A loss of the user's own, `train.loss`: one function in place of MIS-PO's, called for each micro-batch of a step.

Owns the copy of its file in the run folder: a run goes on with the code that it began with. Owns what the function is
given, and what it may return. It runs in the trainer, which has no secret of the proxy's; `train.loss_timeout_s` ends a
call. The gate, the drift guard, and what comments and corrections teach stay as they are. Not here: the other losses
(mis_po, losses).
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import signal
import stat
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainer.io.run_folder import OWN_LOSS, LossSpec, RunError
from trainer.losses import constant
from trainer.mis_po import Array, Terms, drift, k3
from trainer.out_of_memory import is_out_of_memory

ARGUMENTS: Final = (
    "logprobs", "old_logprobs", "ref_logprobs", "behaviour_logprobs", "mask", "advantages", "weights", "replies",
)  # fmt: skip
MOST_WORDS: Final = 20_000  # characters that it may print into trainer.log
FRESH: Final = "Mend it; the ratings and rewards of this run are fresh again."


class _TimeOver(BaseException):
    """Its time is over. No `except Exception` of the user's own catches it."""


class _LogStream(io.TextIOBase):
    """Stdout and stderr of the code: into trainer.log, up to a bound. The trainer's stdout is the proxy's."""

    def __init__(self) -> None:
        self._remaining = MOST_WORDS

    def write(self, text: str) -> int:
        if self._remaining > 0:
            sys.__stderr__.write(text[: self._remaining])  # type: ignore[union-attr]
            self._remaining -= len(text)
            if self._remaining <= 0:
                sys.__stderr__.write("\n(train.loss prints more, which is not kept)\n")  # type: ignore[union-attr]
        return len(text)


@dataclass
class OwnLoss:
    """Called as `mis_po.loss` is. Raises RunError, with the file, the line and what to do."""

    spec: LossSpec
    function: Callable[..., Any]
    parameters: tuple[str, ...]  # which of ARGUMENTS it takes
    log: _LogStream

    def __call__(self, xp: Any, theta: Array, terms: Terms) -> tuple[Array, dict[str, Array]]:
        """(scalar loss, sums) for log-probs (N,) of the policy. A result (N,) is the loss of each token."""
        is_own = terms.keep * 0 + 1 if terms.is_own is None else terms.is_own
        sums = {
            "kl_ref": k3(xp, terms.ref, theta).sum(),
            "kl_old": (is_own * drift(xp, terms.old, theta)).sum(),  # before the call: it may change what it is given
        }
        arguments = {
            "logprobs": theta,
            "old_logprobs": terms.old,
            "ref_logprobs": terms.ref,
            "behaviour_logprobs": terms.behaviour,
            "mask": terms.keep + 0,
            "advantages": terms.advantage,
            "weights": terms.share + 0,
            "replies": terms.member.argmax(0),
        }
        with self._bounded():
            loss = self.function(**{name: arguments[name] for name in self.parameters})
        if tuple(getattr(loss, "shape", (-1,))) == tuple(theta.shape):
            loss = (terms.share * terms.keep * loss).sum()
        self._check(xp, loss, len(theta))
        return loss, {"loss": loss, **sums}

    def _check(self, xp: Any, loss: Any, tokens: int) -> None:
        shape = getattr(loss, "shape", None)
        if shape is None or tuple(shape) != ():
            result = f"a {type(loss).__name__}" if shape is None else f"the shape {tuple(shape)}"
            raise self._error(f"it returned {result}, not a scalar or one number for each of the {tokens} tokens")
        if getattr(loss, "requires_grad", True) is False:
            raise self._error("its result does not depend on `logprobs`, so nothing can be learned from it")
        if not bool(xp.isfinite(loss)):
            raise self._error(f"it returned {float(constant(xp, loss))} for {tokens} tokens")

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """Within its time, and with what it prints kept apart. Raises RunError."""
        alarmed = threading.current_thread() is threading.main_thread()
        previous_handler = signal.signal(signal.SIGALRM, _raise_time_over) if alarmed else None
        try:
            with contextlib.redirect_stdout(self.log), contextlib.redirect_stderr(self.log):
                if alarmed:
                    signal.setitimer(signal.ITIMER_REAL, self.spec.timeout_s)
                try:
                    yield
                finally:
                    if alarmed:
                        signal.setitimer(signal.ITIMER_REAL, 0)
        except _TimeOver:
            reason = f"it took more than {self.spec.timeout_s:g} s for one micro-batch (train.loss_timeout_s)"
            raise self._error(reason) from None
        except (Exception, SystemExit) as error:
            if is_out_of_memory(error):
                raise  # fewer tokens at once may do
            raise self._error(f"{place(error, self.spec.file)}{type(error).__name__}: {error}") from None
        finally:
            if alarmed:
                signal.signal(signal.SIGALRM, previous_handler)

    def _error(self, reason: str) -> RunError:
        return RunError(f"train.loss ({self.spec.name}) failed: {reason}. {FRESH}")


def _raise_time_over(*_: object) -> None:
    raise _TimeOver


def load(folder: Path, spec: LossSpec | None) -> OwnLoss | None:
    """The loss that this run began with; None where it has none. Raises RunError."""
    if spec is None:
        return None
    code = _code(folder / OWN_LOSS, spec)
    log = _LogStream()
    module = types.ModuleType("own_loss")
    module.__file__ = spec.file
    try:
        with contextlib.redirect_stdout(log):
            exec(compile(code, spec.file, "exec"), module.__dict__)  # noqa: S102  the user's own code, as asked for
    except (Exception, SystemExit) as error:
        location = place(error, spec.file)
        raise RunError(
            f"train.loss ({spec.name}) cannot be loaded: {location}{type(error).__name__}: {error}. {FRESH}"
        ) from None
    function = getattr(module, spec.function, None)
    if not callable(function):
        raise RunError(f"train.loss: {spec.file} has no function {spec.function!r}. {FRESH}")
    print(f"train.loss: {spec.name} is called from here on", file=sys.stderr)  # the last line, should it end us
    return OwnLoss(spec, function, _parameters(function, spec), log)


def _code(path: Path, spec: LossSpec) -> bytes:
    """Raises RunError for a copy that is not what the run began with."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise RunError(f"{path} is not a plain file; put the copy of {spec.file} back, or cancel the run.")
        code = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}, this run's copy of {spec.file}, cannot be read: {error.strerror}.") from None
    digest = hashlib.sha256(code).hexdigest()
    if digest != spec.sha256:
        raise RunError(
            f"{path} has changed since this run began (sha256 {digest[:12]}…, not {spec.sha256[:12]}…): a run has one "
            f"loss. Put it back, or cancel the run; the next one takes {spec.file} as it is then."
        )
    return code


def _parameters(function: Callable[..., Any], spec: LossSpec) -> tuple[str, ...]:
    """Find which of ARGUMENTS the function takes. Raises RunError."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ARGUMENTS
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return ARGUMENTS
    for parameter in parameters:
        is_unknown = parameter.name not in ARGUMENTS and parameter.default is parameter.empty
        if is_unknown or parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            names = ", ".join(ARGUMENTS)
            raise RunError(f"train.loss ({spec.name}) asks for {parameter.name!r}; given by name are {names}. {FRESH}")
    return tuple(parameter.name for parameter in parameters if parameter.name in ARGUMENTS)


def place(error: BaseException, file: str) -> str:
    """The last line of the user's own file that an error came through."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}, line {lines[-1]}: " if lines else ""
