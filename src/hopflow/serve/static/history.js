/** History: what became of one token, in a small window beside it. */

import { quoted, shown } from "./text.js";

const ROWS = 10;

export class History {
  /** @param {HTMLElement} box */
  constructor(box) {
    this.box = box;
    this.token = null;
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") this.hide(); });
    document.addEventListener("scroll", () => this.hide(), { passive: true, capture: true });
  }

  /** Show the hops of a position up to time t beside its element. */
  show(recording, position, t, state, element) {
    const data = recording.flow.vocab.data, hops = recording.historyOf(position, t);
    const title = line("strong", `Token ${position + 1} · ${state}`);
    const rows = hops.slice(-ROWS).map(({ t: at, before, after }) => {
      const row = line("li", "");
      row.append(line("span", `t = ${at.toFixed(2)}`), line("bdi", quoted(shown(before, data))), " → ",
        line("bdi", quoted(shown(after, data))));
      return row;
    });
    if (hops.length > ROWS) rows.unshift(line("li", `${hops.length - ROWS} earlier hops`));
    if (!hops.length) {
      rows.push(line("li", recording.fixed[position] ? "pinned by the prompt" : t < 1 ? "no hop so far" : "no hop"));
    }
    const list = line("ol", "");
    list.append(...rows);
    this.box.replaceChildren(title, list);
    this.box.hidden = false;
    this.token?.removeAttribute("aria-describedby");
    this.token = element;
    element.setAttribute("aria-describedby", this.box.id);
    this.#place(element.getClientRects()[0] ?? element.getBoundingClientRect());
  }

  /** Whether the window is open for this element. */
  shows(element) {
    return !this.box.hidden && this.token === element;
  }

  hide() {
    this.token?.removeAttribute("aria-describedby");
    this.token = null;
    this.box.hidden = true;
  }

  /** Below the token, or above it where there is no room. */
  #place(token) {
    const { width, height } = this.box.getBoundingClientRect(), gap = 8;
    const left = Math.min(Math.max(gap, token.left - 12), document.documentElement.clientWidth - width - gap);
    const below = token.bottom + gap + height < innerHeight;
    this.box.style.left = `${left}px`;
    this.box.style.top = `${below ? token.bottom + gap : Math.max(gap, token.top - height - gap)}px`;
  }
}

function line(name, text) {
  const element = document.createElement(name);
  element.textContent = text;
  return element;
}
