"""Measure what a comment changes in the next answers, and how soon: a real rlproxy before a real llama-server.

    python -m scripts.bench.lessons http --model qwen [--comments bullets,german] [--eval 40]

For each comment: one answer is disliked with it, the next question is asked at once, and then held-out questions.
`named` is the share of answers whose prompt had the lesson, by the header `x-rl-lessons`. Before the next comment the
lesson is removed. Writes benchmarks/lessons/http-MODEL.json, a comment as soon as it is measured; the others stay.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any, Final

from scripts.bench.lessons.comments import Comment, comments
from scripts.bench.lessons.servers import Answer, ask, gguf_of, headers_after, llama_server, proxy
from scripts.bench.lessons.told import FOLDER, compare, share, summary, write
from scripts.harness.circumstances import circumstances, machine_name
from scripts.harness.serving import Serving

HEADER: Final = "x-rl-lessons"
ID: Final = "x-rl-completion-id"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=("qwen", "smollm2"), default="qwen")
    parser.add_argument("--comments", default=",".join(comments()))
    parser.add_argument("--eval", type=int, default=40, help="held-out questions")
    parser.add_argument("--seed", type=int, default=1000)


def run(arguments: argparse.Namespace) -> None:
    asyncio.run(measure(arguments))


async def measure(arguments: argparse.Namespace) -> None:
    file = gguf_of(arguments.model)
    target = FOLDER / f"http-{arguments.model}.json"
    record: dict[str, Any] = {
        "machine": f"{machine_name()}, llama-server with 1 thread", "model": file.name, "seed": arguments.seed,
    }  # fmt: skip
    results = json.loads(target.read_bytes())["results"] if target.exists() else []
    bare_answers: dict[tuple[str, ...], list[Answer]] = {}
    async with llama_server(file) as url, proxy(url) as serving:
        for name in arguments.comments.split(","):
            comment = comments()[name]
            questions = comment.held_out[: arguments.eval]
            if questions not in bare_answers:
                bare_answers[questions] = await ask(serving.url, talks(questions), arguments.seed)
            result = {"comment": name, "text": comment.text, **circumstances()}
            result |= await of_comment(serving, comment, questions, bare_answers[questions], arguments.seed)
            results = [each for each in results if each["comment"] != name] + [result]
            write(target, record | {"results": results})
            print(
                f"{arguments.model} {name}: named {result['named']}, {summary(result)}, in {result['seconds']} s",
                flush=True,
            )


async def of_comment(
    serving: Serving, comment: Comment, questions: tuple[str, ...], bare_answers: list[Answer], seed: int
) -> dict[str, Any]:
    (disliked,) = await ask(serving.url, talks(comment.rated_questions[:1]), seed)
    rating = {"completion_id": disliked.headers[ID], "rating": "bad", "comment": comment.text}
    seconds, headers = await headers_after(serving, rating, questions[0])
    hinted_answers = await ask(serving.url, talks(questions), seed)
    async with serving.http.get("/rl/lessons") as response:
        (lesson,) = [lesson for lesson in (await response.json())["data"] if lesson["state"] == "active"]
    async with serving.http.delete(f"/rl/lessons/{lesson['id']}") as response:
        assert response.status == 200, await response.text()
    return {
        "seconds": round(seconds, 3),
        "in_the_next": HEADER in headers,
        "every_question": lesson["always"],
        "named": share(HEADER in answer.headers for answer in hinted_answers),
        **compare(
            comment, questions, [answer.reply for answer in bare_answers], [answer.reply for answer in hinted_answers]
        ),
    }


def talks(questions: tuple[str, ...]) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": question}] for question in questions]
