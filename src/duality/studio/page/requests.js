// The studio's interface: JSON, and streams of server-sent events that answer a POST.

/** An error that the studio has said in one sentence. */
export class Refused extends Error {}

async function checked(response) {
  if (response.ok) return response;
  let message = `the studio answered with status ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // a body that is no JSON: the status says what is known
  }
  throw new Refused(message);
}

async function sent(path, options) {
  try {
    return await checked(await fetch(path, options));
  } catch (error) {
    if (error instanceof TypeError) throw new Refused("the studio does not answer: is it still running?");
    throw error;
  }
}

function posting(body, signal) {
  return { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal };
}

/** GET as JSON. */
export async function get(path) {
  return (await sent(path, {})).json();
}

/** POST as JSON. */
export async function post(path, body, signal) {
  return (await sent(path, posting(body, signal))).json();
}

/** The events of a stream, as they come. */
export async function* events(path, body, signal) {
  const response = await sent(path, posting({ ...body, stream: true }, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const line = block.split("\n").find((each) => each.startsWith("data: "));
      const event = line ? JSON.parse(line.slice(6)) : null;
      if (event?.type === "error") throw new Refused(event.error.message);
      if (event) yield event;
    }
  }
}

/** The address of something of a run; the id of a run may have slashes. */
export function runPath(run, what) {
  return `/api/runs/${run.split("/").map(encodeURIComponent).join("/")}/${what}`;
}
