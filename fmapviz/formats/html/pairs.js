// @ts-check
// The page of two runs: the same image in both, side by side.

import { isAlike, likeIn } from "./state.js";
import { cutName, find, LETTERS, make, paired, run, visible } from "./text.js";

/** @import { Picture, Report } from "./page.d.ts" */
/** @import { Pane } from "./pane.js" */

// The pictures of both runs, in the order of the first one; `only` marks pictures that one run lacks, though it has the image.
/** @type {(own: Picture[], other: Picture[], options: { both: boolean }) => Picture[]} */
function unite(own, other, { both }) {
  /** @type {(side: number) => { only?: number }} */
  const lone = (side) => (both ? { only: side } : {});
  const united = own.map((picture) => (likeIn(other, picture) ? picture : { ...picture, ...lone(0) }));
  let at = 0;
  for (const picture of other) {
    const like = united.findIndex((each) => isAlike(each, picture));
    if (like < 0) {
      while (both && united[at]?.only === 0 && united[at].view === picture.view) at += 1;
      united.splice(at, 0, { ...picture, ...lone(1) });
    }
    at = (like < 0 ? at : like) + 1;
  }
  return united;
}

// The heading of a pane is its run.
/** @type {(pane: Pane) => void} */
function headPane(pane) {
  const { name, label } = run.runs[pane.side];
  const heading = find("h3", pane.root);
  heading.title = visible(`${name}: ${label}`);
  heading.replaceChildren(...cutName(name), " ", make("span", "label", label));
  Object.assign(find(".side", pane.root), { textContent: LETTERS[pane.side], disabled: true, ariaLabel: `Run ${LETTERS[pane.side]}` });
  pane.describe(pane.picture?.shared ? [pane.picture.shared] : pane.unit?.predictions ?? []);
}

/** @param {Report} report */
export function register(report) {
  if (paired) report.pairing = { unite, caption: headPane };
}
