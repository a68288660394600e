// @ts-check
// The hooks by which scripts of features extend the page. Each registers itself; the page works without any of them.

/** @import { Report } from "./page.d.ts" */

/** @type {Report} */
export const report = {
  // Called once, after the first pictures are shown: loads data that only later steps need.
  opened: [],
  // Called after a choice, before its data are loaded.
  chosen: [],
  // Called with each loaded picture and its unit; may add facts.
  loaded: [],
  // Called when the panes exist, and again when they are described.
  arranged: [],
  described: [],
  // Called after the choice is shown; may load pictures that are likely to be chosen next.
  settled: [],
  // Called after pictures are moved or zoomed, or a channel is pinned; places marks over them.
  placed: [],
  // Called with a pane and the event while the pointer is over a tile, else with null; may return a note for the tip, and words.
  pointed: [],
  // Called with the first picture whose channel is pinned, or null.
  pinned: [],
  // Called with each figure of the panel, its pane and its kind: "channel" or "input".
  figures: [],
  // Called with a figure's box and the pointer's position, relative to its size; with null when the pointer leaves it.
  crossed: [],
  // Returns the name of the layer to show first, or undefined.
  preferred: [],
  // Views whose data are loaded when they are chosen: `view`, `label`, `load`, the loaded `unit`, and an `error`.
  views: [],
  // Parts of the page's address: `name`, `write` and `read`.
  addressParts: [],
  // Actions by key. Actions of Escape: each returns true if it ended something.
  keys: {},
  escapes: [],
  // True if the panel of a pinned channel holds more than its pictures and numbers.
  crowded: false,
  // On the page of two runs: merges the pictures of both into one list, and captions a pane.
  pairing: null,
};
