// @ts-check
// What capabilities add to the page. Each has a script that registers itself; the page works without any of them.

/** @import { Report } from "./page.d.ts" */

/** @type {Report} */
export const report = {
  // Once, after the first pictures are shown: loads what is not needed before.
  opened: [],
  // After a choice, before anything of it is loaded.
  chosen: [],
  // Once per picture whose data were loaded, with its unit: may add facts.
  loaded: [],
  // When the panes are there, and again when they are described.
  arranged: [],
  described: [],
  // After all that was chosen is shown: may load what is likely to be chosen next.
  settled: [],
  // After the pictures were moved or zoomed, or a channel was pinned: places marks over them.
  placed: [],
  // While the pointer is over a tile (a pane and the event), or over none (null): may return a note for the tip, and words.
  pointed: [],
  // With the first picture whose channel is pinned, or null; then with each figure of the panel, of a channel or an input.
  pinned: [],
  figures: [],
  // While the pointer is over a figure: its box, and a position in shares of its size; null if it left.
  crossed: [],
  // Returns the name of the layer to begin with, if there is a reason for one.
  preferred: [],
  // Views whose data are loaded when they are chosen: `view`, `label`, `load`, the `unit` that was loaded, and an `error`.
  views: [],
  // Parts of the page's address: `name`, `write` and `read`.
  places: [],
  // By the key, what it does; and what Escape leaves: each returns whether there was something to leave.
  keys: {},
  escapes: [],
  // Whether the panel of a pinned channel holds more than its pictures and numbers.
  crowded: false,
  // Of the page of two runs: how the pictures of both become one list, and what stands above a pane.
  pairing: null,
};
