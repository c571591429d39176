/**
 * What is said to rlproxy over HTTP: signed events, and links.
 *
 * Owns the signature (Standard Webhooks) and what is done when rlproxy does not answer. Not here: what people did.
 */

import { createHmac, randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

export type Event = {
  what: "reaction" | "retraction" | "command";
  text: string;
  person: string;
  channel: string;
  message_id?: string;
  said?: string;
  session?: string;
  at?: number;
};

export type Link = { channel: string; message_id: string; completion_id: string; person?: string };

export type Answer = { status: number; line: string };

const TRIES = 3;
const TIMEOUT_MS = 10_000;

export function signature(secret: string, id: string, seconds: number, body: string): string {
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  return "v1," + createHmac("sha256", key).update(`${id}.${seconds}.${body}`).digest("base64");
}

export class Rlproxy {
  readonly #url: string;
  readonly #secret: string;
  readonly #apiKey: string | undefined;

  constructor(url: string, secret: string, apiKey: string | undefined) {
    this.#url = url.replace(/\/+$/, "");
    this.#secret = secret;
    this.#apiKey = apiKey;
  }

  /** Taken once, however often it is tried: the id stays. Throws where rlproxy does not answer. */
  async tell(event: Event, id: string = randomUUID()): Promise<Answer> {
    const body = JSON.stringify({ platform: "openclaw", ...event });
    return this.#post("/rl/webhooks/openclaw", body, () => {
      const seconds = Math.floor(Date.now() / 1000);
      return {
        "webhook-id": id,
        "webhook-timestamp": String(seconds),
        "webhook-signature": signature(this.#secret, id, seconds, body),
      };
    });
  }

  /** This message shows that completion. Throws where rlproxy does not answer. */
  async link(link: Link): Promise<Answer> {
    const key: Record<string, string> = this.#apiKey ? { authorization: `Bearer ${this.#apiKey}` } : {};
    return this.#post("/rl/links", JSON.stringify({ platform: "openclaw", ...link }), () => key);
  }

  /** Again where rlproxy was away or could not store it; each try is signed anew. */
  async #post(path: string, body: string, headers: () => Record<string, string>): Promise<Answer> {
    for (let left = TRIES - 1; ; left--) {
      try {
        const response = await fetch(this.#url + path, {
          method: "POST",
          body,
          redirect: "error", // the key and a person's words are for this address alone
          headers: { "content-type": "application/json", ...headers() },
          signal: AbortSignal.timeout(TIMEOUT_MS),
        });
        const said = await response.text();
        if (response.status < 500 || left === 0) return { status: response.status, line: lineOf(said) };
      } catch (error) {
        if (left === 0) throw error;
      }
      await sleep(1000);
    }
  }
}

function lineOf(said: string): string {
  try {
    const body = JSON.parse(said) as { line?: string; error?: { message?: string } };
    return body.line ?? body.error?.message ?? said;
  } catch {
    return said;
  }
}
