// What every driver in JavaScript shares; talking.py says what is written and read.
import { createInterface } from "node:readline";

export const LOOK = {
  name: "look",
  description: "Looks at a place.",
  parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] },
};
export const look = ({ place }) => `seen ${place}`;

/** `opened` takes {url, base_url, model, format, stream, tools, folder}, and gives what says a text: its answer, or [answer, id]. */
export async function serve(opened) {
  const write = process.stdout.write.bind(process.stdout);
  process.stdout.write = process.stderr.write.bind(process.stderr);
  let say;
  for await (const line of createInterface({ input: process.stdin })) {
    const told = JSON.parse(line);
    let found;
    try {
      if (told.open) {
        say = await opened({ ...told.open, base_url: `${told.open.url}/v1` });
        found = {};
      } else {
        const shown = await say(told.say);
        const [text, id] = Array.isArray(shown) ? shown : [shown, null];
        found = { text, id: id ?? null };
      }
    } catch (error) {
      found = { error: String(error?.stack ?? error) };
    }
    write(JSON.stringify(found) + "\n");
  }
  process.exit(0);
}
