// 👍 👎 for an answer that a page shows: thumbs(document.querySelector("#answer"), id), where id is that of the answer.
// Your own server passes POST /v1/feedback on to rlproxy: a page of another origin is refused by rlproxy, and a key of
// rlproxy does not belong into a page. A second tap on the same thumb takes the rating back.
export function thumbs(where, completionId, { url = "/v1/feedback", rater } = {}) {
  let given = null; // the rating as rlproxy stored it, and its thumb
  const box = where.appendChild(document.createElement("span"));
  for (const [rating, face, label] of [["good", "👍", "Good answer"], ["bad", "👎", "Bad answer"]]) {
    const button = box.appendChild(document.createElement("button"));
    Object.assign(button, { type: "button", textContent: face, title: label, ariaLabel: label, ariaPressed: "false" });
    button.onclick = async () => {
      for (const other of box.children) other.disabled = true;
      const back = given?.button === button;
      try {
        const response = await fetch(back ? `${url}/${given.id}` : url, {
          method: back ? "DELETE" : "POST",
          headers: { "content-type": "application/json" },
          ...(back ? {} : { body: JSON.stringify({ completion_id: completionId, rating, rater, source: "page" }) }),
        });
        const answer = await response.json();
        if (!response.ok) throw new Error(answer.error.message);
        given = back ? null : { id: answer.id, button };
        box.title = "";
      } catch (error) {
        box.title = `Not rated: ${error.message}`;
      }
      for (const one of box.children) {
        one.disabled = false;
        one.ariaPressed = String(given?.button === one);
      }
    };
  }
}
