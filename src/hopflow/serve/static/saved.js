/** A saved page: plays its recordings. */

import { History } from "./history.js";
import { Panel, difference } from "./panel.js";
import { Playbar } from "./playbar.js";
import { Player } from "./player.js";
import { Recording } from "./recording.js";

const data = JSON.parse(document.querySelector("#data").textContent);
const recordings = data.recordings.map(Recording.restored);
const tooltip = new History(document.querySelector("#history"));
const panels = recordings.map((recording) => {
  const root = document.querySelector("#panel").content.firstElementChild.cloneNode(true);
  document.querySelector("#panels").append(root);
  const panel = new Panel(root, tooltip, {});
  panel.open(recording);
  return panel;
});
const player = new Player(() => {
  for (const panel of panels) panel.show(player.t, player.playing);
  if (recordings.length > 1) {
    const line = document.querySelector("#difference");
    line.hidden = false;
    line.textContent = difference(...recordings, player.t);
  }
  playbar.show(`t = ${player.t.toFixed(2)}`);
});
const playbar = new Playbar(document.querySelector("#playbar"), player);
document.querySelector("#command").textContent = recordings.map(({ command }) => command).join("\n");
player.seek(player.reducedMotion.matches ? 1 : 0);
if (!player.reducedMotion.matches) player.toggle();
