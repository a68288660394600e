// @ts-check
// The table of a channel under the pointer or pinned: its numbers in the image and over the run.

import { make, number, share } from "./text.js";

/** @import { Format, Measure, Numbers } from "./page.d.ts" */

/** @type {[Measure, Format][]} */
const MEASURES = [
  ["minimum", number], ["maximum", number], ["mean", number], ["deviation", number], ["zeros", share], ["nonfinite", share],
];
/** @type {Partial<Record<Measure, string>>} */
const MEASURE_NAMES = { nonfinite: "not finite" };

// A table with a column for each [heading, numbers]; columns without numbers are left out.
/** @type {(columns: [string, Numbers | null][], caption?: string) => HTMLElement} */
export function channelTable(columns, caption) {
  const shown = columns.filter(([, numbers]) => numbers);
  const table = make("table", "numbers");
  if (caption) table.createCaption().append(make("b", "", caption));
  if (shown.length > 1 || columns.length > 2) {
    const head = table.createTHead().insertRow();
    head.append(make("td"), ...shown.map(([heading]) => Object.assign(make("th", "", heading), { scope: "col" })));
  }
  const body = table.createTBody();
  for (const [key, format] of shown.length ? MEASURES : []) {
    if (key === "nonfinite" && !shown.some(([, numbers]) => numbers.nonfinite > 0)) continue;
    const row = body.insertRow();
    row.append(Object.assign(make("th", "", MEASURE_NAMES[key] ?? key), { scope: "row" }));
    for (const [, numbers] of shown) row.append(make("td", "", format(numbers[key])));
  }
  return table;
}
