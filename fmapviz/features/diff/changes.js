// @ts-check
// The table of the layers of a comparison, ranked by how much they change.

import { chooseLayer } from "../../formats/html/choose.js";
import { draw } from "../../formats/html/histogram.js";
import { pictures, state } from "../../formats/html/state.js";
import { find, make, run, say } from "../../formats/html/text.js";

/** @import { Report } from "../../formats/html/page.d.ts" */
/** @typedef {{ layer: string, rank: number | "", relative: string, sqnr: string, largest: string, step: string, note: string, curve: string }} Change */

const BUTTON = '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M2 3h12M2 6.5h9M2 10h6M2 13.5h3"/></svg><span>Changes</span>';
const DIALOG = `
  <header><h2 id="changes-title">Layers by their change</h2><button type="button" class="icon" data-close aria-label="Close"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="m4 4 8 8M12 4l-8 8"/></svg></button></header>
  <p class="summary">Relative L2 is the norm of B - A divided by the norm of A, over all images: 0.1 is a change by a tenth, or an SQNR of 20 dB.</p>
  <div class="table" role="region" aria-label="Changes of layers" tabindex="0"></div>`;

/** @type {(changes: Change[]) => HTMLElement} */
function makeDialog(changes) {
  const dialog = Object.assign(make("dialog"), { id: "changes", innerHTML: DIALOG });
  dialog.setAttribute("closedby", "any");
  dialog.setAttribute("aria-labelledby", "changes-title");
  if (changes[0].curve) find(".summary", dialog).append(" Each layer is ranked by its largest change over the steps; all curves have one scale.");
  find(".table", dialog).append(makeTable(changes));
  return dialog;
}

/** @type {(changes: Change[]) => HTMLElement} */
function makeTable(changes) {
  const table = make("table");
  const steps = changes[0].step ? ["At step", "Over the steps"] : [];
  const columns = ["Rank", "Layer", "Relative L2", "SQNR", "max |B - A|", ...steps, ""];
  table.createTHead().insertRow().append(...columns.map((text) => Object.assign(make("th", "", text), { scope: "col" })));
  const body = table.createTBody();
  for (const { rank, layer, relative, sqnr, largest, step, curve, note } of changes) {
    const row = body.insertRow();
    const cells = [String(rank), layerButton(layer), relative, sqnr, largest, ...(steps.length ? [step, drawCurve(curve)] : []), note];
    for (const content of cells) row.insertCell().append(content);
  }
  return table;
}

/** @type {(name: string) => HTMLElement} */
function layerButton(name) {
  const button = Object.assign(make("button", "", name), { type: "button" });
  button.dataset.layer = name;
  button.addEventListener("click", () => goToChange(name));
  return button;
}

/** @type {(path: string) => SVGElement | ""} */
function drawCurve(path) {
  if (!path) return "";
  const curve = draw("svg", { class: "curve", viewBox: "0 0 120 20", role: "img", "aria-label": "Relative L2 over the steps" });
  curve.append(draw("path", { d: path }));
  return curve;
}

/** @type {(name: string) => void} */
function goToChange(name) {
  const candidates = pictures.listed.filter(({ layer }) => layer?.name === name);
  /** @type {HTMLDialogElement} */ (find("#changes")).close();
  const picture = candidates.find(({ view }) => view === state.view) ?? candidates[0];
  if (!picture) return say(`There is no picture of ${name} in this report.`);
  chooseLayer(picture);
}

/** @param {Report} report */
export function register(report) {
  const { changes } = /** @type {{ changes?: Change[] }} */ (run);
  if (!changes?.length) return;
  const button = Object.assign(make("button"), { type: "button", innerHTML: BUTTON });
  button.dataset.dialog = "changes";
  find("#over").after(button);
  find("#help").before(makeDialog(changes));
  report.preferred.push(() => changes[0].layer);  // the one that changes most
}
