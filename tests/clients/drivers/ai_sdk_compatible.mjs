// /// script
// [tool.client]
// name = "AI SDK, @ai-sdk/openai-compatible"
// formats = ["chat"]
//
// [tool.client.npm]
// "@ai-sdk/openai-compatible" = "3.0.92"
// ai = "7.0.173"
// zod = "4.6.7"
// ///
// Vercel's AI SDK, provider of what is compatible; its caller keeps the messages.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { look, serve } from "./talking.mjs";

serve((setup) => {
  const provider = createOpenAICompatible({ name: "rlproxy", baseURL: setup.base_url, apiKey: "any" });
  const tools = { look: tool({ description: "Looks at a place.", inputSchema: z.object({ place: z.string() }), execute: look }) };
  const messages = [];
  return async (text) => {
    messages.push({ role: "user", content: text });
    const request = { model: provider(setup.model), messages, maxRetries: 0, stopWhen: stepCountIs(4), ...(setup.tools && { tools }) };
    const answer = setup.stream ? streamText(request) : await generateText(request);
    const [shown, response] = [await answer.text, await answer.response];
    messages.push(...(await answer.responseMessages ?? response.messages));
    return [shown, response.id];
  };
});
