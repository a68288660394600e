// @ts-check
// The table of the layers of a comparison, ranked by how much they change.

import { chooseLayer } from "../../formats/html/choose.js";
import { pictures, state } from "../../formats/html/state.js";
import { find, findAll, say } from "../../formats/html/text.js";

/** @import { Report } from "../../formats/html/page.d.ts" */

/** @type {HTMLElement[]} */
const buttons = findAll("#changes [data-layer]");

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
  report.preferred.push(() => buttons[0]?.dataset.layer);  // the one that changes most
  for (const button of buttons) button.addEventListener("click", () => goToChange(button.dataset.layer));
}
