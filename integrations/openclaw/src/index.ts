/**
 * The plugin: what OpenClaw says of a conversation, and what rlproxy should know of it.
 *
 * Owns which hooks are used. It captures nothing, starts nothing and reads no environment: model calls get three headers,
 * messages that show an answer are linked, reactions and `/rl` are passed on signed.
 */

import { randomUUID } from "node:crypto";

import { peekSystemEventEntries } from "openclaw/plugin-sdk/infra-runtime";
import { definePluginEntry, type OpenClawPluginApi } from "openclaw/plugin-sdk/plugin-entry";
import type { ProviderPlugin } from "openclaw/plugin-sdk/plugin-entry";

import { Reactions, type Reaction } from "./reactions.ts";
import { Rlproxy, type Event } from "./rlproxy.ts";
import { Messages, Turns } from "./turns.ts";

type StreamFn = NonNullable<Parameters<NonNullable<ProviderPlugin["wrapStreamFn"]>>[0]["streamFn"]>;

type Known = { turns: Turns; messages: Messages; reactions: Reactions };

const KNOWN = Symbol.for("openclaw-rlproxy");
const LOOK_MS = 250;
const ADMIN_VERBS = ["train", "pause", "resume", "rollback", "reset"];

export default definePluginEntry({
  id: "rlproxy",
  name: "rlproxy",
  description: "Reactions and /rl rate the answers of a model behind rlproxy.",
  register,
});

function register(api: OpenClawPluginApi): void {
  const { url, secret, apiKey, admins } = settings(api.pluginConfig ?? {});
  const rlproxy = new Rlproxy(url, secret, apiKey);
  const { turns, messages, reactions } = known();

  // Who asks, and in which session: headers of each model call.

  api.on("message_received", (event, context) => {
    const key = event.sessionKey ?? context.sessionKey;
    const sender = event.senderId ?? context.senderId;
    if (key && sender && !event.content.startsWith("/")) turns.asked(key, `${context.channelId}:${sender}`);
  });

  api.on("model_call_started", (event) => {
    if (event.sessionId && event.sessionKey) turns.calling(event.sessionId, event.sessionKey, event.runId);
  });

  api.registerProvider({
    id: "rlproxy",
    label: "rlproxy",
    auth: [],
    wrapStreamFn: ({ streamFn }) => streamFn && withSession(streamFn, turns),
  });

  // Which message shows which answer.

  api.on("message_sent", async (event, context) => {
    const key = event.sessionKey ?? context.sessionKey;
    if (!event.success || !event.messageId || !key) return;
    const channel = channelOf(context.channelId, context.conversationId ?? event.to);
    messages.sent(context.channelId, { message: event.messageId, channel, text: event.content, session: key });
    const answer = turns.shown(key, event.content);
    if (!answer) return;
    const { id: completion_id, person } = answer;
    const link = { channel, message_id: event.messageId, completion_id, ...(person && { person }) };
    await passedOn(`link of message ${event.messageId}`, rlproxy.link(link));
  });

  // Reactions.

  const look = async (): Promise<void> => {
    const now = Date.now();
    for (const key of turns.sessions) reactions.see(peekSystemEventEntries(key), now);
    const sent = ({ platform, chat, message }: Reaction) => messages.of(platform, chat, message) !== undefined;
    for (const { id, at, reaction } of reactions.due(sent, now)) {
      const event = aboutMessage(reaction, messages);
      if (event) await passedOn(`${reaction.what} on ${reaction.message}`, rlproxy.tell({ ...event, at }, id));
    }
  };
  let timer: NodeJS.Timeout | undefined;
  api.registerService({
    id: "rlproxy-reactions",
    start: () => {
      timer = setInterval(() => void look(), LOOK_MS);
    },
    stop: () => clearInterval(timer),
  });

  // `/rl`, answered by rlproxy without a turn of the model.

  api.registerCommand({
    name: "rl",
    description: "Rate the last answer: good, bad, 1 to 5, fix: TEXT, undo, status",
    acceptsArgs: true,
    requireAuth: false, // rlproxy knows who may rate; verbs of admins are held back below
    handler: async (context) => {
      const text = context.args?.trim() ?? "";
      if (!context.senderId) return { text: "rlproxy: OpenClaw does not say who you are; nothing was done." };
      const person = `${context.channel}:${context.senderId}`;
      const verb = text.split(/\s/, 1)[0]?.toLowerCase() ?? "";
      if (ADMIN_VERBS.includes(verb) && !admins.includes(person)) {
        return { text: `rlproxy: /rl ${verb} is for people named in this plugin's admins; nothing was done.` };
      }
      const channel = channelOf(context.channel, context.to ?? context.from ?? "");
      const session = context.sessionKey;
      const event: Event = { what: "command", text, person, channel, ...(session && { session }) };
      try {
        const { line } = await rlproxy.tell(event);
        return line ? { text: line } : {}; // Matrix's homeserver has told rlproxy itself, which answers there
      } catch (error) {
        return { text: `rlproxy does not answer at ${url} (${String(error)}); nothing was stored, try again later.` };
      }
    },
  });

  async function passedOn(what: string, sent: Promise<{ status: number; line: string }>): Promise<void> {
    try {
      const { status, line } = await sent;
      if (status >= 500 || status === 401) api.logger.warn(`rlproxy did not take a ${what}: ${line}`);
      else api.logger.debug?.(`rlproxy, ${what}: ${status} ${line}`);
    } catch (error) {
      api.logger.warn(`rlproxy does not answer at ${url}; a ${what} is lost (${String(error)}).`);
    }
  }
}

/** One for the process: OpenClaw loads a plugin again for its provider, and asks hooks of both. */
function known(): Known {
  const shared = globalThis as { [KNOWN]?: Known };
  return (shared[KNOWN] ??= { turns: new Turns(), messages: new Messages(), reactions: new Reactions() });
}

/** Session, person and an id for the answer go along: OpenClaw does not keep the one in it. */
function withSession(streamFn: StreamFn, turns: Turns): StreamFn {
  return async (model, context, options) => {
    const { key, person } = options?.sessionId ? await turns.of(options.sessionId) : {};
    if (!key) return streamFn(model, context, options);
    const id = `oc-${randomUUID()}`;
    const ours = { "x-rl-session": key, "x-rl-completion-id": id, ...(person && { "x-rl-user": person }) };
    const stream = await streamFn(model, context, { ...options, headers: { ...options?.headers, ...ours } });
    void stream.result().then(
      ({ content, stopReason }) => {
        const text = content.map((part) => (part.type === "text" ? part.text : "")).join("");
        if (stopReason !== "error") turns.answered(key, { id, text, person });
      },
      () => undefined, // a call that failed has no answer; OpenClaw says so itself
    );
    return stream;
  };
}

/** Null where it is not known which channel the message is in. */
function aboutMessage(reaction: Reaction, messages: Messages): Event | null {
  const { what, platform, chat, message, person, emoji } = reaction;
  const sent = messages.of(platform, chat, message);
  if (!sent && !chat) return null;
  const about = sent ? { channel: sent.channel, said: sent.text, session: sent.session } : null;
  return {
    what,
    text: emoji,
    person: `${platform}:${person}`,
    message_id: sent?.message ?? message,
    ...(about ?? { channel: `${platform}:${chat}` }),
  };
}

/** `telegram:123` for `telegram:123:topic:4`, `telegram:group:123` and `123`. */
function channelOf(platform: string, target: string): string {
  const plain = target.replace(new RegExp(`^${platform}:`), "").replace(/^(channel|group|user|chat|room):/, "");
  return `${platform}:${plain.replace(/:(topic|thread):.*$/, "")}`;
}

function settings(given: Record<string, unknown>): { url: string; secret: string; apiKey?: string; admins: string[] } {
  const { url = "http://127.0.0.1:8484", secret, apiKey, admins = [] } = given;
  if (typeof secret !== "string" || !/^(whsec_)?[A-Za-z0-9+/]{22,}={0,2}$/.test(secret)) {
    throw new Error("plugins.entries.rlproxy.config.secret must be the secret of webhooks.openclaw in rlproxy, whsec_….");
  }
  const key = typeof apiKey === "string" ? { apiKey } : {};
  return { url: String(url), secret, ...key, admins: Array.isArray(admins) ? admins.map(String) : [] };
}
