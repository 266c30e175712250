/** The page: connects the form, the draws, the panels and the player. */

import { Api, ServerError, takeAccessToken } from "./api.js";
import { Controls, SEEDS } from "./controls.js";
import { Drawing } from "./drawing.js";
import { EditBar } from "./edit_bar.js";
import { History } from "./history.js";
import { Panel, difference } from "./panel.js";
import { Playbar } from "./playbar.js";
import { Player } from "./player.js";
import { copy, download, programs, savedPage } from "./share.js";
import { counted } from "./text.js";

const find = (selector) => document.querySelector(selector);

class Page {
  constructor() {
    this.api = new Api(takeAccessToken(), (seconds) => this.say(`The server is busy. Asking again in ${counted(seconds, "second")}.`));
    this.drawing = new Drawing(this.api);
    this.history = new History(find("#history"));
    this.player = new Player(() => this.show());
    this.playbar = new Playbar(find("#playbar"), this.player);
    this.editBar = new EditBar(this.api, {
      draw: (again) => this.draw(again), fail: (error) => this.fail(error),
      show: (panel, edit) => { this.say(""); panel.view.showEdit(edit); },
    });
    /** @type {Panel[]} */
    this.panels = [];
    /** The recordings of the panels; empty places until their draws have started. */
    this.recordings = [];
    /** The last request, and the prompt of each of its flows. */
    this.last = null;
    this.prompts = new Map();
    this.turn = 0;
    this.drawn = false;
  }

  async start() {
    this.offer = await this.api.flows();
    this.controls = new Controls(find("#controls"), this.offer);
    this.editBar.longest = this.offer.limits.length;
    find("#version").textContent = `hopflow ${this.offer.version}`;
    find("#settings").open = matchMedia("(min-width: 64rem)").matches;
    find("#controls").addEventListener("submit", (event) => { event.preventDefault(); this.draw(); });
    find("#prompt").addEventListener("input", () => { if (this.editBar.edit) this.editBar.discard(); });
    find("#copy-command").addEventListener("click", () => this.copy("command"));
    find("#copy-python").addEventListener("click", () => this.copy("python"));
    find("#save").addEventListener("click", () => this.save());
    await this.draw();
  }

  /** Draw what the form and the holes ask for, or the last prompt `again`. The same once more takes the next seed. */
  async draw(again = false) {
    if (!find("#controls").reportValidity()) return;
    this.say("");
    this.#busy(true);
    const turn = this.turn += 1;
    let draws = this.controls.draws(), prompts;
    const { edit, panel } = this.editBar;
    try {
      if (edit && !edit.drawable) throw new ServerError("Every token is pinned. Click a word to make it a hole.");
      if (edit && !this.offer.same_noise) draws = draws.filter(({ flow }) => flow === panel.recording.flow);
      if (!draws.length) throw new ServerError(`The holes are those of ${panel.recording.title}. Show that flow, or cancel the holes.`);
      prompts = await Promise.all(draws.map(({ flow, settings }) => edit?.prompt()
        ?? (again ? this.#lastPrompt(flow) : null) ?? this.drawing.prompt(flow, this.controls.prompt, settings.length)));
    } catch (error) {
      if (turn === this.turn) this.#busy(false);
      this.fail(error);
      return;
    }
    if (turn !== this.turn) return;
    this.prompts = new Map(draws.map(({ flow }, i) => [flow, prompts[i]]));
    const asked = JSON.stringify([draws, prompts]);
    if (asked === this.last) {
      this.controls.set("seed", (this.controls.seed + 1) % SEEDS);
      for (const { settings } of draws) settings.seed = this.controls.seed;
    }
    this.last = JSON.stringify([draws, prompts]);
    await this.#follow(draws, prompts);
  }

  /** The prompt of the last draw of a flow. Flows with the same noise have the same tokens. */
  #lastPrompt(flow) {
    return this.prompts.get(flow) ?? (this.offer.same_noise ? [...this.prompts.values()][0] : null);
  }

  async #follow(draws, prompts) {
    this.editBar.discard();
    this.#makePanels(draws.length);
    this.recordings = draws.map(() => null);
    this.drawn = false;
    find("#shared").textContent = "";
    find("#copied").hidden = true;
    this.#enable(false);
    this.player.follow();
    const extend = () => {
      const left = this.recordings.filter((recording) => recording !== false);
      if (!left.length) return;
      const known = Math.min(...left.map((recording) => recording?.knownUntil ?? 0));
      this.player.extend(known, left.every((recording) => recording?.complete));
    };
    const complete = await this.drawing.start(draws, prompts, {
      open: (i, recording) => {
        this.say(""); // the server is no longer busy
        this.recordings[i] = recording;
        this.panels[i].open(recording);
        if (draws.length === 2 && this.recordings.every(Boolean)) this.#compareNoise();
        this.show();
      },
      extend,
      fail: (i, error) => {
        this.recordings[i] = false;
        this.panels[i].fail(error.message);
        extend(); // the others need not wait for it
        if (!(error instanceof ServerError)) throw error;
      },
    });
    if (!complete) return;
    const any = this.recordings.some(Boolean);
    this.drawn = any;
    this.player.extend(any ? 1 : 0, true);
    if (!any) this.player.seek(0);
    this.#enable(any);
    this.editBar.ready(this.recordings.filter(Boolean));
    this.#announce();
    this.show();
    this.#busy(false);
  }

  /** Whether a draw was asked for and is not complete yet; a screen reader waits for its end. */
  #busy(is) {
    find("#panels").ariaBusy = String(is);
  }

  #makePanels(count) {
    for (const panel of this.panels.splice(count)) panel.root.remove();
    while (this.panels.length < count) {
      const root = find("#panel").content.firstElementChild.cloneNode(true);
      const panel = new Panel(root, this.history, {
        toggle: (range) => this.#edit(panel, () => this.editBar.toggle(panel, range)),
        type: (range, text) => this.#edit(panel, () => this.editBar.type(panel, range, text)),
      });
      this.panels.push(panel);
      find("#panels").append(root);
    }
    find("#panels").classList.toggle("two", count === 2);
    for (const panel of this.panels) panel.fail(null);
  }

  /** A complete sequence can be edited; it is shown at its end. */
  #edit(panel, change) {
    if (!this.drawn || !panel.recording?.complete) return;
    if (this.player.t < 1) this.player.seek(1);
    this.history.hide();
    change();
  }

  /** Show all panels at the player's time. */
  show() {
    const { t, playing } = this.player, recordings = this.recordings.filter(Boolean);
    if (t < 1 && this.editBar.edit) this.editBar.discard();
    if (!this.editBar.edit) {
      this.panels.forEach((panel, i) => { if (this.recordings[i]) panel.show(t, playing); });
    }
    const two = this.panels.length === 2 && recordings.length === 2;
    find("#difference").hidden = !two;
    if (two) find("#difference").textContent = difference(...recordings, t) + (this.otherNoise ? " The noise differs." : "");
    const hops = recordings.map((recording) => counted(recording.countsAt(t).jumps, "hop")).join(" and ");
    this.playbar.show(`t = ${t.toFixed(2)}, ${hops}`);
  }

  #compareNoise() {
    const [a, b] = this.recordings;
    this.otherNoise = a.length !== b.length || a.x0.some(([id], i) => id !== b.x0[i][0]);
  }

  /** Tell a screen reader once what was drawn. */
  #announce() {
    find("#spoken").textContent = this.recordings.filter(Boolean).map(({ title, totals, text }) => (
      `${title}: ${counted(totals.jumps, "hop")}, ${counted(totals.calls, "network call")}. ${text}`)).join(" ");
  }

  #enable(use) {
    for (const name of ["copy-command", "copy-python", "save"]) find(`#${name}`).disabled = !use;
  }

  async copy(kind) {
    const text = programs(this.recordings.filter(Boolean), kind), done = await copy(text);
    find("#shared").textContent = done ? "Copied." : "Select the text and copy it.";
    find("#copied").hidden = done;
    find("#copied").value = text;
    if (!done) find("#copied").select();
  }

  async save() {
    const recordings = this.recordings.filter(Boolean);
    const names = recordings.map(({ title }) => title).join(" and ");
    download("hops.html", await savedPage(recordings, `Hops of ${names}`));
    find("#shared").textContent = "Saved as hops.html.";
  }

  /** Show a message to everyone; an empty one disappears. */
  say(text) {
    find("#message").textContent = text;
    find("#message").hidden = !text;
  }

  fail(error) {
    if (error.name === "AbortError") return;
    this.say(error.message);
    if (!(error instanceof ServerError)) throw error;
  }
}

const page = new Page();
page.start().catch((error) => page.fail(error));
