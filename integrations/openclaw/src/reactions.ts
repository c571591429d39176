/**
 * Reactions, as OpenClaw knows them: system events that wait in a session's queue for the agent's next turn.
 *
 * Owns how they are read. OpenClaw has no hook for reactions; the queue is looked at (nothing is taken from it), and
 * each event's context key says who did what to which message.
 */

export type Reaction = {
  what: "reaction" | "retraction";
  platform: string;
  chat: string | undefined; // Discord's say none: its message ids are unique
  message: string;
  person: string;
  emoji: string;
};
export type Queued = { id?: string; ts: number; contextKey?: string | null };

/** Read in OpenClaw 2026.9.6 and its Slack, Discord and Matrix plugins of that version. It writes them in small letters. */
const KEYS = new Map<string, RegExp>(Object.entries({
  telegram: /^telegram:reaction:(?<what>add):(?<chat>[^:]+):(?<message>[^:]+):(?<person>[^:]+):(?<emoji>.+)$/u,
  slack:
    /^slack:reaction:(?:[^:]+:)?(?<what>added|removed):(?<chat>[^:]+):(?<message>[^:]+):(?<person>[^:]+):(?<emoji>.+):[^:]+$/u,
  discord: /^discord:reaction:(?<what>added|removed):(?<message>[^:]+):(?<person>[^:]+):(?<emoji>.+?)(?::burst)?$/u,
  matrix:
    /^matrix:reaction:(?<what>add):(?<chat>!.+?):(?<message>\$.+?):(?<person>@[^:]+:[^:]+(?::\d+)?):(?<emoji>.+)$/u,
}));

/** Null where the event is no reaction, or nobody's. */
export function reactionOf(contextKey: string | null | undefined): Reaction | null {
  const platform = contextKey?.split(":", 1)[0] ?? "";
  const { what, message, emoji, ...ids } = KEYS.get(platform)?.exec(contextKey ?? "")?.groups ?? {};
  const [chat, person] = [ids["chat"], ids["person"]].map((id) => (platform === "slack" ? id?.toUpperCase() : id));
  if (!message || !person || !emoji || person === "anon") return null;
  return { what: what === "removed" ? "retraction" : "reaction", platform, chat, message, person, emoji };
}

const SEEN = 5000;
const WAIT_MS = 10_000; // OpenClaw may tell of a reaction before it tells that the message was sent

export type Found = { id: string; at: number; reaction: Reaction };

export class Reactions {
  readonly #seen = new Set<string>();
  #waiting: (Found & { until: number })[] = [];

  /** What is new in a queue waits here. The same event has the same name in every look. */
  see(queue: readonly Queued[], now: number): void {
    for (const event of queue) {
      const reaction = reactionOf(event.contextKey);
      const id = event.id ?? `${event.ts}-${event.contextKey}`;
      if (!reaction || this.#seen.has(id)) continue;
      this.#seen.add(id);
      if (this.#seen.size > SEEN) this.#seen.delete(this.#seen.values().next().value as string);
      this.#waiting.push({ id, at: event.ts / 1000, reaction, until: now + WAIT_MS });
    }
  }

  /** Those whose message is known by now, and those that have waited for it long enough: each once, oldest first. */
  due(known: (reaction: Reaction) => boolean, now: number): Found[] {
    const due = this.#waiting.filter(({ reaction, until }) => until <= now || known(reaction));
    this.#waiting = this.#waiting.filter((one) => !due.includes(one));
    return due;
  }
}
