"""Telegram: updates made of python-telegram-bot's classes and written by them; each is read back by them, too."""

from __future__ import annotations

import asyncio
import inspect
import json
from datetime import UTC, datetime
from typing import Any

import telegram
from telegram import (
    Bot,
    CallbackQuery,
    Chat,
    ChatMemberMember,
    ChatMemberUpdated,
    ExternalReplyInfo,
    ForumTopicCreated,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InlineQuery,
    Message,
    MessageOriginChannel,
    MessageOriginChat,
    MessageOriginHiddenUser,
    MessageOriginUser,
    MessageReactionCountUpdated,
    MessageReactionUpdated,
    ReactionCount,
    ReactionTypeCustomEmoji,
    ReactionTypeEmoji,
    ReactionTypePaid,
    ReplyParameters,
    Story,
    TextQuote,
    Update,
    User,
)
from telegram.request import HTTPXRequest

from tests.integrations.makers.steps import Script, read_input

GROUP, ELSEWHERE = Chat(-100, Chat.SUPERGROUP, title="g"), Chat(-200, Chat.SUPERGROUP, title="h")
ANN, STRANGER, AGENT = User(7, "Ann", False), User(8, "Bob", False), User(1, "Agent", True, username="our_bot")
LINKED, NEWEST, TOPIC = 42, 43, 9
GOOD, BAD, FIRE = ReactionTypeEmoji("👍"), ReactionTypeEmoji("👎"), ReactionTypeEmoji("🔥")


class Updates:
    def __init__(self, now: float, secret: str) -> None:
        self.now, self.secret, self.steps, self.id = int(now), secret, Script(), 1_000_000

    def at(self, seconds: float = 0) -> datetime:
        return datetime.fromtimestamp(self.now + seconds, UTC)

    def send(self, name: str, *values: Any, id: int | None = None, changed: Any = None, **update: Any) -> None:
        self.id += 1
        made = Update(self.id if id is None else id, **update)
        body = made.to_json().encode()
        if Update.de_json(json.loads(body), None).to_dict() != made.to_dict():
            raise AssertionError(f"{name}: python-telegram-bot does not read its own update")
        if changed is not None:
            body = changed(body)
        headers = {"X-Telegram-Bot-Api-Secret-Token": self.secret, "Content-Type": "application/json"}
        kind = "command" if name.startswith("a command") else "tap" if "tap" in name else ""
        self.steps.add(name, (headers, body), *values, kind=kind)

    def reaction(self, at: float, *new: Any, old: Any = (), message: int = LINKED, **who: Any) -> dict[str, Any]:
        who = who or {"user": ANN}
        return {"message_reaction": MessageReactionUpdated(GROUP, message, self.at(at), old, new, **who)}

    def typed(self, text: str | None, at: float = 0, **more: Any) -> Message:
        return Message(50, self.at(at), GROUP, from_user=more.pop("from_user", ANN), text=text, **more)

    def answer(self, id: int = LINKED) -> Message:
        return Message(id, self.at(), GROUP, from_user=AGENT, text="an answer")


def as_the_api_writes(body: bytes) -> bytes:
    """The package leaves empty lists out; the Bot API has `new_reaction` always."""
    update = json.loads(body)
    assert "new_reaction" not in update["message_reaction"]
    update["message_reaction"]["new_reaction"] = []
    return json.dumps(update).encode()


def reactions(u: Updates) -> None:
    u.send("a reaction", 1.0, **u.reaction(0, GOOD))
    u.send("the same again", id=u.id, **u.reaction(0, GOOD))
    u.send("changed", -1.0, **u.reaction(1, BAD, old=(GOOD,)))
    u.send("taken away", None, changed=as_the_api_writes, **u.reaction(2, old=(BAD,)))
    u.send("once more", 1.0, **u.reaction(3, GOOD))
    u.send("taken away, as the package writes it", None, **u.reaction(4, old=(GOOD,)))
    u.send("two at once", 1.0, **u.reaction(5, FIRE, GOOD))
    u.send("a custom emoji in their place", None, **u.reaction(6, ReactionTypeCustomEmoji("5368"), old=(FIRE, GOOD)))
    u.send("a paid one beside a thumb", -1.0, **u.reaction(7, BAD, ReactionTypePaid()))
    u.send("an anonymous admin", **u.reaction(8, GOOD, actor_chat=GROUP))
    u.send("a stranger", **u.reaction(8, GOOD, user=STRANGER))
    counts = MessageReactionCountUpdated(GROUP, LINKED, u.at(8), (ReactionCount(GOOD, 3),))
    u.send("counts without names", message_reaction_count=counts)
    second = u.id + 10
    u.send("two in one second, the later first", 1.0, id=second + 1, **u.reaction(9, GOOD, old=(BAD,)))
    u.send("two in one second, the earlier last", id=second, **u.reaction(9, BAD))
    u.id = second + 1
    u.send("an older one comes late", **u.reaction(8, BAD))
    u.send("a forwarded message", **u.reaction(10, BAD, message=77))
    edited = Message(LINKED, u.at(), GROUP, from_user=AGENT, text="another", edit_date=u.at(10))
    u.send("the answer is edited", edited_message=edited)
    u.send("a reaction to the edited answer", -1.0, **u.reaction(11, BAD, old=(GOOD,)))
    u.send("taken away again", None, changed=as_the_api_writes, **u.reaction(12, old=(BAD,)))


def commands(u: Updates) -> None:
    u.send("a command as a reply", 1.0, message=u.typed("/rl good", reply_to_message=u.answer()))
    u.send("a command again", id=u.id, message=u.typed("/rl good", reply_to_message=u.answer()))
    quote = TextQuote("answer", 3)
    short = u.typed("/rl@our_bot 2 too short", reply_to_message=u.answer(), quote=quote)
    u.send("a command to a part that is quoted", -0.5, message=short)
    u.send("an edited command", edited_message=u.typed("/rl good", reply_to_message=u.answer(), edit_date=u.at(5)))
    origins = {
        "a person": MessageOriginUser(u.at(), STRANGER), "somebody hidden": MessageOriginHiddenUser(u.at(), "x"),
        "a chat": MessageOriginChat(u.at(), ELSEWHERE), "a channel": MessageOriginChannel(u.at(), ELSEWHERE, 5),
    }  # fmt: skip
    for who, origin in origins.items():
        forwarded = u.typed("/rl bad", reply_to_message=u.answer(), forward_origin=origin)
        u.send(f"forwarded from {who}", message=forwarded)
    u.send("by another bot", message=u.typed("/rl bad", via_bot=User(3, "x", True)))
    u.send("in the name of a chat", message=u.typed("/rl bad", sender_chat=GROUP))
    u.send("in a caption", message=u.typed(None, caption="/rl bad"))
    u.send("in a channel", channel_post=u.typed("/rl bad"))
    u.send("in a business chat", business_message=u.typed("/rl bad", business_connection_id="b"))
    hidden, known = MessageOriginHiddenUser(u.at(), "x"), MessageOriginUser(u.at(), AGENT)
    u.send("a command to a hidden chat's message", message=u.typed("/rl bad", external_reply=ExternalReplyInfo(hidden)))
    there = ExternalReplyInfo(known, chat=ELSEWHERE, message_id=5)
    u.send("a command to another chat's message", message=u.typed("/rl bad", external_reply=there))
    u.send("a command to a story", message=u.typed("/rl bad", reply_to_story=Story(GROUP, 4)))
    u.send("a command alone", "same", 1.0, message=u.typed("/rl good"))
    u.send("a command that takes it back", "same", None, message=u.typed("/rl undo"))
    in_topic = {"message_thread_id": TOPIC, "is_topic_message": True}
    start = Message(TOPIC, u.at(), GROUP, forum_topic_created=ForumTopicCreated("x", 1))
    u.send("a command alone in a topic", message=u.typed("/rl bad", reply_to_message=start, **in_topic))
    u.send("a command as a reply in a topic", 1.0, message=u.typed("/rl 5", reply_to_message=u.answer(), **in_topic))
    chain = {"message_thread_id": LINKED, "reply_to_message": u.answer()}
    u.send("a command in a chain of replies", -1.0, message=u.typed("/rl bad", **chain))
    u.send("a command of a stranger", message=u.typed("/rl good", reply_to_message=u.answer(), from_user=STRANGER))
    u.send("a command of a day ago", 1.0, message=u.typed("/rl good", -86400, reply_to_message=u.answer()))
    u.send("a command that takes the linked back", None, message=u.typed("/rl undo", reply_to_message=u.answer()))


def others(u: Updates) -> None:
    for name, value, person, data in (
        ("a tap of a stranger", "same", STRANGER, "rl:bad"), ("a tap", -1.0, ANN, "rl:bad"),
        ("another tap", 1.0, ANN, "rl:good"),
    ):  # fmt: skip
        u.send(name, value, callback_query=CallbackQuery("1", person, "c", message=u.answer(), data=data))
    u.send("that tap again", id=u.id, callback_query=CallbackQuery("1", ANN, "c", message=u.answer(), data="rl:good"))
    u.send("a button of the agent's", callback_query=CallbackQuery("1", ANN, "c", message=u.answer(), data="menu:2"))
    u.send("an inline query", inline_query=InlineQuery("1", ANN, "/rl bad", ""))
    member = ChatMemberMember(ANN)
    u.send("a member", chat_member=ChatMemberUpdated(GROUP, ANN, u.at(), member, member))
    body = Update(99, **u.reaction(20, BAD)).to_json().encode()
    for name, headers in {
        "another secret": {"X-Telegram-Bot-Api-Secret-Token": u.secret + "x"},
        "a secret in another case": {"X-Telegram-Bot-Api-Secret-Token": u.secret.swapcase()},
        "without a secret": {},
    }.items():
        u.steps.add(name, (headers, body), status=401)


class Recording(Bot):
    """The package's own bot, which sends nothing."""

    sent: dict[str, Any] = {}  # of the last call

    async def send_message(self, *_: Any, **arguments: Any) -> Any:
        type(self).sent = arguments


async def read(kind: str, body: str, answer: str) -> None:
    """The method call in an answer: what send_message takes, and where the package's own reply would go."""
    call = json.loads(answer)
    if kind == "tap":
        assert call.pop("method") == "answerCallbackQuery"
        inspect.signature(Bot.answer_callback_query).bind(None, **call)
        assert call["callback_query_id"] == Update.de_json(json.loads(body), None).callback_query.id
        assert 0 < len(call["text"]) <= telegram.constants.CallbackQueryLimit.ANSWER_CALLBACK_QUERY_TEXT_LENGTH
        return
    assert call.pop("method") == "sendMessage"
    reply = ReplyParameters(**call.pop("reply_parameters"))
    inspect.signature(Bot.send_message).bind(None, reply_parameters=reply, **call)
    assert 0 < len(call["text"]) <= telegram.constants.MessageLimit.MAX_TEXT_LENGTH
    message = Update.de_json(json.loads(body), Recording("1:x")).message
    await message.reply_text("x", do_quote=True)
    theirs = Recording.sent
    ours = (call["chat_id"], call.get("message_thread_id"), reply.message_id)
    assert ours == (theirs["chat_id"], theirs["message_thread_id"], theirs["reply_parameters"].message_id), ours


async def put_buttons(url: str, token: str) -> None:
    """By the package's own bot."""
    row = [InlineKeyboardButton(emoji, callback_data=data) for emoji, data in (("👍", "rl:good"), ("👎", "rl:bad"))]
    async with HTTPXRequest() as request:
        bot = Bot(token, base_url=f"{url}/telegram/bot", request=request)
        await bot.edit_message_reply_markup(GROUP.id, LINKED, reply_markup=InlineKeyboardMarkup([row]))


async def main() -> None:
    given = read_input()
    if given["act"] == "buttons":
        await put_buttons(given["url"], given["token"])
        return
    if given["act"] == "steps":
        updates = Updates(given["now"], given["telegram_secret"])
        reactions(updates)
        commands(updates)
        others(updates)
        updates.steps.write()
        return
    for answer in given["answers"]:
        await read(answer["kind"], answer["request"], answer["text"])


if __name__ == "__main__":
    asyncio.run(main())
