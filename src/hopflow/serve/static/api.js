/** Requests to the server of this page: flows, tokens of a text, and draws as streams of events. */

const RETRIES = 4, LONGEST_WAIT = 10;

/** An answer that is not a success, or no answer at all. */
export class ServerError extends Error {
  /** @param {string} message @param {number} status 0 if there was no answer @param {string | null} param */
  constructor(message, status = 0, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** The access token in `#token=…`; it is removed from the address bar. */
export function takeAccessToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) history.replaceState(null, "", location.pathname + location.search);
  return found;
}

export class Api {
  /** @param {string | null} token @param {(seconds: number) => void} onBusy called before each wait for a busy server */
  constructor(token, onBusy) {
    this.headers = token ? { Authorization: `Bearer ${token}` } : {};
    this.onBusy = onBusy;
  }

  /** What the server offers: flows, defaults, limits and samplers. */
  async flows() {
    return (await this.#request("/api/flows", {})).json();
  }

  /** The tokens of a text, as `{id, text}`. */
  async tokens(flow, text, signal) {
    return (await (await this.#post("/api/tokens", { flow, text }, signal)).json()).tokens;
  }

  /**
   * Draw one sequence. Each event of the stream goes to `onEvent(name, data)`; resolves after the event `end`.
   * Aborting the signal closes the connection, which stops the work of the server.
   */
  async draw(request, onEvent, signal) {
    const answer = await this.#post("/api/draw", request, signal);
    for await (const [name, data] of serverSentEvents(answer.body)) {
      if (name === "error") throw new ServerError(data.message, 500);
      onEvent(name, data);
      if (name === "end") return;
    }
    throw new ServerError("The connection ended before the sequence was complete. Draw again.");
  }

  #post(path, content, signal) {
    const headers = { "Content-Type": "application/json" };
    return this.#request(path, { method: "POST", headers, body: JSON.stringify(content), signal });
  }

  /** A busy server (429) is asked again after the time it names, at most RETRIES times. */
  async #request(path, options) {
    for (let retry = 0; ; retry += 1) {
      let answer;
      try {
        answer = await fetch(path, { ...options, headers: { ...options.headers, ...this.headers } });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ServerError("The server does not answer. Is “hopflow serve” still running?");
      }
      if (answer.ok) return answer;
      if (answer.status !== 429 || retry === RETRIES) throw await problem(answer);
      const named = Number(answer.headers.get("Retry-After"));
      const seconds = Math.min(LONGEST_WAIT, Math.max(1, Number.isFinite(named) ? named : 1));
      this.onBusy(seconds);
      await pause(seconds, options.signal);
    }
  }
}

async function problem(answer) {
  const told = await answer.json().then((content) => content.error, () => null);
  if (answer.status === 401) {
    return new ServerError("This server needs a token: open the address with #token=… at its end.", 401);
  }
  return new ServerError(told?.message ?? `The server answered with status ${answer.status}.`, answer.status, told?.param);
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}

/** Name and data of each event of a stream of bytes. */
async function* serverSentEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/);
      const field = (name) => lines.filter((line) => line.startsWith(`${name}:`))
        .map((line) => line.slice(name.length + 1).replace(/^ /, "")).join("\n");
      if (field("data")) yield [field("event"), JSON.parse(field("data"))];
    }
  }
}
