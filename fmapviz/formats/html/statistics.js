// @ts-check
// Statistics over the run.

import { chooseLayer } from "./choose.js";
import { address, loadScript } from "./data.js";
import { showPinned } from "./pins.js";
import { channelButtons, showFacts, showLayers } from "./show.js";
import { pictures, state } from "./state.js";
import { count, find, make, run, say, visible } from "./text.js";
import { inEachImage, layerOverall, statistics, tileOf } from "./tiles.js";

/** @import { Measured, Report } from "./page.d.ts" */

async function loadStatistics() {
  if (!run.statistics) return;
  try {
    statistics.overall = await loadScript(address(run.statistics));
  } catch (error) {
    find("#statistics .summary").textContent = visible(error.message);
    return;
  }
  showLayers();
  showFacts();
  showPinned();
  showStatistics();
}

function showStatistics() {
  const { overall } = statistics;
  const affected = overall.layers.filter(({ dead }) => dead.length);
  const amount = affected.reduce((sum, { dead }) => sum + dead.length, 0);
  find("#statistics .summary").textContent = amount
    ? `${count(amount, "channel")} in ${affected.length} of ${count(overall.layers.length, "layer")} ${amount === 1 ? "is" : "are"} dead: the same value everywhere, ${inEachImage()}.`
    : `No channel of ${count(overall.layers.length, "layer")} is dead: the same value everywhere, ${inEachImage()}.`;
  const table = make("table");
  const head = table.createTHead().insertRow();
  head.append(...["Layer", "Values", "Type", "Dead"].map((text) => Object.assign(make("th", "", text), { scope: "col" })));
  const body = table.createTBody();
  for (const layer of overall.layers) body.append(statisticsRow(layer));
  find("#statistics .table").replaceChildren(table);
}

/** @type {(layer: Measured) => HTMLElement} */
function statisticsRow(layer) {
  const row = make("tr");
  const go = Object.assign(make("button", "", layer.name), { type: "button" });
  go.addEventListener("click", () => goToLayer(layer));
  const { dead } = layer;
  const amount = make("span", dead.length ? "dead" : "", `${dead.length} of ${layer.channels}`);
  const candidates = pictures.listed.filter((each) => layerOverall(each) === layer);
  /** @type {(channel: number) => boolean} */
  const canShow = (channel) => candidates.some((each) => tileOf(each, channel) >= 0);
  const named = make("div", "named");
  named.append(amount, ...(dead.length ? [channelButtons(dead, canShow, (channel) => goToLayer(layer, channel))] : []));
  const cells = [go, layer.of, layer.type, named];
  for (const content of cells) {
    const cell = row.insertCell();
    cell.append(typeof content === "string" ? visible(content) : content);
  }
  return row;
}

/** @type {(layer: Measured, channel?: number | null) => void} */
function goToLayer(layer, channel = null) {
  const candidates = pictures.listed.filter((each) => layerOverall(each) === layer && (channel === null || tileOf(each, channel) >= 0));
  const picture = candidates.find(({ view }) => view === state.view) ?? candidates[0];
  /** @type {HTMLDialogElement} */ (find("#statistics")).close();
  if (!picture) return say(`There is no picture of ${layer.name} in this report.`);
  if (channel !== null) state.channel = channel;
  chooseLayer(picture);
}

/** @param {Report} report */
export function register(report) {
  report.opened.push(loadStatistics);
}
