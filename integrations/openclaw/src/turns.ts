/**
 * Who asked in which session, and what was answered there: so much that a message can be linked, and no more.
 *
 * Owns the way from a model call to the message that shows its answer. Kept in memory, for the last sessions only; what
 * is stored is stored by rlproxy.
 */

import { setImmediate } from "node:timers/promises";

export type Answered = { id: string; text: string; person: string | undefined };
type Call = { key: string; run: string; person: string | undefined; announced: boolean };
export type Sent = { message: string; channel: string; text: string; session: string };

const MESSAGES = 2000;
const SESSIONS = 500;
const ANSWERS = 8; // a turn with tools has several, and an answer may be sent in pieces
const TICKS = 50; // OpenClaw announces a call and makes it at about the same time

export class Turns {
  readonly #calls = new Map<string, Call>(); // by session id
  readonly #asking = new Map<string, Set<string>>(); // people who wait for an answer, by session key
  readonly #answers = new Map<string, Answered[]>(); // by session key

  asked(key: string, person: string): void {
    remember(this.#asking, key, (this.#asking.get(key) ?? new Set()).add(person));
    remember(this.#answers, key, this.#answers.get(key) ?? []);
  }

  /**
   * A run is for the one who asked since the last began. For several it is for none of them alone, and for nobody where
   * it is a heartbeat or a cron job: then only people whom rlproxy's settings name may rate. OpenClaw itself tells the
   * sender to plugins that may read whole conversations; this one does not.
   */
  calling(sessionId: string, key: string, run: string): void {
    const before = this.#calls.get(sessionId);
    if (before?.run === run) {
      before.announced = true;
      return;
    }
    const [person, ...others] = this.#asking.get(key) ?? [];
    this.#asking.delete(key);
    remember(this.#calls, sessionId, { key, run, person: others.length ? undefined : person, announced: true });
  }

  /** The session that a model call is of, and for whom. */
  async of(sessionId: string): Promise<{ key?: string; person?: string | undefined }> {
    let call = this.#calls.get(sessionId);
    for (let tick = 0; tick < TICKS && !call?.announced; tick++) {
      await setImmediate();
      call = this.#calls.get(sessionId);
    }
    if (call) call.announced = false; // the next call is announced again
    return call ?? {};
  }

  /** Those in which something was said since the start. */
  get sessions(): Iterable<string> {
    return this.#answers.keys();
  }

  answered(key: string, answer: Answered): void {
    remember(this.#answers, key, [...(this.#answers.get(key) ?? []), answer].slice(-ANSWERS));
  }

  /** The newest answer of that session whose text this is, or a part of it. */
  shown(key: string, text: string): Answered | undefined {
    const wanted = letters(text);
    return (this.#answers.get(key) ?? []).findLast(({ text: said }) => wanted !== "" && letters(said).includes(wanted));
  }
}

/** The messages that were sent lately, so that a reaction says what it is about. */
export class Messages {
  readonly #sent = new Map<string, Sent>();

  sent(platform: string, sent: Sent): void {
    remember(this.#sent, named(platform, sent.channel, sent.message), sent, MESSAGES);
  }

  of(platform: string, chat: string | undefined, message: string): Sent | undefined {
    return this.#sent.get(named(platform, `${platform}:${chat}`, message));
  }
}

/**
 * Telegram counts messages in each chat; elsewhere their ids are unique, and channels have several names. OpenClaw's
 * queue has them in small letters, so case does not count here.
 */
function named(platform: string, channel: string, message: string): string {
  return (platform === "telegram" ? `${channel} ${message}` : `${platform} ${message}`).toLowerCase();
}

/** Only letters and digits count: platforms change everything else. */
function letters(text: string): string {
  return text.normalize("NFKC").toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
}

function remember<T>(map: Map<string, T>, key: string, value: T, most = SESSIONS): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > most) map.delete(map.keys().next().value as string);
}
