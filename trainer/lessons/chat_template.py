"""The chat template of the weights: messages become token ids as their server renders them.

Owns the template, what the server itself has rendered, and the tokens of replies. A template is a program of the
model's: it may refuse a conversation. Not here: which way of it is the server's (rendering), what a line of
samples.jsonl means (samples).
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.lessons.captured_tokens import KnownTokens, Vocabulary, read_tokens
from trainer.lessons.line_members import BadLine, ids_in, pictures_in
from trainer.lessons.prompts import lessons_of, neutral, teacher_comment, with_calls
from trainer.lessons.rendering import (
    AS_IS,
    PINNED,
    KnownPrompt,
    RenderingChoice,
    RenderingWay,
    choose,
    without_default_system,
)
from trainer.pictures.album import NO_PICTURES, Album
from trainer.pictures.pixels import BadPicture
from trainer.policy import eos

UNKNOWN_SERVER = RenderingChoice(AS_IS, 0, 0, None)  # nothing is known of the server


class Template:
    """The model's chat template: messages in OpenAI form -> ids, as the server would have rendered them.

    `way` is how the server uses it; `choice.wrong` why nobody knows that. `questions` are the run's own, as the server
    renders them.
    """

    def __init__(
        self,
        tokenizer: Any,
        choice: RenderingChoice = UNKNOWN_SERVER,
        questions: Mapping[str, Mapping[str, Any]] | None = None,
        album: Album = NO_PICTURES,
    ) -> None:
        self._tokenizer = tokenizer
        self._album = album
        self._needs_parts = eos.needs_parts(tokenizer)
        # What the tokeniser itself is told, no client says.
        self._reserved_variables = frozenset(inspect.signature(tokenizer.apply_chat_template).parameters)
        self._special = set(tokenizer.all_special_ids)
        self.vocabulary = len(tokenizer)
        self.choice = choice
        end = eos.of_turn(tokenizer)
        assert end is not None, "neither tokenizer nor chat template names an end token"
        self.end = end
        self._pieces = Vocabulary(tokenizer)
        self._questions = {question: self._readable(rendered) for question, rendered in (questions or {}).items()}

    def as_served(
        self, prompts: Sequence[KnownPrompt], questions: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Template:
        """The same template in the way that explains these prompts."""

        def rendered(prompt: KnownPrompt, way: RenderingWay) -> tuple[int, ...] | None:
            try:
                return self._render(prompt.messages, prompt.tools, prompt.template_kwargs, way)
            except BadLine:
                return None

        return Template(self._tokenizer, choose(prompts, rendered), questions, self._album)

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, kwargs: Mapping[str, Any] | None = None
    ) -> tuple[int, ...]:
        """`kwargs` are the template's own variables; one that is none of them means nothing to it."""
        if self.choice.wrong is not None:
            raise BadLine(self.choice.wrong)
        return self._render(messages, tools, kwargs, self.choice.way)

    def as_found(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """By the weights' own template as it is, whatever the server does."""
        return self._render(messages, None, None, AS_IS)

    def calling_reply(self, line: Mapping[str, Any], prompt: Sequence[int]) -> tuple[int, ...]:
        """The tokens of a reply with tool calls whose bytes its server did not tell.

        They are as its template writes them after this prompt, or as the weights' does. Raises BadLine where that is
        not as long as what the server counted.
        """
        whole = line.get("served_reply")
        if isinstance(whole, Mapping) and isinstance(line.get("served"), Mapping):
            prompt_text, whole_text = self._text_of(line["served"]), self._text_of(whole)
        else:
            chat = with_calls(line["messages"], line["reply"])
            prompt_text = self._spell(prompt)
            whole_text = self._spell(self.prompt(chat, line.get("tools"), _kwargs_of(line)))
        text, end, _ = whole_text.removeprefix(prompt_text).partition(self._spell([self.end]))
        if not whole_text.startswith(prompt_text) or not end:
            raise BadLine(
                "a tool call without its bytes: the template writes the conversation otherwise once the call is in it"
            )
        reply, count = self.reply(text, ended=True), line.get("reply_tokens")
        if count not in (len(reply), len(reply) - 1):  # some servers do not count the end
            count_text = f"the server counted {count:,}" if type(count) is int else "the server did not count"
            raise BadLine(
                f"a tool call without its bytes: the template writes it in {len(reply):,} tokens, {count_text}"
            )
        return reply

    def _text_of(self, rendered: Mapping[str, Any]) -> str:
        return rendered["text"] if isinstance(rendered.get("text"), str) else self._spell(self.served(rendered))

    def _spell(self, ids: Sequence[int]) -> str:
        """With special tokens, and without a space moved."""
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def question(self, text: str) -> tuple[int, ...]:
        """A question that is not a sample: as the server renders it, else by the template, whoever else uses that."""
        return self._questions.get(text) or self._render(neutral(text), None, None, self.choice.way)

    def served(
        self,
        rendered: Mapping[str, Any],
        count: int | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """A prompt that a server has rendered: its ids, or its text in the weights' tokens. `count`: how many tokens
        it read; by that it is seen whether it begins a text with a token of its own. `messages`: the pictures of the
        prompt are in these."""
        if rendered.get("ids"):
            return self.bind(ids_in(rendered, "ids", self.vocabulary), messages)
        text = rendered.get("text")
        if not isinstance(text, str) or not text:
            raise BadLine("its server rendered it to nothing")
        if names := pictures_in(messages):
            with _as_bad_line():
                ids = self._album.expand(text, names, rendered.get("picture_marker"), count)
            bos_id = self._tokenizer.bos_token_id
            return (bos_id, *ids) if count == len(ids) + 1 and bos_id not in (None, ids[0]) else ids
        bos = self._tokenizer.bos_token
        has_bos = bool(bos) and text.startswith(bos)
        renderings = [
            tuple(self._tokenizer(text, add_special_tokens=add)["input_ids"]) for add in (not has_bos, has_bos)
        ]
        return next((ids for ids in renderings if len(ids) == count), renderings[0])

    def _readable(self, rendered: Any, messages: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...] | None:
        """The same, or None where it cannot be used: a run does without it."""
        with contextlib.suppress(BadLine):
            return self.served(rendered, messages=messages) if isinstance(rendered, dict) else None
        return None

    def hinted(self, line: Mapping[str, Any]) -> tuple[int, ...] | None:
        """A line's prompt with what its teacher is told, as the server renders it."""
        return self._readable(line.get("hinted"), line.get("messages") or ()) if teacher_comment(line) else None

    def bare(self, line: Mapping[str, Any]) -> tuple[int, ...] | None:
        """A line's prompt without its lessons, as the server renders it."""
        return self._readable(line.get("bare"), line.get("messages") or ()) if lessons_of(line) else None

    def bind(self, ids: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """A captured prompt, with the ids of its pictures' pieces. Raises BadLine where those do not train."""
        names = pictures_in(messages)
        with _as_bad_line():
            return self._album.bind(ids, names) if names else tuple(ids)

    def reply(self, text: str, *, ended: bool) -> tuple[int, ...]:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return (*ids, self.end) if ended else tuple(ids)

    def captured(self, line: Mapping[str, Any]) -> KnownTokens | None:
        """The server's record of each token of a reply."""
        return read_tokens(line, self._pieces, self.end, size=self.vocabulary)

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any] | None, way: RenderingWay
    ) -> tuple[int, ...]:
        chat = [plain_message(part, way.parts) for m in messages for part in _split_parts(m, way)]
        tools = tools if way.tools else None
        has_no_system = not any(m.get("role") in PINNED for m in chat)
        if has_no_system and way.system == "empty":
            chat = [{"role": "system", "content": ""}, *chat]
        ids = self._apply(chat, tools, kwargs)
        if not has_no_system or way.system != "none":
            return ids
        try:
            with_system = self._apply([{"role": "system", "content": "x"}, *chat], tools, kwargs)
        except BadLine:  # it takes no system message, so it has no default one either
            return ids
        return without_default_system(ids, with_system, self._special, self._tokenizer.bos_token_id)

    def _apply(self, chat: list[dict[str, Any]], tools: Any, kwargs: Mapping[str, Any] | None) -> tuple[int, ...]:
        variables = {name: value for name, value in (kwargs or {}).items() if name not in self._reserved_variables}
        names = pictures_in(chat)
        if self._needs_parts:
            chat = [eos.in_parts(message) for message in chat]
        try:
            rendered = self._tokenizer.apply_chat_template(
                chat, tools=tools, add_generation_prompt=True, return_dict=False, tokenize=not names, **variables
            )
        except Exception as error:  # a template is a program of the model's; it may raise anything
            raise BadLine(f"the chat template refuses these messages: {error}") from None
        if not names:
            return tuple(rendered)
        with _as_bad_line():
            return self._album.expand(rendered, names)


@contextlib.contextmanager
def _as_bad_line() -> Iterator[None]:
    try:
        yield
    except BadPicture as error:
        raise BadLine(str(error)) from None


def _kwargs_of(line: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kwargs = line.get("template_kwargs")
    return kwargs if isinstance(kwargs, Mapping) else None


def _split_parts(message: Mapping[str, Any], way: RenderingWay) -> list[Mapping[str, Any]]:
    """Rewrite a message: itself, or one of each of its texts."""
    content = message.get("content")
    if way.parts != "apart" or not isinstance(content, list) or len(content) < 2 or pictures_in([message]):
        return [message]
    return [{**message, "content": [part]} for part in content]


def plain_message(message: Mapping[str, Any], parts: str = "lines") -> dict[str, Any]:
    """Write a message as templates want it: text parts joined, tool arguments as objects. What is not text cannot be
    trained on."""
    plain = dict(message)
    content = plain.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and (part.get("type") == "text" or "sha256" in part) for part in content):
            raise BadLine("a message holds more than text")
        between = "" if parts == "joined" else "\n"
        if not pictures_in([plain]):
            plain["content"] = between.join(str(part.get("text", "")) for part in content)
    elif content is None:
        plain["content"] = ""
    calls = [json.loads(json.dumps(call)) for call in plain.get("tool_calls") or ()]
    for call in calls:
        function = call.get("function", {})
        if isinstance(function.get("arguments"), str):
            # What a model wrote need not be JSON; the server hands it to the template as it is, too.
            with contextlib.suppress(ValueError):
                function["arguments"] = json.loads(function["arguments"] or "{}")
    if calls:
        plain["tool_calls"] = calls
    return plain
