// @ts-check
// The methods of heat maps, ranked over all images of the run.

import { find, make, run } from "../../formats/html/text.js";

/** @import { Report } from "../../formats/html/page.d.ts" */
/** @typedef {{ rank: string, method: string, layer: string, deletion: string, insertion: string, chanceDeletion: string, chanceInsertion: string, verdict: string, last: string, all: string, note: string }} Method */
/** @typedef {{ target: string, summary: string, few: boolean, least: number, methods: Method[] }} Target */

const BUTTON = '<svg viewBox="0 0 16 16" aria-hidden="true"><path d="M2 13V3M2 13h12M4 11c3-1 3-6 9-7"/></svg><span>Trust</span>';
const DIALOG = `
  <header><h2 id="trust-title">Which heat maps to trust</h2><button type="button" class="icon" data-close aria-label="Close"><svg viewBox="0 0 16 16" aria-hidden="true"><path d="m4 4 8 8M12 4l-8 8"/></svg></button></header>
  <p class="summary">Methods are ranked by insertion minus deletion, the mean over the images: a low deletion and a high insertion mean that the highest cells of a map hold what the class needs. A method has the rank of another one if the images do not tell them apart. The ranking says which order of cells this network follows, not that a map is true, and deletion favours small sharp maps.</p>`;
const COLUMNS = ["Rank", "Method", "Layer", "Deletion", "by chance", "Insertion", "by chance", "Against chance", "Last layer random", "All random", ""];

/** @type {(targets: Target[]) => HTMLElement} */
function makeDialog(targets) {
  const dialog = Object.assign(make("dialog"), { id: "trust", innerHTML: DIALOG });
  dialog.setAttribute("closedby", "any");
  dialog.setAttribute("aria-labelledby", "trust-title");
  for (const each of targets) {
    dialog.append(make("h3", "", each.target), make("p", each.few ? "warning" : "", each.summary));
    const region = make("div", "table");
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", `Methods for ${each.target}`);
    region.tabIndex = 0;
    region.append(makeTable(each.methods));
    dialog.append(region);
  }
  dialog.append(make("p", "", "Random: rank correlation with the map of the same network with random weights. Near 1, the map does not depend on what was learnt. \u00b1 is the standard error of the mean."));
  return dialog;
}

/** @type {(methods: Method[]) => HTMLElement} */
function makeTable(methods) {
  const table = make("table");
  table.createTHead().insertRow().append(...COLUMNS.map((text) => Object.assign(make("th", "", text), { scope: "col" })));
  const body = table.createTBody();
  for (const each of methods) {
    const row = body.insertRow();
    const cells = [each.rank, each.method, each.layer, each.deletion, each.chanceDeletion, each.insertion, each.chanceInsertion, each.verdict, each.last, each.all, each.note];
    for (const content of cells) row.insertCell().append(content);
  }
  return table;
}

/** @param {Report} _report */
export function register(_report) {
  const { trust } = /** @type {{ trust?: Target[] }} */ (run);
  if (!trust?.length) return;
  const button = Object.assign(make("button"), { type: "button", innerHTML: BUTTON });
  button.dataset.dialog = "trust";
  find("#over").after(button);
  find("#help").before(makeDialog(trust));
}
