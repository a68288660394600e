// @ts-check
// Curves over the steps of a series: the mean of the shown layer, and its number of dead channels.

import { address, layerAmong, loadScript, unpack } from "./data.js";
import { draw } from "./histogram.js";
import { comparing, isShown, labelOf, panes, state } from "./state.js";
import { hasSeries, positionAt, shownItem } from "./steps.js";
import { find, make, number, run, visible } from "./text.js";

/** @import { Curves, Item, Picture, Report } from "./page.d.ts" */

const CURVE = { width: 1000, height: 100 };

/** @type {Curves | null} */
let curves = null;  // by the address of the series
/** @type {Picture | null} */
let charted = null;  // the picture whose layer has a chart

async function loadCurves() {
  if (!run.curves) return;
  curves = await loadScript(address(run.curves)).catch(() => {});  // the slider works without them
  showCurves();
}

/** @type {(item: Item, picture: Picture) => { mean: number[], dead: number[] } | null} */
function curvesOf(item, picture) {
  const series = curves?.[item.href];
  const layer = series && layerAmong(series.layers, picture);
  if (!layer) return null;
  const columns = new Map(series.steps.map((step, column) => [step, column]));
  /** @type {(number: number) => number[]} */
  const row = (number) => item.steps.map(({ step }) => (columns.has(step) ? unpack(layer, series.steps.length)(number, columns.get(step)) : NaN));
  return { mean: row(0), dead: row(1) };
}

function showCurves() {
  const item = shownItem();
  const { picture } = panes[comparing() ? state.side : 0] ?? {};  // the pane of image B may not exist yet
  charted = picture ?? (charted && isShown(charted) ? charted : null);  // a step may lack the layer
  const found = item.steps && charted ? curvesOf(item, charted) : null;
  const chart = find("#curves");
  chart.toggleAttribute("hidden", !found);
  find("#curve-numbers").hidden = !found;
  if (!found) return;
  const at = positionAt(item, state.side);
  const dead = found.dead[at] > 0 ? `${found.dead[at]} dead` : "";
  const means = found.mean.filter(Number.isFinite);
  const [low, high] = [Math.min(...means), Math.max(...means)];
  const label = `Mean of ${labelOf(charted)} over the steps: ${means.length ? `${number(low)} to ${number(high)}` : "none"}`;
  const title = draw("title", {});
  title.textContent = visible(label);
  find("#curve-numbers").replaceChildren(`mean ${number(found.mean[at])}`, make("span", "dead", dead));
  /** @type {(position: number) => number} */
  const x = (position) => (item.steps.length < 2 ? 0.5 : position / (item.steps.length - 1)) * CURVE.width;
  /** @type {[string, number[], number, number][]} */
  const lines = [["mean", found.mean, low, high], ["dead", found.dead, 0, Math.max(...found.dead.filter(Number.isFinite), 0)]];
  const shown = lines.filter(([, , lowest, highest]) => highest > lowest || (lowest === low && means.length));
  chart.replaceChildren(
    title,
    draw("path", { class: "now", d: `M${x(at)} 0V${CURVE.height}` }),
    ...shown.map(([name, values, lowest, highest]) => draw("path", { class: name, d: path(values, x, lowest, highest) })),
  );
}

// The line has gaps where values are not finite.
/** @type {(values: number[], x: (position: number) => number, low: number, high: number) => string} */
function path(values, x, low, high) {
  /** @type {(value: number) => number} */
  const y = (value) => (high > low ? 0.92 - 0.84 * ((value - low) / (high - low)) : 0.5) * CURVE.height;
  return values.map((value, at) => {
    if (!Number.isFinite(value)) return "";
    const begins = !Number.isFinite(values[at - 1]);
    return `${begins ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}${begins && !Number.isFinite(values[at + 1]) ? "h0" : ""}`;
  }).join("");
}

/** @param {Report} report */
export function register(report) {
  if (!hasSeries) return;
  report.described.push(showCurves);
  report.opened.push(loadCurves);
}
